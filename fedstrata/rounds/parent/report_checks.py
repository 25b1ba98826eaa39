"""Checks of children's reports. They refuse impossible numbers, and measurements of devices other than the sender."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.clock.time_checks import check_times, check_work
from fedstrata.errors import DIVERGED, BegunAgainError, PayloadError, WrongRunError
from fedstrata.process.quoting import brief, quoted
from fedstrata.rpc.messages import MOST_COUNTED, MOST_MEASURED, checked_number
from fedstrata.store.attempts import run_of
from fedstrata.tasks import Task
from fedstrata.v1 import rounds_pb2 as pb

# Reported numbers are summed over children and rounds, and written as JSON. With these limits, every sum fits float64
# and int64. Real numbers stay far below the limits.
LARGEST_LOSS = 1e39  # loss of an example; devices compute losses in float32, which ends at 3.4e38
LONGEST_S = 1e9  # seconds of a round: thirty years
LARGEST_FACTOR = 1e300  # of an update, by a rule
COUNTS = ("devices", "num_examples", "bytes_up", "bytes_down", "evaluated_examples", "received_examples")


def check_run(attempt_id: str, said: str) -> None:
    """Check that a call is about this attempt of the run.

    Raises:
        BegunAgainError: the call is about another attempt of the run.
        WrongRunError: the call is about another run.
    """
    if said == attempt_id:
        return
    run_id = run_of(attempt_id)
    if run_of(said) == run_id:
        raise BegunAgainError(f"run {run_id} begins again; restart this process, which belongs to another attempt")
    raise WrongRunError(f"this is run {run_id}, not {quoted(said)}; restart with the experiment file of {run_id}")


def check_notes(header: pb.UpdateHeader, *, has_work: bool = False) -> None:
    """Check what an update's header reports. Refuse an invalid loss, and measurements of other devices.

    With `has_work`, the header must report the child's work, which a clock needs. Otherwise, the header must not report
    any work.

    Raises:
        PayloadError: a reported value is not allowed. The error message says which.
    """
    said = f"{DIVERGED}: {header.child_id} reports a training loss of"
    checked_number(header.train_loss, -LARGEST_LOSS, LARGEST_LOSS, said)
    if header.unfit:
        raise PayloadError(brief(header.unfit))
    if len(header.evaluations) > 1 or any(e.device_id != header.child_id for e in header.evaluations):
        raise PayloadError(
            f"{header.child_id} reports {len(header.evaluations)} measurements; expected at most one, its own"
        )
    for evaluation in header.evaluations:
        check_evaluation(evaluation)
    if has_work != header.HasField("work"):
        raise PayloadError(
            f"the update of {header.child_id} {'does not state' if has_work else 'states'} its work, which is stated "
            "only with a clock; give all processes the same experiment file"
        )
    check_work(header.work, header.child_id)


def check_evaluation(evaluation: pb.Evaluation) -> None:
    """Raise PayloadError for a measurement that is impossible for any task."""
    who = quoted(evaluation.device_id)
    if not 0 <= evaluation.num_examples < MOST_MEASURED:
        raise PayloadError(f"{who} measured on {evaluation.num_examples} examples; expected 0 to {MOST_MEASURED - 1}")
    largest = LARGEST_LOSS * evaluation.num_examples
    for loss_sum in (evaluation.loss_sum, evaluation.received_loss_sum):
        checked_number(loss_sum, -largest, largest, f"{DIVERGED}: {who} measured a loss of")


def check_lps_rounds(rows: Iterable[pb.LpsRound], *, rounds_per_global: int, held_out: int, task: Task) -> None:
    """Check rows of LPS rounds for impossible numbers. `held_out` is the number of examples on which all devices
    together measure.

    Raises:
        PayloadError: a number is impossible. The message names the first impossible number.
    """
    for row in rows:
        if row.lps_round < 0 or row.global_round != row.lps_round // rounds_per_global:
            raise PayloadError(f"LPS round {row.lps_round} is reported as part of global round {row.global_round}")
        counts = {name: getattr(row, name) for name in COUNTS}
        wrong = next((name for name, count in counts.items() if not 0 <= count < MOST_COUNTED), None)
        if wrong is not None:
            raise PayloadError(f"LPS round {row.lps_round} is reported with {wrong} {counts[wrong]}")
        if row.evaluated_examples > held_out:
            raise PayloadError(
                f"LPS round {row.lps_round} is reported with measurements on {row.evaluated_examples} examples; all "
                f"devices together have {held_out}"
            )
        check_sums(task, row.sums, row.evaluated_examples, f"LPS round {row.lps_round}")
        check_sums(task, row.received_sums, row.received_examples, f"LPS round {row.lps_round}")
        if row.HasField("lowest") != row.HasField("highest"):
            raise PayloadError(f"LPS round {row.lps_round} is reported with only one of lowest and highest")
        for name, (least, most) in _ranges(row, task).items():
            checked_number(getattr(row, name), least, most, f"LPS round {row.lps_round} is reported with {name}")
        check_times(row.times, f"LPS round {row.lps_round}")
        _check_factors(row.factors, f"LPS round {row.lps_round}")


def _check_factors(said: pb.Factors, of: str) -> None:
    if len(said.children) != len(said.factors):
        raise PayloadError(f"{of} is reported with {len(said.factors)} factors of {len(said.children)} children")
    for factor in said.factors:
        checked_number(factor, -LARGEST_FACTOR, LARGEST_FACTOR, f"{of} is reported with a factor")


def check_sums(task: Task, sums: Sequence[float], num_examples: int, who: str) -> None:
    """Raise PayloadError if the sums that a measurement reports, such as the sum of losses, are impossible for the
    task. The error message begins with `who`. If there are no examples, `sums` may be empty.
    """
    if len(sums) != len(task.sums) and (num_examples or sums):
        raise PayloadError(f"{who} reports {len(sums)} sums of a measurement; the task has {len(task.sums)}")
    for named, value in zip(task.sums, sums, strict=False):
        checked_number(value, *named.range(num_examples), f"{who} measured {named.name}")
        if named.is_count and not value.is_integer():
            raise PayloadError(f"{who} measured {named.name} {value}; expected a whole number")


def _ranges(row: pb.LpsRound, task: Task) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest possible value of each number of a row."""
    largest = LARGEST_LOSS * (row.evaluated_examples + 1)  # one more, because a sum may be rounded up
    largest_received = LARGEST_LOSS * (row.received_examples + 1)
    least, most = task.headline.range
    return {
        "train_loss": (-LARGEST_LOSS, LARGEST_LOSS),
        "loss_sum": (-largest, largest),
        "received_loss_sum": (-largest_received, largest_received),
        "seconds": (0, LONGEST_S),
    } | ({"lowest": (least, row.highest), "highest": (least, most)} if row.HasField("highest") else {})


def check_link_bytes(counts: Iterable[pb.LinkBytes]) -> None:
    """Raise PayloadError if a count of bytes is impossible. The message names the first impossible count."""
    for count in counts:
        if not 0 <= count.bytes < MOST_COUNTED:
            raise PayloadError(f"{count.bytes} bytes are reported; expected 0 to {MOST_COUNTED - 1}")


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Hold the number of examples on which each device measures, and check the sums of a measurement."""

    examples: Mapping[str, int]  # by device, as reported at its enrolment
    task: Task

    def check(self, evaluation: pb.Evaluation) -> None:
        """Raise PayloadError for a measurement on a wrong number of examples, or with impossible sums."""
        who, enrolled_with = quoted(evaluation.device_id), self.examples.get(evaluation.device_id, 0)
        if evaluation.num_examples != enrolled_with:
            raise PayloadError(
                f"{who} measured on {evaluation.num_examples} examples, but enrolled with {enrolled_with} for "
                "measurements"
            )
        check_sums(self.task, evaluation.sums, evaluation.num_examples, who)
        if evaluation.has_received:
            check_sums(self.task, evaluation.received_sums, evaluation.num_examples, who)
        elif evaluation.received_sums:
            raise PayloadError(
                f"{who} reports {len(evaluation.received_sums)} sums for the received model, which it has not measured"
            )


@dataclass(frozen=True)
class ChildLimits:
    """Hold limits for the values that children send. By default there are no limits. The GPS sets no limits, because it
    checks the sums of LPSs in other ways.
    """

    max_update_norm: float | None = None  # limit of the L2 norm of an update as it is sent
    held_out: HeldOut | None = None

    def squares_of(self, values: NDArray[Any]) -> float:
        """Return the sum of squares of a piece of an update, for the update's norm. If norms have no limit, return
        0.
        """
        return 0.0 if self.max_update_norm is None else float(np.square(values, dtype=np.float64).sum())

    def check_norm(self, child_id: str, squares: float) -> None:
        """Raise PayloadError if an update exceeds the limit on norms. `squares` is the sum of squares of its elements
        so far.
        """
        if self.max_update_norm is not None and not squares <= self.max_update_norm**2:
            raise PayloadError(
                f"{child_id} sends an update with an L2 norm of {math.sqrt(squares):.6g} or more, above "
                f"bounds.max_update_norm, {self.max_update_norm:g}"
            )

    def check_measured(self, evaluations: Iterable[pb.Evaluation]) -> None:
        """Raise PayloadError if a device has measured on a wrong number of examples, or reports impossible sums."""
        if self.held_out is not None:
            for evaluation in evaluations:
                self.held_out.check(evaluation)


NO_LIMITS = ChildLimits()
