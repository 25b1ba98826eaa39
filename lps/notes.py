"""Notes of an LPS about its rounds for the record: rows, exclusions, byte counts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import Refusals, RoundResult, Update
from fedstrata.rpc.messages import link_bytes_to_proto
from fedstrata.tasks import Task, measured
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.report_files import RefusedDevices

REFUSED = "refused: "  # begins the reason of an exclusion until the end of the run


class Notes:
    """Keep an LPS's notes about its rounds until the GPS has received them."""

    def __init__(
        self,
        home_id: str,
        task: Task,
        metrics: ProcessMetrics,
        log: EventLog,
        refused: RefusedDevices,
        *,
        has_member: Callable[[str], bool],
    ) -> None:
        """Set `has_member`, which says whether a device belongs to this LPS. Only such devices can be refused."""
        self._home_id = home_id
        self._task = task
        self._refused_devices = refused
        known = {exclusion.device_id: exclusion.reason.removeprefix(REFUSED) for exclusion in refused.exclusions}
        self.refused = Refusals(log, self._note_ban, known, has_child=has_member)
        self._metrics = metrics
        self._log = log
        self._bytes_before = (0, 0)
        self.exclusions = list(refused.exclusions)  # the GPS ignores exclusions that it has already

    def go_on_from(self, report: gps_pb.ReportHeader) -> None:
        """Continue with the notes in a report from before a restart."""
        noted = list(report.exclusions)
        self.exclusions = noted + [gone for gone in self._refused_devices.exclusions if gone not in noted]
        self._bytes_before = self._bytes_now()

    def of_round(
        self,
        report: gps_pb.ReportHeader,
        number: int,
        gathered: RoundResult,
        *,
        global_round: int,
        seconds: float,
        everybody: Iterable[str],
    ) -> gps_pb.ReportHeader:
        """Return a copy of the report, extended by the row of LPS round `number`. The round took `seconds`. `everybody`
        has the devices of the LPS in this global round, also those that the round did not ask.
        """
        noted = self._with_evaluations(report, gathered, everybody)
        up, down = self._bytes_now()
        row = noted.lps_rounds.add(
            home_id=self._home_id,
            global_round=global_round,
            lps_round=number,
            devices=gathered.children,
            num_examples=gathered.num_examples,
            seconds=seconds,
            bytes_up=up - self._bytes_before[0],
            bytes_down=down - self._bytes_before[1],
            train_loss=gathered.train_loss,
        )
        self._bytes_before = (up, down)
        self._note_missing(gathered, f"round {number + 1}")
        self.complete(noted)
        self._log.info(
            "lps_round_closed",
            lps_round=number,
            devices=row.devices,
            train_loss=round(row.train_loss, 6),
            seconds=round(seconds, 4),
            missing=list(gathered.missing),
        )
        return noted

    def of_taken(self, report: gps_pb.ReportHeader, factors: Mapping[int, float]) -> None:
        """Add `factors` to the last round of a report. These are the factors that the LPS's rule has chosen for
        devices' updates, by the devices' indexes. In the metrics, count by how many LPS rounds the model of each taken
        update was older than this round.
        """
        row = report.lps_rounds[-1]
        if factors:
            row.factors.CopyFrom(pb.Factors(children=factors.keys(), factors=factors.values()))
        self._metrics.taken(row.lps_round - each.from_round for each in row.times.contributions)

    def of_measurement_between_rounds(
        self, report: gps_pb.ReportHeader, gathered: RoundResult, everybody: Iterable[str]
    ) -> gps_pb.ReportHeader:
        """Return a copy of the report with the measurements of a model that all devices have measured between two
        rounds. The bytes of these measurements count in no round's row.
        """
        self._bytes_before = self._bytes_now()
        return self._with_evaluations(report, gathered, everybody)

    def of_measurement(
        self, report: gps_pb.ReportHeader, gathered: RoundResult, everybody: Iterable[str]
    ) -> gps_pb.ReportHeader:
        """Return a copy of the report, completed by the devices' measurements of the final model."""
        noted = self._with_evaluations(report, gathered, everybody)
        noted.evaluations.extend(gathered.evaluations)
        self._note_missing(gathered, "evaluation")
        self.complete(noted)
        return noted

    def _with_evaluations(
        self, report: gps_pb.ReportHeader, gathered: RoundResult, everybody: Iterable[str]
    ) -> gps_pb.ReportHeader:
        noted = gps_pb.ReportHeader()
        noted.CopyFrom(report)
        add_evaluations(noted, gathered.evaluations, self._task, set(everybody) - set(self.refused))
        return noted

    def drop_received(self, report: gps_pb.ReportHeader, rest: Iterable[pb.LpsRound], update: Update) -> None:
        """Delete from the report all notes that the GPS has received with an update. `rest` has the rows that were not
        in the update. These rows stay in the report. Exclusions that were noted after the update was made stay, too.
        """
        del report.lps_rounds[:]
        report.lps_rounds.extend(rest)
        del self.exclusions[: len(update.exclusions)]
        self.complete(report)

    def complete(self, report: gps_pb.ReportHeader) -> None:
        """Write the present exclusions and byte counts of this LPS into a report."""
        del report.exclusions[:]
        report.exclusions.extend(self.exclusions)
        del report.link_bytes[:]
        report.link_bytes.extend(link_bytes_to_proto(self._metrics.links.snapshot()))

    def _bytes_now(self) -> tuple[int, int]:
        """Return the numbers of bytes that devices have sent to this LPS, and this LPS to its devices, so far."""
        links = self._metrics.links
        return links.total("device-lps", "up", "parent"), links.total("device-lps", "down", "parent")

    def _note_missing(self, gathered: RoundResult, stage: str) -> None:
        for device_id in gathered.missing:
            if device_id not in self.refused:
                self._exclude(device_id, stage, "missed the deadline")

    def _note_ban(self, device_id: str, reason: str) -> None:
        self._exclude(device_id, "training", f"{REFUSED}{reason}")
        self._refused_devices.add(self.exclusions[-1])

    def _exclude(self, device_id: str, stage: str, reason: str) -> None:
        self.exclusions.append(pb.Exclusion(device_id=device_id, stage=stage, reason=reason))


def add_evaluations(
    report: gps_pb.ReportHeader, evaluations: Iterable[pb.Evaluation], task: Task, everybody: Collection[str]
) -> None:
    """Add the devices' measurements of a model to the row of the round that produced the model. If a device in
    `everybody` has not measured the model, set `is_of_cohort` in the row, because its values are then for only some of
    the devices.

    A row that already has measurements is not changed. All devices have measured its model before the next round.
    """
    rows = {row.lps_round: row for row in report.lps_rounds if not row.evaluated_examples}
    lacking: dict[int, set[str]] = {}
    for evaluation in evaluations:
        row = rows.get(evaluation.round - 1)  # the model of round r was produced by round r - 1
        if row is not None:
            lacking.setdefault(row.lps_round, set(everybody)).discard(evaluation.device_id)
            row.is_of_cohort = bool(lacking[row.lps_round])
            _widen(row, measured(task, evaluation.sums, evaluation.num_examples)[task.headline.name])
            row.loss_sum += evaluation.loss_sum
            _add(row.sums, evaluation.sums)
            row.evaluated_examples += evaluation.num_examples
            if evaluation.has_received:
                row.received_loss_sum += evaluation.received_loss_sum
                _add(row.received_sums, evaluation.received_sums)
                row.received_examples += evaluation.num_examples


def _add(total: Any, sums: Sequence[float]) -> None:
    """Add sums to the sums of a row, in place. A row without sums begins with zeros."""
    total[:] = [one + other for one, other in zip_longest(total, sums, fillvalue=0.0)]


def _widen(row: pb.LpsRound, value: float | None) -> None:
    """If a device's value is lower or higher than the range in a row, extend the range."""
    if value is not None:
        is_first = not row.HasField("lowest")
        row.lowest = value if is_first else min(row.lowest, value)
        row.highest = value if is_first else max(row.highest, value)


def split_rounds(report: gps_pb.ReportHeader, before_round: int) -> tuple[list[pb.LpsRound], list[pb.LpsRound]]:
    """Return two lists: the rows of LPS rounds before `before_round`, and the other rows. The rows in the first list
    are complete, because devices have already measured the models of these rounds.
    """
    done = [row for row in report.lps_rounds if row.lps_round < before_round]
    rest = [row for row in report.lps_rounds if row.lps_round >= before_round]
    return done, rest
