"""Read traces of links from files, before an experiment is checked. The experiment then has the samples, so a run needs
no other file.

A CSV file has a header `seconds,Mbit/s` (or another unit), then one line per sample: a time, and the rate until the
next time. Mahimahi's format has one line per packet of 1,500 bytes: the millisecond at which the packet can be sent.
Ghent's 4G logs have six numbers per line: milliseconds since 1970, milliseconds since the start, latitude, longitude,
bytes and milliseconds. Bytes and the last milliseconds are counted since the previous line.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from fedstrata.errors import ExperimentError
from fedstrata.experiment.keys_of_files import TRACES, with_files
from fedstrata.experiment.quantities import DURATION, RATE
from fedstrata.experiment.traces import MOST_SAMPLES
from fedstrata.process.quoting import brief

MS = 10**6
BIN_MS, PACKET_BITS = 1_000, 1_500 * 8
MOST_BYTES = 64 << 20
LARGEST = 10**15  # largest number in a file, more than any link's milliseconds, bytes or bits per second
Samples = tuple[list[tuple[int, int]], int]  # pairs of nanoseconds and rate, and the end of the trace in nanoseconds


def with_traces_read(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an experiment's document in which the samples replace the names of trace files. Paths are relative to
    `folder`.

    Raises:
        ExperimentError: a file cannot be read, or has invalid content.
    """
    return with_files(document, TRACES, lambda trace, name, key: _read(trace, folder, key.removesuffix(f".{name}")))


def _read(trace: dict[str, Any], folder: Path, key: str) -> dict[str, Any]:
    path, kind = folder / trace["file"], str(trace.get("format"))
    if kind not in FORMATS:
        raise ExperimentError(f"{key}.format: {kind} is unknown; choose one of {', '.join(FORMATS)}")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ExperimentError(f"{key}: {path} is larger than {MOST_BYTES >> 20} MiB; shorten the trace")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError: the content is not text, or the path is invalid
        raise ExperimentError(brief(f"{key}: cannot read {path}: {error}")) from None
    try:
        samples, end_ns = FORMATS[kind](lines)
    except _NonsenseError as error:
        raise ExperimentError(f"{key}: {path}{error}") from None
    if len(samples) > MOST_SAMPLES:
        raise ExperimentError(f"{key}: {path} has {len(samples)} samples, more than {MOST_SAMPLES}; shorten the trace")
    rest = {name: value for name, value in trace.items() if name not in {"file", "format"}}
    pairs = [[DURATION.written(at_ns), RATE.written(rate)] for at_ns, rate in samples]
    return {**rest, "samples": pairs, "length": DURATION.written(end_ns)}


class _NonsenseError(Exception):
    """Report an error in a trace file, with the number of the line. Line 0 means the whole file."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f", line {line}: {what}" if line else f": {what}")


def _numbers(line: int, words: Sequence[str], expected: int) -> list[Decimal]:
    """Return the numbers in a line. Raises _NonsenseError if there are not exactly `expected` numbers, or if one is too
    large for a link.
    """
    try:
        found = [Decimal(word.strip()) for word in words]
    except InvalidOperation:
        found = []
    if len(found) != expected or not all(number.is_finite() for number in found):
        raise _NonsenseError(line, f"must have {expected} numbers, not {' '.join(words)!r:.60}")
    for number in found:
        if not -LARGEST <= number <= LARGEST:
            raise _NonsenseError(line, f"{number!s:.30} is too large; numbers must be from -{LARGEST:g} to {LARGEST:g}")
    return found


def _of_csv(lines: Sequence[str]) -> Samples:
    head = [word.strip() for word in lines[0].split(",")] if lines else []
    if len(head) != 2 or head[0] != "seconds" or head[1] not in RATE.units:
        raise _NonsenseError(1, f"must be a header such as seconds,Mbit/s; units are {', '.join(RATE.units)}")
    samples: list[tuple[int, int]] = []
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            at, rate = _numbers(number, line.split(","), 2)
            at_ns = round(at * 10**9)
            if rate < 0 or (samples and at_ns <= samples[-1][0]) or at < 0:
                what = "its rate is negative" if rate < 0 else "its time is negative, or not after the previous time"
                raise _NonsenseError(number, f"{what}; times must increase, and rates must be 0 or more")
            samples.append((at_ns, round(rate * RATE.units[head[1]])))
    if len(samples) < 2:
        raise _NonsenseError(0, "must have at least two samples")
    return samples, 2 * samples[-1][0] - samples[-2][0]


def _of_mahimahi(lines: Sequence[str]) -> Samples:
    counts: dict[int, int] = {}
    last = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            (at,) = _numbers(number, line.split(), 1)
            if at != at.to_integral_value() or at < last:
                raise _NonsenseError(
                    number, f"{at!s:.30} ms follows {last} ms; times must be whole milliseconds, in order"
                )
            last = int(at)
            counts[max(0, last - 1) // BIN_MS] = counts.get(max(0, last - 1) // BIN_MS, 0) + 1
    if not last:
        raise _NonsenseError(0, "must have a packet after its first millisecond")
    if last / BIN_MS > MOST_SAMPLES:
        raise _NonsenseError(0, f"lasts {last} ms, more than {MOST_SAMPLES * BIN_MS} ms; shorten the trace")
    samples = []
    for number in range(math.ceil(last / BIN_MS)):
        width = min(BIN_MS, last - number * BIN_MS)
        samples.append((number * BIN_MS * MS, counts.get(number, 0) * PACKET_BITS * 1_000 // width))
    return samples, last * MS


def _of_ghent(lines: Sequence[str]) -> Samples:
    samples: list[tuple[int, int]] = []
    end_ms, since = 0, Decimal(-1)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            _, at, _, _, size, width = _numbers(number, line.split(), 6)
            if at <= since or width < 1 or size < 0:
                raise _NonsenseError(
                    number, "has a time before the previous line's, a duration of 0, or negative bytes"
                )
            since = at
            samples.append((end_ms * MS, int(size * 8 * 1_000 / width)))
            end_ms += int(width)
    if not samples:
        raise _NonsenseError(0, "has no lines")
    return samples, end_ms * MS


FORMATS: Mapping[str, Callable[[Sequence[str]], Samples]] = {
    "csv": _of_csv,
    "mahimahi": _of_mahimahi,
    "ghent": _of_ghent,
}
