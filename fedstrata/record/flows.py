"""flows.csv: what went between parents and children in each round, from which timeline.csv was worked out."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import Field, NonNegativeInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.clock.round import Exchanged
from fedstrata.record.tables import BEFORE, OfRound, Table, of_global_round, of_lps_round
from fedstrata.record.timeline import RunTimes
from fedstrata.v1 import rounds_pb2 as pb

Count = Annotated[NonNegativeInt, Field(lt=1 << 53)]


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
