"""rounds.csv: the result of each LPS round, with the loss and the metrics of the model that the round produced."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.errors import DataError
from fedstrata.record.tables import Amount, Table, checked
from fedstrata.tasks import Metric, Task, measured
from fedstrata.v1 import rounds_pb2 as pb


@checked_dataclass(frozen=True, kw_only=True)
class RoundRow:
    """Hold the result of one LPS round. If not all devices measured the model, `loss` and all metrics are None."""

    global_round: PositiveInt
    """Global round, counted from 1."""
    lps_round: PositiveInt
    """LPS round, counted from 1 over the whole run."""
    lps_id: str
    """Cluster or, if clusters span LPSs, LPS."""
    devices: NonNegativeInt
    """Number of devices with updates that are part of the mean."""
    num_examples: NonNegativeInt
    """Number of training examples of these devices. Each device's number is its weight in the mean. With noise on
    updates, each device counts as one example.
    """
    loss: float | None
    """Mean loss of the model that this round produced, over held-out examples (for a classification, the
    cross-entropy). Devices measure the model when they receive it for the next round. Empty unless all devices of the
    cluster or LPS measured it.
    """
    metrics: Annotated[dict[str, float | None], Field(serialization_alias="METRIC")]
    """One column for each metric of the task, over the same examples. For a classification, `accuracy` is the share of
    correct answers. After the last LPS round of a global round, devices measure the model with the averaged shared
    layers.
    """
    seconds: Amount
    """Seconds from the opening of the round until its last update."""
    bytes_up: NonNegativeInt
    """Bytes from devices to the LPS, counted at the LPS during the round. An LPS that serves several clusters counts
    the bytes of all of them.
    """
    bytes_down: NonNegativeInt
    """Bytes from the LPS to devices, counted like `bytes_up`."""
    lowest: Annotated[float | None, Field(serialization_alias="lowest_METRIC")]
    """Lowest value of the task's first metric among the devices that measured the model; empty if no device did."""
    highest: Annotated[float | None, Field(serialization_alias="highest_METRIC")]
    """Highest value of the same metric."""
    cohort: Annotated[float | None, Field(serialization_alias="cohort_METRIC")] = None
    """The same metric if only some devices measured the model, because `participation`, a deadline or the schedule left
    out others. Each row has other devices, so compare no rows.
    """

    measured_examples: NonNegativeInt | None = None
    """Number of examples on which devices measured the model, also if only some devices did."""

    @property
    def key(self) -> tuple[int, str]:
        """The key of the row: the LPS round and the cluster.

        A later row with the same key replaces an earlier row.
        """
        return self.lps_round, self.lps_id


class RoundsTable(Table[RoundRow]):
    """Declare rounds.csv, which has a column for each metric of the run's task."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        """Set the metrics. The first is the main metric (headline)."""
        super().__init__(RoundRow)
        self._ranges = {metric.name: metric.range for metric in metrics}
        of_headline = {field: f"{field}_{metrics[0].name}" for field in ("lowest", "highest", "cohort")}
        names = {"metrics": tuple(self._ranges), **{field: (column,) for field, column in of_headline.items()}}
        self._columns_of = {field: names.get(field, (field,)) for field in self.columns}
        self._ranges |= dict.fromkeys(of_headline.values(), metrics[0].range)
        self.later = frozenset({of_headline["cohort"], "measured_examples"})
        self.columns = tuple(column for columns in self._columns_of.values() for column in columns)

    @property
    def types(self) -> Mapping[str, type]:
        known = super().types
        return {column: known.get(column, float) for column in self.columns}

    def values(self, row: RoundRow) -> list[Any]:
        found = ((field, getattr(row, field)) for field in self._columns_of)
        return [each for field, value in found for each in (value.values() if field == "metrics" else (value,))]

    def _parsed(self, header: list[str], row: list[str], where: str) -> RoundRow:
        cells = self._cells(header, row, where)
        for column, (least, most) in self._ranges.items():
            _check_in_range(cells[column], least, most, f"{where}: {column}")
        fields = {field: cells[columns[0]] for field, columns in self._columns_of.items() if field != "metrics"}
        metrics = {name: cells[name] for name in self._columns_of["metrics"]}
        return checked(self._adapter, {**fields, "metrics": metrics}, where)


def _check_in_range(cell: str | None, least: float, most: float, said: str) -> None:
    """Check a field of the CSV file. Raise DataError if it is not a number in this range. An empty field is valid."""
    try:
        is_in_range = cell is None or least <= float(cell) <= most
    except ValueError:
        is_in_range = False
    if not is_in_range:
        raise DataError(f"{said}: {cell!r:.40} is not a number from {least:g} to {most:g}")


def metrics_of(row: pb.LpsRound, task: Task) -> dict[str, float | None] | None:
    """Return the mean loss (as `loss`) and the metrics of an LPS round's model, over held-out examples. If not all
    devices have measured the model, return None.
    """
    if not row.evaluated_examples or row.is_of_cohort:
        return None
    return {"loss": row.loss_sum / row.evaluated_examples, **measured(task, row.sums, row.evaluated_examples)}


def round_row(row: pb.LpsRound, task: Task) -> RoundRow:
    """Return the row of rounds.csv for an LPS's report of a round."""
    found, of_all = metrics_of(row, task) or {}, not row.is_of_cohort
    examples = row.evaluated_examples
    cohort = None if of_all or not examples else measured(task, row.sums, examples)[task.headline.name]
    return RoundRow(
        global_round=row.global_round + 1,
        lps_round=row.lps_round + 1,
        lps_id=row.home_id,
        devices=row.devices,
        num_examples=row.num_examples,
        loss=found.get("loss"),
        metrics={metric.name: found.get(metric.name) for metric in task.metrics},
        seconds=row.seconds,
        bytes_up=row.bytes_up,
        bytes_down=row.bytes_down,
        lowest=row.lowest if of_all and row.HasField("lowest") else None,
        highest=row.highest if of_all and row.HasField("highest") else None,
        cohort=cohort,
        measured_examples=examples,
    )


def page_row(row: RoundRow, headline: Metric) -> list[Any]:
    """Return the values of a row for the page of a run, in the order of the page's columns. Of the metrics, the page
    has only the main metric.
    """
    found = ((each.name, getattr(row, each.name)) for each in fields(row))
    return [value.get(headline.name) if name == "metrics" else value for name, value in found]


def rounds_csv(rows: Iterable[pb.LpsRound], task: Task) -> Iterator[str]:
    """Return the lines of rounds.csv."""
    table = RoundsTable(task.metrics)
    return table.lines(map(_text_of, table.columns, table.values(round_row(row, task))) for row in rows)


def _text_of(column: str, value: str | int | float | None) -> str:
    """Return the text of a value in rounds.csv. A float has four decimals in the column `seconds`, and six in other
    columns. If its absolute value there is below 0.001, it has six significant digits instead. If a value was not
    measured, return an empty text.
    """
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.4f}" if column == "seconds" else f"{value:.6g}" if 0 < abs(value) < 1e-3 else f"{value:.6f}"
