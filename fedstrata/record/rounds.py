"""rounds.csv: what each LPS round came to, with loss and accuracy of the model that the round produced."""

from collections.abc import Iterable, Iterator

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.record.tables import Amount, Ratio, Table
from fedstrata.v1 import rounds_pb2 as pb


@checked_dataclass(frozen=True, kw_only=True)
class RoundRow:
    """One LPS round; rounds count from 1, and `loss` and all accuracies are None if it was not measured."""

    global_round: PositiveInt
    lps_round: PositiveInt
    lps_id: str
    devices: NonNegativeInt
    num_examples: NonNegativeInt
    loss: float | None
    accuracy: Ratio | None
    seconds: Amount
    bytes_up: NonNegativeInt
    bytes_down: NonNegativeInt
    lowest_accuracy: Ratio | None
    highest_accuracy: Ratio | None

    @property
    def key(self) -> tuple[int, str]:
        """A later row of the same LPS round of the same cluster replaces an earlier one."""
        return self.lps_round, self.lps_id


ROUNDS = Table(RoundRow)


def loss_and_accuracy(row: pb.LpsRound) -> tuple[float, float] | None:
    """Return the means over held-out examples; None if devices have not measured that model."""
    if not row.evaluated_examples:
        return None
    return row.loss_sum / row.evaluated_examples, row.correct / row.evaluated_examples


def round_row(row: pb.LpsRound) -> RoundRow:
    """Return the row of what an LPS reported."""
    measured = loss_and_accuracy(row)
    loss, accuracy = measured or (None, None)
    return RoundRow(
        global_round=row.global_round + 1,
        lps_round=row.lps_round + 1,
        lps_id=row.cluster_id,
        devices=row.devices,
        num_examples=row.num_examples,
        loss=loss,
        accuracy=accuracy,
        seconds=row.seconds,
        bytes_up=row.bytes_up,
        bytes_down=row.bytes_down,
        lowest_accuracy=row.lowest_accuracy if measured else None,
        highest_accuracy=row.highest_accuracy if measured else None,
    )


def rounds_csv(rows: Iterable[pb.LpsRound]) -> Iterator[str]:
    """Return the lines of rounds.csv."""
    return ROUNDS.lines(map(_text_of, ROUNDS.columns, ROUNDS.values(round_row(row))) for row in rows)


def _text_of(column: str, value: str | int | float | None) -> str:
    """Return a cell; nothing for a number that was not measured."""
    if value is None:
        return ""
    return str(value) if not isinstance(value, float) else f"{value:.4f}" if column == "seconds" else f"{value:.6f}"
