"""What the row of an LPS round says of the model that the round produced."""

from fedstrata.v1 import rounds_pb2 as pb


def loss_and_accuracy(row: pb.LpsRound) -> tuple[float, float] | None:
    """The means over held-out examples; None where devices have not measured that model."""
    if not row.evaluated_examples:
        return None
    return row.loss_sum / row.evaluated_examples, row.correct / row.evaluated_examples
