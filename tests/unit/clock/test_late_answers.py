"""Deadlines of LPS rounds in which devices are asked, on the virtual clock: of answers, and then of updates."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import PayloadError
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Moment, Question
from fedstrata.rpc.answer_messages import answer_to_proto
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.lps_rounds import NAMES, LpsRounds, header_of
from tests.support.rounds_setting import asking

MS, S = 10**6, 10**9
# a byte takes a millisecond, of device-001 four; answers and updates have two seconds each
TEXT = """
name: asked
partition: {kind: iid, devices: 3, examples_per_device: 10}
method: {name: ifca, clusters: 2}
topology: {lps: 1}
clock: virtual
deadlines: {lps: {deadline_s: 2, quorum_ratio: 0.3}}
links: {device-lps: {up_rate: 8kbit/s}, overrides: [{devices: [1], up_rate: 2kbit/s}]}
"""
QUESTION = Question(name="losses", moment=Moment.RECEIVED, arrays={"losses": ("float64", (1000,))})
ANSWER = answer_to_proto(QUESTION, {"losses": np.zeros(100)})
ANSWER_NS = ANSWER.ByteSize() * MS  # of the fast ones


class AskedRound(LpsRounds):
    """One LPS round."""

    def __init__(self, busy_ns: int = 0, *overrides: str) -> None:
        super().__init__(parse_experiment(TEXT, overrides=overrides), {0: busy_ns} if busy_ns else None)
        self.open(0, question=QUESTION)

    def ask(self) -> int:
        """Have all answer who are asked; gives when the last answer was there."""
        for name in self.opened.intake.missing:
            self.asking.keep(name, ANSWER)
        answers = self.asking.answers
        there = {name: Exchanged.of_answer(answers[name]) for name in self.opened.intake.missing}
        return self.clock.answered_ns(lambda: there)

    def train(self, sizes: Sequence[int]) -> list[str]:
        """Have those go on at 5 s who are in it, with updates of so many bytes; gives who was in time."""
        self.clock.go_on(0, 5 * S)
        for name, size in zip(NAMES, sizes, strict=True):
            if name in self.opened.intake.missing:
                self.take(header_of(name, size, pb.Work(answer_bytes=ANSWER.ByteSize())))
        self.close()
        return list(self.taken)


def test_who_answers_late_is_left_out_and_the_round_waits_for_its_update_no_more() -> None:
    asked = AskedRound()
    assert asked.ask() == 2 * S  # somebody is late, and nobody knows before
    assert asked.opened.intake.missing == ("device-000", "device-002")
    assert asked.train([1_000, 1_000, 1_000]) == ["device-000", "device-002"]
    times = asked.report.lps_rounds[-1].times
    assert times.ends_ns == 6 * S
    assert dict(asked.report.busy_ns) == {1: 4 * ANSWER_NS}
    (late,) = times.late
    assert (late.child, late.up_bytes, late.answer_bytes) == (1, 0, ANSWER.ByteSize())
    assert (late.down_ns, late.compute_ns, late.up_ns) == (0, 0, 4 * ANSWER_NS)


def test_updates_have_the_deadline_from_when_the_round_goes_on() -> None:
    asked = AskedRound()
    asked.ask()
    assert asked.train([2_000, 0, 2_001]) == ["device-000"]
    assert asked.report.now_ns == 7 * S
    assert dict(asked.report.busy_ns) == {1: 4 * ANSWER_NS, 2: 7_001 * MS}
    assert [flow.child for flow in asked.report.lps_rounds[-1].times.late] == [1, 2]
    # the wait for the plan is nobody's way: device-002 answered, and sent for two seconds and a millisecond
    assert asked.report.lps_rounds[-1].times.late[1].up_ns == ANSWER_NS + 2_001 * MS


def test_where_all_answer_in_time_the_round_is_that_without_a_deadline() -> None:
    fast = ("links.overrides=[]",)
    asked, calm = AskedRound(0, *fast), AskedRound(0, *fast, "deadlines.lps.deadline_s=null")
    assert asked.ask() == calm.ask() == ANSWER_NS
    assert asked.train([1_000, 500, 2_000]) == calm.train([1_000, 500, 2_000])
    assert asked.report == calm.report


def test_who_is_busy_for_as_long_as_answers_are_waited_for_is_not_asked() -> None:
    asked = AskedRound(2 * S, "links.overrides=[]")
    assert asked.opened.intake.missing == ("device-001", "device-002")
    assert asked.ask() == 2 * S
    assert asked.train([500, 500, 500]) == ["device-001", "device-002"]
    assert asked.report.now_ns == 5_500 * MS


def test_an_lps_that_is_back_once_the_plan_is_made_leaves_the_same_devices_out() -> None:
    first, again = AskedRound(), AskedRound()
    first.ask()
    late = first.deadline.late_flows
    again.asking.restore(late)  # it asks nobody
    assert again.opened.intake.missing == ("device-000", "device-002")
    assert again.train([1_000, 1_000, 3_000]) == first.train([1_000, 1_000, 3_000]) == ["device-000"]
    assert again.report == first.report


@pytest.mark.parametrize("examples", [-1, 2**40])
def test_examples_that_nobody_has_are_not_trained_on_for_an_answer(examples: int) -> None:
    answer = answer_to_proto(QUESTION, {"losses": np.zeros(1)})
    answer.trained_examples = examples
    with pytest.raises(PayloadError, match=f"device-000 reports training on {examples} examples for its answer"):
        asking(QUESTION).check_answer("device-000", answer)


def test_who_would_be_late_by_more_than_the_clock_holds_is_refused() -> None:
    asked = AskedRound(0, "compute={per_example: 1h}")
    answer = answer_to_proto(QUESTION, {"losses": np.zeros(1)})
    answer.trained_examples = 2**30
    with pytest.raises(PayloadError, match="takes more than 73 years of the virtual clock"):
        asked.asking.keep("device-000", answer)
    asked.clock.go_on(0, 5 * S)
    with pytest.raises(PayloadError, match="takes more than 73 years of the virtual clock"):
        asked.is_in_time(pb.UpdateHeader(child_id="device-000", work=pb.Work(examples=2**30)))


def test_an_update_whose_answer_would_have_taken_longer_than_the_clock_holds_is_refused() -> None:
    asked = AskedRound(0, "compute={per_example: 1h}")
    asked.clock.go_on(0, 5 * S)  # what it trained on for its answer changes nothing of when its update is there
    work = pb.Work(examples=2**30, answer_examples=2**30)
    with pytest.raises(PayloadError, match="takes more than 73 years of the virtual clock"):
        asked.is_in_time(pb.UpdateHeader(child_id="device-000", work=work))
