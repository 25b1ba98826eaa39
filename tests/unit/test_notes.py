"""Numbers that children report: none so large that a sum of them is no number any more."""

import math
from typing import Any

import pytest

from fedstrata.errors import PayloadError
from fedstrata.rounds.notes import check_evaluation, check_link_bytes, check_lps_rounds, check_notes
from fedstrata.v1 import rounds_pb2 as pb

NO_NUMBERS = [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 1e40]


def row(**changed: Any) -> pb.LpsRound:
    fields = {"lps_round": 5, "global_round": 2, "devices": 2, "seconds": 0.5, "train_loss": 2.3}
    return pb.LpsRound(**{**fields, **changed})


@pytest.mark.parametrize("loss", NO_NUMBERS)
def test_losses_that_no_sum_can_hold_are_refused(loss: float) -> None:
    with pytest.raises(PayloadError, match="a reports a training loss of"):
        check_notes(pb.UpdateHeader(child_id="a", train_loss=loss))
    with pytest.raises(PayloadError, match="'a' measured a loss of"):
        check_evaluation(pb.Evaluation(device_id="a", loss_sum=loss, num_examples=1))
    with pytest.raises(PayloadError, match="reported with train_loss"):
        check_lps_rounds([row(train_loss=loss)], rounds_per_global=2, held_out=1200)


def test_a_loss_as_large_as_float32_has_it_is_taken_of_each_example() -> None:
    check_notes(pb.UpdateHeader(child_id="a", train_loss=3.4e38))
    check_evaluation(pb.Evaluation(device_id="a", loss_sum=3.4e38 * 600, num_examples=600))
    check_lps_rounds(
        [row(train_loss=3.4e38, loss_sum=3.4e38 * 1200, evaluated_examples=1200)], rounds_per_global=2, held_out=1200
    )


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
        {"correct": 3, "evaluated_examples": 2},
        {"loss_sum": 1e42, "evaluated_examples": 2},
        {"received_correct": -1},
        {"received_examples": 2**53},
        {"times": pb.RoundTimes(waiting_ns=-1)},
        {"lowest_accuracy": 0.5, "highest_accuracy": 0.4},
        {"lowest_accuracy": -0.1},
        {"highest_accuracy": 1.1},
        {"highest_accuracy": math.nan},
        {"seconds": math.nan},
        {"seconds": math.inf},
        {"seconds": -0.1},
        {"seconds": 1e10},
    ],
)
def test_rows_that_cannot_be_are_refused(changed: dict[str, Any]) -> None:
    check_lps_rounds([row()], rounds_per_global=2, held_out=1200)
    with pytest.raises(PayloadError, match="LPS round"):
        check_lps_rounds([row(), row(**changed)], rounds_per_global=2, held_out=1200)


@pytest.mark.parametrize("count", [-1, 2**53, 2**63 - 1])
def test_counts_of_bytes_that_cannot_be_are_refused(count: int) -> None:
    check_link_bytes([pb.LinkBytes(bytes=2**53 - 1)])
    with pytest.raises(PayloadError, match=f"{count} bytes are reported"):
        check_link_bytes([pb.LinkBytes(bytes=1), pb.LinkBytes(bytes=count)])


def test_work_is_said_where_there_is_a_virtual_clock_and_only_there() -> None:
    check_notes(pb.UpdateHeader(child_id="a", work=pb.Work(examples=3)), is_timed=True)
    with pytest.raises(PayloadError, match="a says nothing of its work"):
        check_notes(pb.UpdateHeader(child_id="a"), is_timed=True)
    with pytest.raises(PayloadError, match="a says something of its work"):
        check_notes(pb.UpdateHeader(child_id="a", work=pb.Work()))
    for work in (pb.Work(examples=-1), pb.Work(examples=2**62), pb.Work(busy_ns=-1), pb.Work(busy_ns=2**62)):
        with pytest.raises(PayloadError, match="a has worked on"):
            check_notes(pb.UpdateHeader(child_id="a", work=work), is_timed=True)


@pytest.mark.parametrize("size", [-1, (1 << 20) + (64 << 10) + 1])
def test_an_answer_of_more_bytes_than_a_message_has_is_not_believed(size: int) -> None:
    with pytest.raises(PayloadError, match=f"a says that its answer had {size} bytes"):
        check_notes(pb.UpdateHeader(child_id="a", work=pb.Work(answer_bytes=size)), is_timed=True)


def test_until_when_devices_are_busy_is_said_by_lpss_alone_of_those_that_move() -> None:
    said = {index: pb.UpdateHeader(child_id="a", work=pb.Work(devices_busy_ns={index: 5})) for index in (0, 3)}
    check_notes(said[3], is_timed=True, moving={3})
    for header, moving in ((said[0], {3}), (said[3], set[int]())):  # a device says so of nobody
        with pytest.raises(PayloadError, match="is busy until 5 ns; expected one that the schedule moves"):
            check_notes(header, is_timed=True, moving=moving)
    for none in (0, -1, 2**61):
        header = pb.UpdateHeader(child_id="a", work=pb.Work(devices_busy_ns={3: none}))
        with pytest.raises(PayloadError, match="expected one that the schedule moves, and a time"):
            check_notes(header, is_timed=True, moving={3})


@pytest.mark.parametrize("name", ["begins_ns", "ends_ns", "ready_ns"])
def test_times_that_are_none_are_refused(name: str) -> None:
    for number in (-1, 2**62):
        with pytest.raises(PayloadError, match="reported at a time that is none"):
            check_lps_rounds([row(times=pb.RoundTimes(**{name: number}))], rounds_per_global=2, held_out=1200)


@pytest.mark.parametrize("correct", [-1, 3])
def test_as_many_are_correct_of_the_received_model_as_were_measured(correct: int) -> None:
    with pytest.raises(PayloadError, match=f"measured {correct} of 2 correct"):
        check_evaluation(pb.Evaluation(device_id="a", num_examples=2, has_received=True, received_correct=correct))
