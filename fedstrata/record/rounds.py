"""rounds.csv: what each LPS round came to, with loss and accuracy of the model that the round produced."""

from collections.abc import Iterable, Iterator

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.record.tables import Amount, Ratio, Table
from fedstrata.tasks import Task, measured
from fedstrata.v1 import rounds_pb2 as pb


@checked_dataclass(frozen=True, kw_only=True)
class RoundRow:
    """Hold one LPS round. `loss` and all accuracies are None if nobody measured the model."""

    global_round: PositiveInt
    """Global round, counted from 1."""
    lps_round: PositiveInt
    """LPS round, counted from 1 over the whole run."""
    lps_id: str
    """Cluster; if clusters span LPSs, the LPS."""
    devices: NonNegativeInt
    """Number of devices with an update in the mean."""
    num_examples: NonNegativeInt
    """Number of examples that these devices trained on; they are the weights of the mean."""
    loss: float | None
    """Mean cross-entropy, over held-out examples, of the model that this round produced. Devices measure it when they
    receive it for the next round. Empty if nobody measured it."""
    accuracy: Ratio | None
    """Share of hits on the same examples. After the last LPS round of a global round, the measured model has the
    average of the shared layers."""
    seconds: Amount
    """Seconds from the opening of the round until its last update."""
    bytes_up: NonNegativeInt
    """Bytes from devices to the LPS, counted at the LPS during the round."""
    bytes_down: NonNegativeInt
    """Bytes from the LPS to devices, counted at the LPS during the round."""
    lowest_accuracy: Ratio | None
    """Accuracy of the least accurate device that measured the model; empty if `accuracy` is."""
    highest_accuracy: Ratio | None
    """Accuracy of the most accurate device that measured the model; empty if `accuracy` is."""

    @property
    def key(self) -> tuple[int, str]:
        """A later row of the same LPS round of the same cluster replaces an earlier one."""
        return self.lps_round, self.lps_id


ROUNDS = Table(RoundRow)


def loss_and_headline(row: pb.LpsRound, task: Task) -> tuple[float, float | None] | None:
    """Return the mean loss and the headline metric over held-out examples; None if devices have not measured that
    model.
    """
    if not row.evaluated_examples:
        return None
    found = measured(task, row.sums, row.evaluated_examples)
    return row.loss_sum / row.evaluated_examples, found[task.headline.name]


def round_row(row: pb.LpsRound, task: Task) -> RoundRow:
    """Return the row of what an LPS reported."""
    loss, accuracy = loss_and_headline(row, task) or (None, None)
    return RoundRow(
        global_round=row.global_round + 1,
        lps_round=row.lps_round + 1,
        lps_id=row.home_id,
        devices=row.devices,
        num_examples=row.num_examples,
        loss=loss,
        accuracy=accuracy,
        seconds=row.seconds,
        bytes_up=row.bytes_up,
        bytes_down=row.bytes_down,
        lowest_accuracy=row.lowest if row.HasField("lowest") else None,
        highest_accuracy=row.highest if row.HasField("highest") else None,
    )


def rounds_csv(rows: Iterable[pb.LpsRound], task: Task) -> Iterator[str]:
    """Return the lines of rounds.csv."""
    return ROUNDS.lines(map(_text_of, ROUNDS.columns, ROUNDS.values(round_row(row, task))) for row in rows)


def _text_of(column: str, value: str | int | float | None) -> str:
    """Return a cell; nothing for a number that was not measured."""
    if value is None:
        return ""
    return str(value) if not isinstance(value, float) else f"{value:.4f}" if column == "seconds" else f"{value:.6f}"
