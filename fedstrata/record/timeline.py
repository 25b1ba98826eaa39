"""The virtual clock in the record: timeline.csv, flows.csv and the key `virtual` of summary.json. flows.csv has the
bytes from which the times are calculated.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated

from pydantic import Field, NonNegativeInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import Asked
from fedstrata.record.tables import BEFORE, Amount, OfRound, Table, as_seconds, of_global_round, of_lps_round
from fedstrata.v1 import rounds_pb2 as pb

Count = Annotated[NonNegativeInt, Field(lt=1 << 53)]


@checked_dataclass(frozen=True, kw_only=True)
class Parts:
    """Hold how many seconds the rounds of a tier took in total, divided into four parts. For each round, the seconds of
    a part are the mean over the children.
    """

    down: Amount
    """Seconds in which models went down."""
    compute: Amount
    """Seconds of computing. For the GPS, the computing of an LPS is the time of its LPS rounds."""
    up: Amount
    """Seconds in which updates went up."""
    waiting: Amount
    """Seconds in which children waited for the slowest child."""

    @property
    def total(self) -> float:
        return self.down + self.compute + self.up + self.waiting


PARTS = tuple(part.name for part in fields(Parts))


@checked_dataclass(frozen=True, kw_only=True)
class Virtual:
    """Hold the times of a run on the virtual clock: the key `virtual` of summary.json."""

    seconds: Amount
    """Virtual seconds from the first question until the last final model has arrived."""
    before: Parts
    """Seconds of the questions before training, by part."""
    gps: Parts
    """Seconds of the global rounds, by part."""
    lps: Parts
    """Seconds of the LPS rounds, by part, as mean over the LPSs."""
    timeline_sha256: str
    """SHA-256 of `timeline.csv`."""


@checked_dataclass(frozen=True, kw_only=True)
class TimelineRow(OfRound):
    """Hold one row of timeline.csv: the times of an LPS round, a global round, or the questions before training."""

    begins_s: Amount
    """Virtual second at which the parent has the model of the round."""
    ends_s: Amount
    """Virtual second at which the parent has the update of the last child."""
    ready_s: Amount
    """Virtual second at which the parent has the model that the round produced. For the last LPS round of a global
    round, this is the time at which the next model arrives from the GPS. For all other rounds it is `ends_s`. The
    accuracy of the round's model in rounds.csv belongs to this time.
    """
    down_s: Amount
    """Seconds for which the model went down, mean over the children."""
    compute_s: Amount
    """Seconds of computing, mean over the children. For the GPS, the computing of an LPS is the time of its LPS rounds.
    """
    up_s: Amount
    """Seconds for which the update went up, mean over the children."""
    waiting_s: Amount
    """Seconds of waiting for slower children, mean over the children. The four parts add up to the duration of the
    round.
    """
    slowest: str | None
    """Child that sent the last update: a device or a cluster."""


TIMELINE = Table(TimelineRow)


@checked_dataclass(frozen=True, kw_only=True)
class FlowRow(OfRound):
    """Hold one row of flows.csv: the transfers between a parent and a child in a round, or for a question before
    training.
    """

    child: NonNegativeInt
    """Index of a device, or number of an LPS."""
    down_bytes: Count
    """Bytes of the transfer down; 0 if there was none."""
    up_bytes: Count
    """Bytes of the transfer up; 0 if there was none."""
    examples: Count
    """Number of examples on which the device trained in the round, with repetitions."""
    stream: Count
    """Number of the model that the child received, among the models of the round."""
    answer_bytes: Count
    """Bytes of the device's answer, if it was asked in the round."""
    answer_examples: Count
    """Part of `examples` on which the device trained before it answered."""

    def exchanged(self, busy_ns: int = 0) -> Exchanged:
        """Return the row's transfers and the child's work as an `Exchanged` object. The time for which the child was
        busy is not in the row, so the caller gives it as `busy_ns`.
        """
        work = pb.Work(
            examples=self.examples,
            busy_ns=busy_ns,
            answer_bytes=self.answer_bytes,
            answer_examples=self.answer_examples,
        )
        return Exchanged(down_bytes=self.down_bytes, up_bytes=self.up_bytes, work=work, stream=self.stream)


FLOWS = Table(FlowRow)
OF_A_FLOW = FLOWS.columns[FLOWS.columns.index("child") :]  # columns with the names of the fields of pb.Flow


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """Hold the times that the GPS knows. Times of questions are relative to the first question, and times of global
    rounds to the beginning of training.
    """

    before: pb.RoundTimes = field(default_factory=pb.RoundTimes)
    global_rounds: Mapping[int, pb.RoundTimes] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)  # by question: sizes from which `before` was calculated


def timeline_csv(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[str]:
    """Yield the lines of timeline.csv: first the questions, then all LPS rounds, then all global rounds."""
    return TIMELINE.lines(_timeline(rows, times))


def _timeline(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[tuple[object, ...]]:
    since_ns = times.before.ends_ns
    yield *BEFORE, *_cells(times.before, 0)
    for row in rows:
        yield *of_lps_round(row), *_cells(row.times, since_ns)
    for global_round, closed in sorted(times.global_rounds.items()):
        yield *of_global_round(global_round), *_cells(closed, since_ns)


def flows_csv(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[str]:
    """Yield the lines of flows.csv.

    In rows before training, `lps_id` is the question's name. After the last global round, each LPS has a row for the
    transfer of its final model.
    """
    return FLOWS.lines(_flows(rows, times))


def _flows(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[tuple[object, ...]]:
    for name, question in times.asked.items():
        for index, size in sorted(question.answer_bytes.items()):
            yield *BEFORE[:3], name, index, 0, size, question.examples[index], 0, 0, 0
    last: dict[str, int] = {}
    for row in rows:
        last[row.home_id] = row.times.next_bytes
        yield from _flows_of(of_lps_round(row), row.times)
    for global_round, closed in sorted(times.global_rounds.items()):
        yield from _flows_of(of_global_round(global_round), closed)
    following = of_global_round(max(times.global_rounds, default=-1) + 1)
    for home_id, size in last.items():
        yield *following, int(home_id.rpartition("-")[2]), size, 0, 0, 0, 0, 0


def _flows_of(of: Sequence[object], times: pb.RoundTimes) -> Iterator[tuple[object, ...]]:
    for flow in times.flows:
        yield *of, *(getattr(flow, name) for name in OF_A_FLOW)


def virtual_summary(rows: Iterable[pb.LpsRound], times: RunTimes) -> Virtual:
    """Return the key `virtual` of summary.json: the duration of the run, and its parts at each tier."""
    by_lps: dict[str, list[int]] = {}
    last_ns = max((closed.ends_ns for closed in times.global_rounds.values()), default=0)
    for row in rows:
        sums = by_lps.get(row.home_id, [0] * len(PARTS))
        by_lps[row.home_id] = [a + b for a, b in zip(sums, _means(row.times), strict=True)]
        last_ns = max(last_ns, row.times.ready_ns)
    seconds = zip(*([part_ns / 1e9 for part_ns in sums] for sums in by_lps.values()), strict=True)
    digest = hashlib.sha256()
    for line in timeline_csv(rows, times):
        digest.update(line.encode())
    return Virtual(
        seconds=(times.before.ends_ns + last_ns) / 1e9,
        before=_summed([times.before]),
        gps=_summed(times.global_rounds.values()),
        lps=_named(round(sum(part) / len(by_lps), 9) for part in seconds),
        timeline_sha256=digest.hexdigest(),
    )


def _cells(times: pb.RoundTimes, since_ns: int) -> list[str]:
    """Return the values of a row from the column `begins_s` on. The times in `times` count from `since_ns`, and the
    times in the row from 0.
    """
    whole = [as_seconds(since_ns + at_ns) for at_ns in (times.begins_ns, times.ends_ns, times.ready_ns)]
    return [*whole, *(as_seconds(mean) for mean in _means(times)), times.slowest]


def _means(times: pb.RoundTimes) -> list[int]:
    """Return, for each part in `PARTS`, the mean time over the children of a round, in nanoseconds."""
    return [round(getattr(times, f"{part}_ns") / max(1, times.children)) for part in PARTS]


def _summed(rounds: Iterable[pb.RoundTimes]) -> Parts:
    """Return how long each part took in all these rounds together. Each round adds, for each part, the mean over the
    round's children.
    """
    return _named(sum(part) / 1e9 for part in zip(*(_means(times) for times in rounds), strict=True))


def _named(seconds: Iterable[float]) -> Parts:
    """Return a `Parts` object from seconds in the order of `PARTS`. If there are no seconds, all parts are 0."""
    return Parts(**dict(zip(PARTS, [*seconds] or [0.0] * len(PARTS), strict=True)))
