"""The real clock in the record: links.csv, which compares configured and achieved links, and the key `real` of
summary.json.
"""

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
# Allowed differences from configured values: a share of the value, or a millisecond per transfer if that is more.
WITHIN, WITHIN_NS = 0.02, 1_000_000


@checked_dataclass(frozen=True, kw_only=True)
class Real:
    """Hold the number of links, and of links that differed from their configuration: the key `real` of summary.json."""

    links: NonNegativeInt
    """Number of rows of `links.csv`."""
    outside: NonNegativeInt
    """Number of these rows with achieved values that differ from the configured values (see `outside` in `links.csv`).
    """


@checked_dataclass(frozen=True, kw_only=True)
class LinkRow:
    """Hold the configured and the achieved values of a child's link in one direction, or of a device's computing."""

    link: Link
    """Link. Rows of `device-gps` are about the answers before training, since the last start of the GPS."""
    direction: Literal["down", "up", "compute"]
    """`up` is towards the GPS; `compute` is a device's computing."""
    child: str
    """Device, or the cluster of an LPS."""
    transfers: NonNegativeInt
    """Number of transfers in all rounds. For computing, number of rounds. A round with a question has two more
    transfers: the answer up, and the message down that the round continues.
    """
    bytes: NonNegativeInt
    """Bytes of all transfers. The message that a round continues has no bytes here."""
    bits_per_s: NonNegativeInt | None
    """Configured rate; on a shared link, the mean of its max-min fair shares. Empty if nothing limits the rate."""
    achieved_bits_per_s: NonNegativeInt | None
    """Achieved rate. For a broadcast, it is calculated from all bytes that the device received, and from the time since
    the device asked for the model.
    """
    latency_s: Amount
    """Configured latency with random jitter, in seconds, as mean over the transfers. For computing, the calculated
    computing time, as mean over the rounds.
    """
    achieved_latency_s: Amount
    """Achieved latency in seconds: from the time at which the last bit left the link until the parent had the transfer,
    or had written it. For computing, the time that the device took.
    """
    outside: str | None
    """Names of the values that were not as configured: `rate`, `latency` or `compute`. They differ by more than 2 %
    and, in the mean, by more than a millisecond. Empty if the link has no configured rate and latency.
    """


LINK_ROWS = Table(LinkRow)


def link_rows(rounds: Iterable[Iterable[pb.Carried]], device_ids: Sequence[str]) -> list[LinkRow]:
    """Return a row for each child's link in each direction, sorted by link, direction and child."""
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
    return round(float(f"{8e9 * size / max(1, took_ns):.6g}"))  # six digits, because times are rounded to nanoseconds


def with_update(carried: Iterable[pb.Carried]) -> set[int]:
    """Return the numbers of the children with updates in a round. The other children missed the round. An LPS has an
    update if it uploaded. A device has an update if its computing is noted, because an LPS notes this only for updates
    in the sum. A device's upload proves nothing, because it may be late.
    """
    last = {"device-lps": "compute"}
    return {each.child for each in carried if each.direction == last.get(each.link, "up") and not each.is_answer}


def links_csv(rows: Iterable[LinkRow]) -> Iterator[str]:
    """Return the lines of links.csv."""
    values = map(LINK_ROWS.values, rows)
    return LINK_ROWS.lines([f"{value:.6f}" if isinstance(value, float) else value for value in row] for row in values)


def real_summary(rows: Sequence[LinkRow]) -> Real:
    """Return the key `real` of summary.json: the number of rows, and of rows outside the tolerance."""
    return Real(links=len(rows), outside=sum(row.outside is not None for row in rows))
