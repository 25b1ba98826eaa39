"""waits.csv of the record: who waited for whom, each child's four parts of each round, on either clock."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedstrata.v1 import rounds_pb2 as pb
from gps.record.csv_lines import csv_lines
from gps.record.timeline_record import PARTS, RunTimes, as_seconds

WAIT_COLUMNS = ("tier", "global_round", "lps_round", "lps_id", "child", *(f"{part}_s" for part in PARTS))


@dataclass(kw_only=True)
class _Took:
    """How long a child was about each part of a round, in nanoseconds."""

    down_ns: int = 0
    compute_ns: int = 0
    up_ns: int = 0

    @property
    def all_ns(self) -> int:
        return self.down_ns + self.compute_ns + self.up_ns

    def cells(self, round_ns: int) -> list[str]:
        """The parts, and the rest of the round as waiting."""
        parts = (self.down_ns, self.compute_ns, self.up_ns, max(0, round_ns - self.all_ns))
        return [as_seconds(part) for part in parts]


def waits_csv(rows: Iterable[pb.LpsRound], times: RunTimes, device_ids: Sequence[str]) -> Iterator[str]:
    """waits.csv: a line for each child in each round, of LPS rounds the devices, of global rounds the LPSs."""
    return csv_lines(WAIT_COLUMNS, _waits(rows, times, device_ids))


def _waits(rows: Iterable[pb.LpsRound], times: RunTimes, device_ids: Sequence[str]) -> Iterator[list[object]]:
    seconds: dict[tuple[int, str], float] = {}  # by global round and LPS, of its LPS rounds
    for row in rows:
        round_ns = round(row.seconds * 1e9) if row.times.carried else row.times.ends_ns - row.times.begins_ns
        lps = (row.global_round, row.cluster_id)
        seconds[lps] = seconds.get(lps, 0.0) + row.seconds
        for child, took in _of_children(row.times, row.times.carried):
            of = ["lps", row.global_round + 1, row.lps_round + 1, row.cluster_id, device_ids[child]]
            yield [*of, *took.cells(round_ns)]
    for global_round, closed in sorted(times.global_rounds.items()):
        for child, took, round_ns in _of_lpss(global_round, closed, seconds):
            yield ["gps", global_round + 1, "", "", f"lps-{child}", *took.cells(round_ns)]


def _of_children(times: pb.RoundTimes, carried: Iterable[pb.Carried]) -> list[tuple[int, _Took]]:
    """By number each child's parts: as the virtual clock has worked them out, or as the real one has measured them."""
    found = {
        flow.child: _Took(down_ns=flow.down_ns, compute_ns=flow.compute_ns, up_ns=flow.up_ns) for flow in times.flows
    }
    for each in carried:
        took, part = found.setdefault(each.child, _Took()), f"{each.direction}_ns"
        setattr(took, part, getattr(took, part) + each.achieved_link_ns + each.achieved_latency_ns)
    return sorted(found.items())


def _of_lpss(
    global_round: int, closed: pb.RoundTimes, seconds: Mapping[tuple[int, str], float]
) -> Iterator[tuple[int, _Took, int]]:
    """The LPSs in a global round, and how long it was; on the real clock an LPS computes as long as its LPS rounds, in
    which its devices' answers go up, where they are asked."""
    found = _of_children(closed, (each for each in closed.carried if not each.is_answer))
    round_ns = closed.ends_ns - closed.begins_ns
    if closed.carried:
        for child, took in found:
            took.compute_ns = round(seconds.get((global_round, f"lps-{child}"), 0.0) * 1e9)
        round_ns = max(took.all_ns for _, took in found)
    for child, took in found:
        yield child, took, round_ns
