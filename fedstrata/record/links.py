"""The real clock in the record: links.csv, which compares configured and achieved links, and `real` of summary.json."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.experiment.links import Link
from fedstrata.record.tables import Amount, Table
from fedstrata.v1 import rounds_pb2 as pb

SUMMED = ("bytes", "link_ns", "achieved_link_ns", "latency_ns", "achieved_latency_ns")
WITHIN, WITHIN_NS = 0.02, 1_000_000  # of what was configured; for one transfer or computation a millisecond if more


@checked_dataclass(frozen=True, kw_only=True)
class Real:
    """Hold the key `real` of summary.json."""

    links: NonNegativeInt
    """Number of rows of `links.csv`."""
    outside: NonNegativeInt
    """Number of these rows that were not as configured."""


@checked_dataclass(frozen=True, kw_only=True)
class LinkRow:
    """Hold the configured and the achieved values of a child's link in one direction, or of a device's computing."""

    link: Link
    """Link. `device-gps` holds the answers before training, since the GPS last started."""
    direction: Literal["down", "up", "compute"]
    """`up` is towards the GPS; `compute` is a device's computing."""
    child: str
    """Device, or cluster."""
    transfers: NonNegativeInt
    """Number of transfers in all rounds; for computing, number of rounds. A round with a question has one more transfer
    up (the answer), and one more down: the message that the round goes on."""
    bytes: NonNegativeInt
    """Bytes of all transfers. The message that a round goes on has no bytes."""
    bits_per_s: NonNegativeInt | None
    """Configured rate; on a shared link, the mean of its max-min fair shares. Empty if nothing limits the rate."""
    achieved_bits_per_s: NonNegativeInt | None
    """Rate that was achieved. For a broadcast, it follows from all bytes that the device received, and from the time
    since the device asked."""
    latency_s: Amount
    """Configured latency with random jitter, in seconds: mean over the transfers. For computing, the calculated time:
    mean over the rounds."""
    achieved_latency_s: Amount
    """Seconds from the end of the transfer on the link until the parent had the transfer, or had written it. For
    computing, the time that the device took."""
    outside: str | None
    """Values that differ from the configured ones by more than 2 % and, in the mean, by more than a millisecond:
    `rate`, `latency`, `compute`. Empty for a link without rate and latency."""


LINK_ROWS = Table(LinkRow)


def link_rows(rounds: Iterable[Iterable[pb.Carried]], device_ids: Sequence[str]) -> list[LinkRow]:
    """Return a row for each link in each direction, in the order of links, directions and children."""
    sums: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for each in chain.from_iterable(rounds):
        carried = {name: getattr(each, name) for name in SUMMED}
        sums[each.link, each.direction, each.child].update(carried, transfers=1)
    return [_row(key, sums[key], device_ids) for key in sorted(sums)]


def _row(of: tuple[Any, Any, int], total: Mapping[str, int], device_ids: Sequence[str]) -> LinkRow:
    link, direction, child = of
    size, transfers = total["bytes"], total["transfers"]
    on_link, latency = ((total[name], total[f"achieved_{name}"]) for name in ("link_ns", "latency_ns"))
    is_computing = direction == "compute"
    outside = []
    if on_link[0] and _is_off(*on_link, transfers):
        outside.append("compute" if is_computing else "rate")
    if (on_link[0] or latency[0]) and _is_off(*latency, transfers):
        outside.append("latency")
    has_rate = on_link[0] and not is_computing
    bits_per_s, achieved_bits_per_s = (_rate(size, took_ns) if has_rate else None for took_ns in on_link)
    latency_s, achieved_latency_s = (took_ns / transfers / 1e9 for took_ns in (on_link if is_computing else latency))
    return LinkRow(
        link=link,
        direction=direction,
        child=f"lps-{child}" if link == "lps-gps" else device_ids[child],
        transfers=transfers,
        bytes=size,
        bits_per_s=bits_per_s,
        achieved_bits_per_s=achieved_bits_per_s,
        latency_s=latency_s,
        achieved_latency_s=achieved_latency_s,
        outside=" ".join(outside) or None,
    )


def _is_off(configured_ns: int, achieved_ns: int, transfers: int) -> bool:
    return abs(achieved_ns - configured_ns) > max(WITHIN * configured_ns, WITHIN_NS * transfers)


def _rate(size: int, took_ns: int) -> int:
    return round(float(f"{8e9 * size / max(1, took_ns):.6g}"))  # times are whole nanoseconds, which rates show


def links_csv(rows: Iterable[LinkRow]) -> Iterator[str]:
    """Return the lines of links.csv."""
    values = map(LINK_ROWS.values, rows)
    return LINK_ROWS.lines([f"{value:.6f}" if isinstance(value, float) else value for value in row] for row in values)


def real_summary(rows: Sequence[LinkRow]) -> Real:
    """Return the number of rows, and the number of rows outside the tolerance."""
    return Real(links=len(rows), outside=sum(row.outside is not None for row in rows))
