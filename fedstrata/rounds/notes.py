"""What a child says beside its tensors, checked: numbers that are none, or of somebody else, are refused."""

import math

from fedstrata.errors import PayloadError, WrongRunError
from fedstrata.v1 import rounds_pb2 as pb


def check_run(run_id: str, said: str) -> None:
    """Refuse a call that is about another run than this one. Raises WrongRunError."""
    if said != run_id:
        raise WrongRunError(f"this is run {run_id}, not {said[:80]!r}; restart with its experiment")


def check_notes(header: pb.UpdateHeader) -> None:
    """Refuse an update whose loss is no number or whose measurements are not the sender's own.

    Raises:
        PayloadError: with what was wrong.
    """
    if not math.isfinite(header.train_loss):
        raise PayloadError(f"{header.child_id} reports a training loss of {header.train_loss}; training has diverged")
    if len(header.evaluations) > 1 or any(e.device_id != header.child_id for e in header.evaluations):
        raise PayloadError(f"{header.child_id} reports {len(header.evaluations)} measurements, expected its own one")
    for evaluation in header.evaluations:
        check_evaluation(evaluation)


def check_evaluation(evaluation: pb.Evaluation) -> None:
    """Refuse a measurement that cannot be one. Raises PayloadError."""
    if not math.isfinite(evaluation.loss_sum):
        raise PayloadError(f"{evaluation.device_id[:80]!r} measured a loss of {evaluation.loss_sum}; it has diverged")
    if not 0 <= evaluation.correct <= evaluation.num_examples < 1 << 40:
        raise PayloadError(
            f"{evaluation.device_id[:80]!r} measured {evaluation.correct} of {evaluation.num_examples} correct; "
            "expected 0 up to all of them"
        )
