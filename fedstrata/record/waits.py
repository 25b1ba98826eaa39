"""The table waits.csv: how long each child received, computed, sent and waited in each round, and on how many examples
it trained. The times are calculated on the virtual clock, and measured on the real clock.

The table shows which child was slow: the slowest child of a round waits least, and the other children wait for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.clock.exchanged import took_ns
from fedstrata.record.links import with_update
from fedstrata.record.tables import Amount, OfRound, Table, as_seconds, of_global_round, of_lps_round
from fedstrata.record.timeline import PARTS, Count, RunTimes
from fedstrata.v1 import rounds_pb2 as pb


@checked_dataclass(frozen=True, kw_only=True)
class WaitRow(OfRound):
    """Hold one row of waits.csv: how long one child spent in each part of a round."""

    tier: Literal["lps", "gps"]
    """`lps`: an LPS round; `gps`: a global round."""
    global_round: PositiveInt
    """Global round, counted from 1."""
    child: str
    """Device in rows of LPS rounds, LPS in rows of global rounds."""
    down_s: Amount
    """Seconds for which the model went down, with latency. On the virtual clock, this part also contains the time until
    an absent device is back, or a busy device is free.
    """
    compute_s: Amount
    """Seconds of computing. For the GPS, the computing of an LPS is the time of its LPS rounds, including the answers
    of its devices to a question.
    """
    up_s: Amount
    """Seconds for which the update went up, with latency."""
    waiting_s: Amount
    """Seconds for which the child waited for slower children: the rest of the round. On the real clock, a global round
    ends with its slowest LPS.
    """
    examples: Count | None
    """Number of examples on which the device trained in the round, with repetitions. Empty in rows of global rounds.
    """

    @property
    def parts(self) -> list[tuple[str, float]]:
        """The parts of the round in the order of time, each with its seconds."""
        return [(part, getattr(self, f"{part}_s")) for part in PARTS]

    @property
    def busy_s(self) -> float:
        """Seconds in which the child received, computed and sent, so without waiting."""
        return self.down_s + self.compute_s + self.up_s


WAITS = Table(WaitRow, later=["examples"])


@dataclass(kw_only=True)
class _Took:
    """Hold how long a child took for each part of a round, in nanoseconds, and on how many examples it trained."""

    down_ns: int = 0
    compute_ns: int = 0
    up_ns: int = 0
    examples: int = 0

    @property
    def all_ns(self) -> int:
        return self.down_ns + self.compute_ns + self.up_ns

    def cells(self, round_ns: int) -> list[str]:
        """Return the seconds of the four parts as texts. The fourth part, waiting, is the round's duration minus the
        other three parts.
        """
        parts = (self.down_ns, self.compute_ns, self.up_ns, max(0, round_ns - self.all_ns))
        return [as_seconds(part) for part in parts]


def waits_csv(rows: Iterable[pb.LpsRound], times: RunTimes, device_ids: Sequence[str]) -> Iterator[str]:
    """Return the lines of waits.csv."""
    return WAITS.lines(_waits(rows, times, device_ids))


def _waits(rows: Iterable[pb.LpsRound], times: RunTimes, device_ids: Sequence[str]) -> Iterator[tuple[object, ...]]:
    seconds: dict[tuple[int, str], float] = {}  # duration of all LPS rounds, by global round and LPS
    for row in rows:
        round_ns = round(row.seconds * 1e9) if row.times.carried else row.times.ends_ns - row.times.begins_ns
        asked = {each.child: row.times.ends_ns - each.asked_ns for each in row.times.contributions}
        lps = (row.global_round, row.home_id)
        seconds[lps] = seconds.get(lps, 0.0) + row.seconds
        for child, took in _of_children(row.times, row.times.carried):
            yield *of_lps_round(row), device_ids[child], *took.cells(asked.get(child, round_ns)), took.examples
    for global_round, closed in sorted(times.global_rounds.items()):
        for child, took, round_ns in _of_lpss(global_round, closed, seconds):
            yield *of_global_round(global_round), f"lps-{child}", *took.cells(round_ns), ""


def _of_children(times: pb.RoundTimes, carried: Sequence[pb.Carried]) -> list[tuple[int, _Took]]:
    """Return pairs, sorted by child: the number of a child with an update, and how long it spent in each part of a
    round. `carried` has the measured times on the real clock. On the virtual clock, the times are calculated.
    """
    in_time = with_update(carried)
    found = {
        flow.child: _Took(down_ns=flow.down_ns, compute_ns=flow.compute_ns, up_ns=flow.up_ns, examples=flow.examples)
        for flow in times.flows
    }
    for each in (each for each in carried if each.child in in_time):
        took, part = found.setdefault(each.child, _Took()), f"{each.direction}_ns"
        setattr(took, part, getattr(took, part) + took_ns(each))
        took.examples += each.examples
    return sorted(found.items())


def _of_lpss(
    global_round: int, closed: pb.RoundTimes, seconds: Mapping[tuple[int, str], float]
) -> Iterator[tuple[int, _Took, int]]:
    """Yield, for each LPS in a global round: its number, how long it spent in each part, and the round's duration.

    On the real clock, the part `compute` of an LPS is the duration of its LPS rounds. It includes the time in which its
    devices answer a question.
    """
    found = _of_children(closed, [each for each in closed.carried if not each.is_answer])
    round_ns = closed.ends_ns - closed.begins_ns
    if closed.carried:
        for child, took in found:
            took.compute_ns = round(seconds.get((global_round, f"lps-{child}"), 0.0) * 1e9)
        round_ns = max((took.all_ns for _, took in found), default=0)
    for child, took in found:
        yield child, took, round_ns
