"""What the row of an LPS round says, of the model that the round produced too."""

from fedstrata.v1 import rounds_pb2 as pb


def loss_and_accuracy(row: pb.LpsRound) -> tuple[float, float] | None:
    """The means over held-out examples; None where devices have not measured that model."""
    if not row.evaluated_examples:
        return None
    return row.loss_sum / row.evaluated_examples, row.correct / row.evaluated_examples


def columns_of(row: pb.LpsRound) -> dict[str, str | int | float | None]:
    """The row by the columns of rounds.csv: rounds count from 1, and what was not measured is None."""
    measured = loss_and_accuracy(row)
    loss, accuracy = measured or (None, None)
    return {
        "global_round": row.global_round + 1,
        "lps_round": row.lps_round + 1,
        "lps_id": row.cluster_id,
        "devices": row.devices,
        "num_examples": row.num_examples,
        "loss": loss,
        "accuracy": accuracy,
        "seconds": row.seconds,
        "bytes_up": row.bytes_up,
        "bytes_down": row.bytes_down,
        "lowest_accuracy": row.lowest_accuracy if measured else None,
        "highest_accuracy": row.highest_accuracy if measured else None,
    }
