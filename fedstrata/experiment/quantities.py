"""Quantities of the experiment file that are written with a unit, such as rates and durations. Also lists of devices.

Internally, quantities are whole numbers, such as bits per second or nanoseconds. So results do not depend on rounding.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

FASTEST, LONGEST_NS = 10**15, 7 * 24 * 3600 * 10**9  # most bits per second; longest duration of one key: a week
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?) ?([A-Za-z/µ]+)$")
_RANGE = re.compile(r"^(\d{1,6})-(\d{1,6})$")


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Define a kind of quantity that is written with a unit, such as a duration. `form` connects it with pydantic."""

    units: Mapping[str, int]  # size of each unit, as a multiple of the smallest unit
    example: str
    least: int = 0
    most: int
    limits: str  # text about `least` and `most`, for error messages
    zero: str = ""  # notation of 0; by default, 0 of the first unit

    def parsed(self, value: Any) -> int:
        """Parse a quantity, and return it as a whole number of the smallest unit.

        Raises ValueError for a text without a unit, or with an unknown unit, and for a number beyond the limits.
        """
        advice = f"write a value such as {self.example}, with one of the units {', '.join(self.units)}"
        if not isinstance(value, str):
            raise ValueError(f"{value!r} has no unit; {advice}")  # noqa: TRY004  # pydantic shows no TypeError
        found = _QUANTITY.match(value.strip())
        if found is None:
            raise ValueError(f"{value!r} is not a number of 0 or more with a unit; {advice}")
        number, unit = found.groups()
        if unit not in self.units:
            raise ValueError(f"{value!r}: no unit is called {unit!r}; {advice}")
        parsed = round(Decimal(number) * self.units[unit])
        if not self.least <= parsed <= self.most:
            raise ValueError(f"{value!r}: {self.limits}")
        return parsed

    def written(self, number: int) -> str:
        """Return a quantity in the notation of the experiment file. The unit is the largest unit that is not larger
        than the quantity. The units min and h are never used.
        """
        if not number and self.zero:
            return self.zero
        fitting = [(name, size) for name, size in self.units.items() if name not in {"min", "h"} and size <= number]
        name, size = max(fitting, key=lambda unit: unit[1]) if fitting else next(iter(self.units.items()))
        return f"{(Decimal(number) / size).normalize():f}{name}"

    @property
    def form(self) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
        """The metadata of the quantity's type, by which pydantic reads, writes and describes it."""
        pattern = rf"^\d+(\.\d+)? ?({'|'.join(self.units)})$"
        return (
            BeforeValidator(self.parsed),
            PlainSerializer(self.written, return_type=str, when_used="json"),
            WithJsonSchema({"type": "string", "pattern": pattern, "examples": [self.example]}),
        )


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
            raise ValueError(f"{item!r} must be the index of a device, or a range of indexes such as 4-7")
    if not found:
        raise ValueError("names no device; remove this entry, or name one")
    if len(set(found)) != len(found):
        twice = next(one for one, other in pairwise(sorted(found)) if one == other)
        raise ValueError(f"device {twice} is in the list twice; remove it once")
    return tuple(sorted(found))


def written_devices(indexes: Iterable[int]) -> list[int | str]:
    """Return the list with which an experiment file writes these ascending device indexes. Three or more consecutive
    indexes become a range, such as `4-7`.
    """
    ordered = list(indexes)
    cuts = [0, *(at + 1 for at, (one, other) in enumerate(pairwise(ordered)) if other != one + 1), len(ordered)]
    written: list[int | str] = []
    for start, stop in pairwise(cuts):
        run = ordered[start:stop]
        written.extend([f"{run[0]}-{run[-1]}"] if len(run) > 2 else run)
    return written


RATE = Quantity(
    units={"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9},
    example="1.9Mbit/s",
    least=1,
    most=FASTEST,
    limits="a rate must be from 1bit/s to 1000000Gbit/s; for a link without limit, remove this key",
)
DURATION = Quantity(
    units={"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9},
    example="40ms",
    most=LONGEST_NS,
    limits="a duration must be at most a week, 168h",
    zero="0s",
)
Rate = Annotated[int, *RATE.form]
SampleRate = Annotated[int, *replace(RATE, least=0).form]  # rate in a trace, which may be 0
Duration = Annotated[int, *DURATION.form]
DeviceList = Annotated[
    tuple[int, ...], BeforeValidator(parsed_devices),
    PlainSerializer(written_devices, return_type=list[int | str], when_used="json"),
    WithJsonSchema({
        "type": "array", "minItems": 1,
        "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+-\d+$"}]},
    }),
]  # fmt: skip
