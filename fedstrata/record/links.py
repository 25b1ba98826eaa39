"""The real clock in the record: links.csv, what links were to do and what they did, and `real` of summary.json."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.experiment.links import Link
from fedstrata.record.tables import Amount, Table
from fedstrata.v1 import rounds_pb2 as pb

WITHIN, WITHIN_NS = 0.02, 1_000_000  # of what was configured; for one transfer or computation a millisecond if more


@checked_dataclass(frozen=True, kw_only=True)
class Real:
    """`real` of summary.json: how many rows links.csv has, and how many of them are outside of what was configured."""

    links: NonNegativeInt
    outside: NonNegativeInt


@checked_dataclass(frozen=True, kw_only=True)
class LinkRow:
    """A child's link in one direction, or its computing: configured beside achieved.

    Latencies and computing are means of a transfer. Rates are None for a link without a limit, and for computing.
    """

    link: Link
    direction: Literal["down", "up", "compute"]
    child: str
    transfers: NonNegativeInt
    bytes: NonNegativeInt
    bits_per_s: NonNegativeInt | None
    achieved_bits_per_s: NonNegativeInt | None
    latency_s: Amount
    achieved_latency_s: Amount
    outside: str | None


LINK_ROWS = Table(LinkRow)


@dataclass(kw_only=True)
class LinkSum:
    """All that a link has carried in one direction, or a device computed."""

    link: str
    direction: str
    child: int
    transfers: int = 0
    bytes: int = 0
    link_ns: int = 0
    achieved_link_ns: int = 0
    latency_ns: int = 0
    achieved_latency_ns: int = 0

    def add(self, carried: pb.Carried) -> None:
        """Add one transfer."""
        self.transfers += 1
        self.bytes += carried.bytes
        self.link_ns += carried.link_ns
        self.achieved_link_ns += carried.achieved_link_ns
        self.latency_ns += carried.latency_ns
        self.achieved_latency_ns += carried.achieved_latency_ns

    @property
    def outside(self) -> list[str]:
        """What differs by more than it may from what was configured: nothing where nothing was."""
        found = []
        if self.link_ns and self._is_off(self.link_ns, self.achieved_link_ns):
            found.append("compute" if self.direction == "compute" else "rate")
        if (self.link_ns or self.latency_ns) and self._is_off(self.latency_ns, self.achieved_latency_ns):
            found.append("latency")
        return found

    def _is_off(self, configured_ns: int, achieved_ns: int) -> bool:
        return abs(achieved_ns - configured_ns) > max(WITHIN * configured_ns, WITHIN_NS * self.transfers)

    def cells(self, name: str) -> list[object]:
        """The row of links.csv, with the child's name."""
        is_link = self.direction != "compute"
        configured, achieved = (
            (self.latency_ns, self.achieved_latency_ns) if is_link else (self.link_ns, self.achieved_link_ns)
        )
        rates = [_rate(self.bytes, took_ns) if is_link and self.link_ns else "" for took_ns in self._link_times]
        means = [f"{took_ns / self.transfers / 1e9:.6f}" for took_ns in (configured, achieved)]
        return [self.link, self.direction, name, self.transfers, self.bytes, *rates, *means, " ".join(self.outside)]

    @property
    def _link_times(self) -> tuple[int, int]:
        return self.link_ns, self.achieved_link_ns


def _rate(size: int, took_ns: int) -> str:
    return str(round(float(f"{8e9 * size / max(1, took_ns):.6g}")))  # times are whole nanoseconds, which rates show


def link_sums(rounds: Iterable[Iterable[pb.Carried]]) -> list[LinkSum]:
    """What each link has carried in each direction, in the order of links, directions and children."""
    sums: dict[tuple[str, str, int], LinkSum] = {}
    for carried in rounds:
        for each in carried:
            key = (each.link, each.direction, each.child)
            sums.setdefault(key, LinkSum(link=each.link, direction=each.direction, child=each.child)).add(each)
    return [sums[key] for key in sorted(sums)]


def links_csv(sums: Iterable[LinkSum], device_ids: Sequence[str]) -> Iterator[str]:
    """Return the lines of links.csv."""
    return LINK_ROWS.lines(
        each.cells(f"lps-{each.child}" if each.link == "lps-gps" else device_ids[each.child]) for each in sums
    )


def real_summary(sums: Sequence[LinkSum]) -> Real:
    """Return how many links and devices there are to a direction, and how many were outside."""
    return Real(links=len(sums), outside=sum(bool(each.outside) for each in sums))
