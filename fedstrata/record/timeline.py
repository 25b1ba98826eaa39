"""The virtual clock in the record: timeline.csv, flows.csv that it follows from, and `virtual` of summary.json."""

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
    """Seconds of a tier's rounds: the model's way down, computing, the update's way up, waiting for the slowest."""

    down: Amount
    compute: Amount
    up: Amount
    waiting: Amount

    @property
    def total(self) -> float:
        return self.down + self.compute + self.up + self.waiting


PARTS = tuple(part.name for part in fields(Parts))


@checked_dataclass(frozen=True, kw_only=True)
class Virtual:
    """`virtual` of summary.json; `timeline_sha256` is of timeline.csv."""

    seconds: Amount
    before: Parts
    gps: Parts
    lps: Parts
    timeline_sha256: str


@checked_dataclass(frozen=True, kw_only=True)
class TimelineRow(OfRound):
    """The questions before training, an LPS round or a global round; parts are means over the children."""

    begins_s: Amount
    ends_s: Amount
    ready_s: Amount
    down_s: Amount
    compute_s: Amount
    up_s: Amount
    waiting_s: Amount
    slowest: str | None


TIMELINE = Table(TimelineRow)


@checked_dataclass(frozen=True, kw_only=True)
class FlowRow(OfRound):
    """What went between a parent and one child in a round, or for a question before training."""

    child: NonNegativeInt
    down_bytes: Count
    up_bytes: Count
    examples: Count
    stream: Count
    answer_bytes: Count
    answer_examples: Count

    def exchanged(self, busy_ns: int = 0) -> Exchanged:
        """Return the row as a timeline takes it."""
        work = pb.Work(
            examples=self.examples,
            busy_ns=busy_ns,
            answer_bytes=self.answer_bytes,
            answer_examples=self.answer_examples,
        )
        return Exchanged(down_bytes=self.down_bytes, up_bytes=self.up_bytes, work=work, stream=self.stream)


FLOWS = Table(FlowRow)
OF_A_FLOW = FLOWS.columns[FLOWS.columns.index("child") :]  # columns called as the fields of pb.Flow


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """What the GPS has worked out: the questions, from zero on, and the global rounds, from where training begins."""

    before: pb.RoundTimes = field(default_factory=pb.RoundTimes)
    global_rounds: Mapping[int, pb.RoundTimes] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)  # what `before` was worked out from, by question


def timeline_csv(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[str]:
    """Return the lines of timeline.csv: questions, LPS rounds, global rounds."""
    return TIMELINE.lines(_timeline(rows, times))


def _timeline(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[tuple[object, ...]]:
    since_ns = times.before.ends_ns
    yield *BEFORE, *_cells(times.before, 0)
    for row in rows:
        yield *of_lps_round(row), *_cells(row.times, since_ns)
    for global_round, closed in sorted(times.global_rounds.items()):
        yield *of_global_round(global_round), *_cells(closed, since_ns)


def flows_csv(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[str]:
    """Return the lines of flows.csv.

    Before training `lps_id` is the question's name. After the last global round each LPS has a row for the final model.
    """
    return FLOWS.lines(_flows(rows, times))


def _flows(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[tuple[object, ...]]:
    for name, question in times.asked.items():
        for index, size in sorted(question.answer_bytes.items()):
            yield *BEFORE[:3], name, index, 0, size, question.examples[index], 0, 0, 0
    last: dict[str, int] = {}
    for row in rows:
        last[row.cluster_id] = row.times.next_bytes
        yield from _flows_of(of_lps_round(row), row.times)
    for global_round, closed in sorted(times.global_rounds.items()):
        yield from _flows_of(of_global_round(global_round), closed)
    following = of_global_round(max(times.global_rounds, default=-1) + 1)
    for cluster_id, size in last.items():
        yield *following, int(cluster_id.rpartition("-")[2]), size, 0, 0, 0, 0, 0


def _flows_of(of: Sequence[object], times: pb.RoundTimes) -> Iterator[tuple[object, ...]]:
    for flow in times.flows:
        yield *of, *(getattr(flow, name) for name in OF_A_FLOW)


def virtual_summary(rows: Iterable[pb.LpsRound], times: RunTimes) -> Virtual:
    """Return how long the run took, and the parts of it at each tier."""
    by_lps: dict[str, list[int]] = {}
    last_ns = max((closed.ends_ns for closed in times.global_rounds.values()), default=0)
    for row in rows:
        sums = by_lps.get(row.cluster_id, [0] * len(PARTS))
        by_lps[row.cluster_id] = [a + b for a, b in zip(sums, _means(row.times), strict=True)]
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
    """Return the columns from begins_s on, of a round whose times count from another time on."""
    whole = [as_seconds(since_ns + at_ns) for at_ns in (times.begins_ns, times.ends_ns, times.ready_ns)]
    return [*whole, *(as_seconds(mean) for mean in _means(times)), times.slowest]


def _means(times: pb.RoundTimes) -> list[int]:
    """Return each part's mean over the children, in nanoseconds."""
    return [round(getattr(times, f"{part}_ns") / max(1, times.children)) for part in PARTS]


def _summed(rounds: Iterable[pb.RoundTimes]) -> Parts:
    """Return the parts summed over rounds one after the other."""
    return _named(sum(part) / 1e9 for part in zip(*(_means(times) for times in rounds), strict=True))


def _named(seconds: Iterable[float]) -> Parts:
    """Return seconds in the order of the parts; 0 if there are none."""
    return Parts(**dict(zip(PARTS, [*seconds] or [0.0] * len(PARTS), strict=True)))
