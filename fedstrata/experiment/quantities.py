"""Quantities of the experiment file that are written with a unit, such as rates, durations and power. Also lists of
devices.

Internally, quantities are whole numbers, such as bits per second or nanoseconds. So nothing depends on rounding.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

RATE_UNITS: Mapping[str, int] = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9}
DURATION_UNITS: Mapping[str, int] = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
POWER_UNITS: Mapping[str, int] = {"uW": 1, "mW": 10**3, "W": 10**6, "kW": 10**9}
PER_BIT_UNITS: Mapping[str, int] = {"uJ/Mbit": 1, "mJ/Mbit": 10**3, "J/Mbit": 10**6}
MOST_POWER, MOST_PER_BIT = 10**12, 10**12  # a megawatt; a joule a bit
FASTEST, LONGEST_NS = 10**15, 7 * 24 * 3600 * 10**9  # of a link; of one latency or computation, a week
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?) ?([A-Za-z/µ]+)$")
_RANGE = re.compile(r"^(\d{1,6})-(\d{1,6})$")


def _parsed(value: Any, units: Mapping[str, int], example: str) -> int:
    """Parse a quantity, and return it as a whole number of the smallest unit. `units` has the size of each unit, in
    smallest units.

    Raises ValueError for a text without a unit, or with an unknown unit. The message shows `example`.
    """
    known = ", ".join(units)
    is_bare = not isinstance(value, str)
    if is_bare:
        raise ValueError(f"{value!r} has no unit; write it as {example}, in one of {known}")
    found = _QUANTITY.match(value.strip())
    if found is None:
        raise ValueError(f"{value!r} is no number, 0 or more, with a unit; write it as {example}, in one of {known}")
    number, unit = found.groups()
    if unit not in units:
        raise ValueError(f"{value!r}: no unit is called {unit!r}; write it as {example}, in one of {known}")
    return round(Decimal(number) * units[unit])


def parsed_rate(value: Any) -> int:
    """Return a rate in bits per second. Raises ValueError for a text that is not a rate."""
    rate = _parsed(value, RATE_UNITS, "1.9Mbit/s")
    if not 1 <= rate <= FASTEST:
        raise ValueError(f"{value!r}: a rate is from 1bit/s to 1000000Gbit/s; leave it out for a link without limit")
    return rate


def parsed_sample_rate(value: Any) -> int:
    """Return the rate of a sample in a trace, in bits per second. Unlike other rates, it may be 0. Raises ValueError
    for a text that is not a rate.
    """
    return 0 if isinstance(value, str) and not _parsed(value, RATE_UNITS, "1.9Mbit/s") else parsed_rate(value)


def parsed_duration(value: Any) -> int:
    """Return a duration in nanoseconds. Raises ValueError for a text that is not a duration."""
    duration = _parsed(value, DURATION_UNITS, "40ms")
    if duration > LONGEST_NS:
        raise ValueError(f"{value!r}: a duration here is at most a week, 168h")
    return duration


def parsed_power(value: Any) -> int:
    """Return a power in microwatts. Raises ValueError for a text that is not a power."""
    power = _parsed(value, POWER_UNITS, "7.2W")
    if power > MOST_POWER:
        raise ValueError(f"{value!r}: power here is at most a megawatt, 1000kW")
    return power


def parsed_per_bit(value: Any) -> int:
    """Return an energy per bit in picojoules. Raises ValueError for a text that is not an energy per bit."""
    picojoules = _parsed(value, PER_BIT_UNITS, "438.39mJ/Mbit")
    if picojoules > MOST_PER_BIT:
        raise ValueError(f"{value!r}: a megabit here takes at most 1000000J/Mbit")
    return picojoules


def _written(number: int, units: Mapping[str, int]) -> str:
    """Return a quantity as text with its unit. The unit is the largest, except min and h, that is not larger than the
    quantity.
    """
    fitting = [(name, size) for name, size in units.items() if name not in {"min", "h"} and size <= number]
    name, size = max(fitting, key=lambda unit: unit[1]) if fitting else next(iter(units.items()))
    return f"{(Decimal(number) / size).normalize():f}{name}"


def written_rate(rate: int) -> str:
    """Return a rate in the notation of the experiment file."""
    return _written(rate, RATE_UNITS)


def written_duration(duration_ns: int) -> str:
    """Return a duration in the notation of the experiment file."""
    return _written(duration_ns, DURATION_UNITS) if duration_ns else "0s"


def written_power(power: int) -> str:
    """Return a power in the notation of the experiment file."""
    return _written(power, POWER_UNITS)


def written_per_bit(picojoules: int) -> str:
    """Return an energy per bit in the notation of the experiment file."""
    return _written(picojoules, PER_BIT_UNITS)


def parsed_devices(value: Any) -> tuple[int, ...]:
    """Return the device indexes in a list of numbers and ranges. A range such as 4-7 includes both ends. Raises
    ValueError for any other value.
    """
    items = value if isinstance(value, list | tuple) else [value]
    found: list[int] = []
    for item in items:
        bounds = _RANGE.match(item) if isinstance(item, str) else None
        if bounds is not None and int(bounds[1]) <= int(bounds[2]):
            found.extend(range(int(bounds[1]), int(bounds[2]) + 1))
        elif isinstance(item, int) and not isinstance(item, bool) and item >= 0:
            found.append(item)
        else:
            raise ValueError(f"{item!r} is neither a device's index nor a range of them such as 4-7")
    if not found:
        raise ValueError("names no device; leave the entry out")
    if len(set(found)) != len(found):
        twice = next(index for index in found if found.count(index) > 1)
        raise ValueError(f"device {twice} is in the list twice; remove one")
    return tuple(sorted(found))


def written_devices(indexes: Iterable[int]) -> list[int | str]:
    """Return the device indexes in ascending order. Three or more consecutive indexes become a range."""
    ordered = list(indexes)
    cuts = [0, *(at + 1 for at, (one, other) in enumerate(pairwise(ordered)) if other != one + 1), len(ordered)]
    written: list[int | str] = []
    for start, stop in pairwise(cuts):
        run = ordered[start:stop]
        written.extend([f"{run[0]}-{run[-1]}"] if len(run) > 2 else run)
    return written


Rate = Annotated[
    int, BeforeValidator(parsed_rate), PlainSerializer(written_rate, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?[kMG]?bit/s$", "examples": ["1.9Mbit/s"]}),
]  # fmt: skip
Duration = Annotated[
    int, BeforeValidator(parsed_duration), PlainSerializer(written_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?(ns|us|ms|s|min|h)$", "examples": ["40ms"]}),
]  # fmt: skip
Power = Annotated[
    int, BeforeValidator(parsed_power), PlainSerializer(written_power, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?(uW|mW|W|kW)$", "examples": ["7.2W"]}),
]  # fmt: skip
PerBit = Annotated[
    int, BeforeValidator(parsed_per_bit), PlainSerializer(written_per_bit, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?[mu]?J/Mbit$", "examples": ["438.39mJ/Mbit"]}),
]  # fmt: skip
DeviceList = Annotated[
    tuple[int, ...], BeforeValidator(parsed_devices),
    PlainSerializer(written_devices, return_type=list[int | str], when_used="json"),
    WithJsonSchema({
        "type": "array", "minItems": 1,
        "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+-\d+$"}]},
    }),
]  # fmt: skip
