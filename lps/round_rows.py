"""The rows of rounds.csv as an LPS gathers them: one an LPS round, completed when its model has been measured."""

from collections.abc import Iterable

from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb


def add_evaluations(report: gps_pb.ReportHeader, evaluations: Iterable[pb.Evaluation]) -> None:
    """Add what devices measured of a round's model to the row of that round."""
    rows = {row.lps_round: row for row in report.lps_rounds}
    for evaluation in evaluations:
        row = rows.get(evaluation.round - 1)  # the model of round r was produced by round r - 1
        if row is not None:
            _widen(row, evaluation)
            row.loss_sum += evaluation.loss_sum
            row.correct += evaluation.correct
            row.evaluated_examples += evaluation.num_examples
            if evaluation.has_received:
                row.received_loss_sum += evaluation.received_loss_sum
                row.received_correct += evaluation.received_correct
                row.received_examples += evaluation.num_examples


def _widen(row: pb.LpsRound, evaluation: pb.Evaluation) -> None:
    """Let a row's least and most accurate device be another where this one is."""
    if evaluation.num_examples:
        accuracy = evaluation.correct / evaluation.num_examples
        is_first = not row.evaluated_examples
        row.lowest_accuracy = accuracy if is_first else min(row.lowest_accuracy, accuracy)
        row.highest_accuracy = accuracy if is_first else max(row.highest_accuracy, accuracy)


def split_rounds(report: gps_pb.ReportHeader, before_round: int) -> tuple[list[pb.LpsRound], list[pb.LpsRound]]:
    """The rows whose evaluations are complete, and the rest."""
    done = [row for row in report.lps_rounds if row.lps_round < before_round]
    rest = [row for row in report.lps_rounds if row.lps_round >= before_round]
    return done, rest
