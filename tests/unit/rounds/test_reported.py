"""Numbers that children report: none so large that a sum of them is no number any more."""

import math
from typing import Any

import pytest

from fedstrata.errors import PayloadError
from fedstrata.rounds.parent.report_checks import (
    HeldOut,
    check_evaluation,
    check_link_bytes,
    check_lps_rounds,
    check_notes,
)
from fedstrata.tasks import CLASSIFICATION
from fedstrata.v1 import rounds_pb2 as pb

TERMS: Any = {"rounds_per_global": 2, "held_out": 1200, "task": CLASSIFICATION}


def row(**changed: Any) -> pb.LpsRound:
    fields = {"lps_round": 5, "global_round": 2, "devices": 2, "seconds": 0.5, "train_loss": 2.3}
    return pb.LpsRound(**{**fields, **changed})


def test_a_loss_beyond_what_float32_holds_is_refused() -> None:
    with pytest.raises(PayloadError, match="a reports a training loss of"):
        check_notes(pb.UpdateHeader(child_id="a", train_loss=1e40))
    with pytest.raises(PayloadError, match="'a' measured a loss of"):
        check_evaluation(pb.Evaluation(device_id="a", loss_sum=1e40, num_examples=1))
    with pytest.raises(PayloadError, match="reported with train_loss"):
        check_lps_rounds([row(train_loss=1e40)], **TERMS)


def test_a_loss_as_large_as_float32_has_it_is_taken_of_each_example() -> None:
    check_notes(pb.UpdateHeader(child_id="a", train_loss=3.4e38))
    check_evaluation(pb.Evaluation(device_id="a", loss_sum=3.4e38 * 600, num_examples=600))
    largest = row(train_loss=3.4e38, loss_sum=3.4e38 * 1200, evaluated_examples=1200, sums=[0])
    check_lps_rounds([largest], **TERMS)


@pytest.mark.parametrize(
    "changed",
    [
        {"lps_round": -1, "global_round": -1},
        {"lps_round": 2**62},
        {"global_round": 2**62},
        {"devices": -1},
        {"num_examples": 2**63 - 1},
        {"bytes_up": 2**63 - 1},
        {"bytes_down": -1},
        {"evaluated_examples": 2**62},
        {"evaluated_examples": 1201},
        {"sums": [3], "evaluated_examples": 2},
        {"sums": [1.5], "evaluated_examples": 2},
        {"sums": [1, 1], "evaluated_examples": 2},
        {"evaluated_examples": 2},
        {"sums": [1]},
        {"loss_sum": 1e42, "evaluated_examples": 2, "sums": [0]},
        {"received_sums": [-1]},
        {"received_examples": 2**53},
        {"times": pb.RoundTimes(waiting_ns=-1)},
        {"lowest": 0.5, "highest": 0.4},
        {"lowest": -0.1, "highest": 0.4},
        {"lowest": 0.5, "highest": 1.1},
        {"lowest": 0.5},
        {"highest": 0.5},
        {"seconds": -0.1},
        {"seconds": 1e10},
    ],
)
def test_rows_that_cannot_be_are_refused(changed: dict[str, Any]) -> None:
    check_lps_rounds([row()], **TERMS)
    with pytest.raises(PayloadError, match="LPS round"):
        check_lps_rounds([row(), row(**changed)], **TERMS)


@pytest.mark.parametrize("count", [-1, 2**53, 2**63 - 1])
def test_counts_of_bytes_that_cannot_be_are_refused(count: int) -> None:
    check_link_bytes([pb.LinkBytes(bytes=2**53 - 1)])
    with pytest.raises(PayloadError, match=f"{count} bytes are reported"):
        check_link_bytes([pb.LinkBytes(bytes=1), pb.LinkBytes(bytes=count)])


def test_work_is_said_where_there_is_a_virtual_clock_and_only_there() -> None:
    check_notes(pb.UpdateHeader(child_id="a", work=pb.Work(examples=3)), has_work=True)
    with pytest.raises(PayloadError, match="a does not state its work"):
        check_notes(pb.UpdateHeader(child_id="a"), has_work=True)
    with pytest.raises(PayloadError, match="a states its work"):
        check_notes(pb.UpdateHeader(child_id="a", work=pb.Work()))
    for work in (pb.Work(examples=-1), pb.Work(examples=2**62), pb.Work(busy_ns=-1), pb.Work(busy_ns=2**62)):
        with pytest.raises(PayloadError, match="a reports impossible work"):
            check_notes(pb.UpdateHeader(child_id="a", work=work), has_work=True)


@pytest.mark.parametrize("size", [-1, (1 << 20) + (64 << 10) + 1])
def test_an_answer_of_more_bytes_than_a_message_has_is_not_believed(size: int) -> None:
    with pytest.raises(PayloadError, match=f"a reports an answer of {size} bytes"):
        check_notes(pb.UpdateHeader(child_id="a", work=pb.Work(answer_bytes=size)), has_work=True)


@pytest.mark.parametrize("name", ["begins_ns", "ends_ns", "ready_ns"])
def test_times_that_are_none_are_refused(name: str) -> None:
    for number in (-1, 2**62):
        with pytest.raises(PayloadError, match="reported with an impossible time"):
            check_lps_rounds([row(times=pb.RoundTimes(**{name: number}))], **TERMS)


@pytest.mark.parametrize("sums", [[-1.0], [3.0], [0.5], [math.nan], [math.inf], [1.0, 1.0], []])
def test_sums_that_a_task_cannot_have_are_refused_of_either_model(sums: list[float]) -> None:
    held_out = HeldOut(examples={"a": 2}, task=CLASSIFICATION)
    held_out.check(pb.Evaluation(device_id="a", num_examples=2, sums=[2], has_received=True, received_sums=[0]))
    with pytest.raises(PayloadError, match=r"'a' (measured correct|reports . sums)"):
        held_out.check(pb.Evaluation(device_id="a", num_examples=2, sums=sums))
    with pytest.raises(PayloadError, match=r"'a' (measured correct|reports . sums)"):
        held_out.check(pb.Evaluation(device_id="a", num_examples=2, sums=[1], has_received=True, received_sums=sums))
    with pytest.raises(PayloadError, match=r"'a' reports .* which it has not measured"):
        held_out.check(pb.Evaluation(device_id="a", num_examples=2, sums=[1], received_sums=[1]))


@pytest.mark.parametrize("examples", [-1, 1 << 40])
def test_a_device_measures_on_a_possible_number_of_examples(examples: int) -> None:
    with pytest.raises(PayloadError, match=f"'a' measured on {examples} examples"):
        check_evaluation(pb.Evaluation(device_id="a", num_examples=examples))
