"""The reports of LPSs about rounds, bytes, exclusions and final models. The journal keeps them for the record."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sized
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedstrata.clock.time_checks import children_of
from fedstrata.errors import NotReadyError, NotServedError, PayloadError, StateError, UnknownChildError
from fedstrata.experiment import Experiment
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.quoting import brief, quoted
from fedstrata.process.time_limits import HOLD_S
from fedstrata.process.waiting import Changes
from fedstrata.record.rounds import metrics_of
from fedstrata.rounds.parent.report_checks import HeldOut, check_evaluation, check_link_bytes, check_lps_rounds
from fedstrata.rpc.messages import link_bytes_from_proto
from fedstrata.rpc.stream import Supersedable
from fedstrata.store import ModelFile, clear_asides, write_aside
from fedstrata.tasks import Task, make_task
from fedstrata.tensors import Layout
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from gps.hosting.link_counts import LinkCounts
from gps.hosting.serving import Serving
from gps.journal.journal import Journal
from gps.journal.round_tables import RoundTable
from gps.plans.places import Places

MODEL_HEADER_BYTES = 1 << 20  # more than the header of any model file
MOST_COUNTS = 64  # byte counts in a report: one per link, direction, kind and end, of which there are 22
MOST_CARRIED = 5  # transfers per device and LPS round: model, answer, go-on message, update, computing
MOST_EXCLUSIONS = 4  # exclusions per device and LPS round; rounds may have been repeated
STAGES = re.compile(r"training|evaluation|round [1-9][0-9]{0,8}")  # stages in which an LPS excludes devices


class Measured(NamedTuple):
    """Hold a measurement of a cluster's model by all its devices."""

    global_round: int  # after which the cluster had this model, counted from 1
    values: Mapping[str, float | None]  # the loss and the metrics


class Reports:
    """Take the reports of LPSs. Only the LPS that serves a cluster now may report about the cluster."""

    def __init__(
        self, experiment: Experiment, *, places: Places, serving: Serving, journal: Journal, metrics: ProcessMetrics,
        models: Path, layout: Layout, exclude: Callable[[str, str, str], None],
    ) -> None:  # fmt: skip
        """Set `exclude`, which is called for each reported exclusion with the child, the phase or round, and why."""
        self._global_rounds = experiment.training.global_rounds
        self._lps_rounds = experiment.training.lps_rounds
        self._device_count = experiment.device_count
        self._rounds_per_global = experiment.training.lps_rounds_per_global_round
        self._task = make_task(experiment)
        self._measured = partial(_measured, task=self._task, per_global=self._rounds_per_global)
        self._gauges = {metric.name: metric.gauge for metric in self._task.metrics}
        self._places = places
        self._serving = serving
        self._journal = journal
        self.counts = LinkCounts(journal, metrics.links)
        self._metrics = metrics
        self._models = models
        self._layout = layout
        self._largest = layout.float32_bytes + MODEL_HEADER_BYTES
        self._begun = 0
        self._newest: dict[str, Supersedable] = {}  # by cluster: the newest report whose upload has begun
        self._under_way = 0
        self._changes = Changes()
        self.latest_rounds: dict[str, rounds_pb2.LpsRound] = {}
        self.latest_measured: dict[str, Measured] = {}  # by cluster
        self._exclude = exclude
        clear_asides(models)
        for row in _rows_before_restart(journal.rounds, self._measured):
            self._show(row)

    # --- calls under way ------------------------------------------------------------------------

    def call_began(self) -> Callable[[], None]:
        """Note that a call has begun. Return a function, which the caller must call after the reply. The record is
        written only after these replies, so that its byte counts include them.
        """
        self._under_way += 1
        return self._call_ended

    def _call_ended(self) -> None:
        self._under_way -= 1
        self._changes.tell()

    async def all_answered(self) -> None:
        """Wait, for a limited time, until all calls that have begun have their replies."""
        await self._changes.wait_until(lambda: not self._under_way, HOLD_S)

    # --- what is said ---------------------------------------------------------------------------

    def note(self, header: "rounds_pb2.UpdateHeader | pb.ReportHeader") -> None:
        """Keep the report that an LPS sends with its aggregate or model. If the LPS gets no reply, it sends the report
        again.

        Raises:
            UnknownChildError, PayloadError: a name is unknown, or a number is impossible. Nothing is kept.
        """
        self._check_said(header)
        is_current = self._serving.is_current(header.home_id, header.term)
        own = (row for row in header.lps_rounds if row.home_id == header.home_id)
        rows = [row for row in own if row.lps_round < self._lps_rounds]
        with self._journal.together():
            self.counts.note(header.lps_id or header.home_id, link_bytes_from_proto(header.link_bytes))
            if not is_current:
                return  # the LPS that serves the cluster now reports the cluster's rounds
            self._journal.rounds.add(
                (row.home_id, row.lps_round, row.SerializeToString(deterministic=True)) for row in rows
            )
            for exclusion in header.exclusions:
                self._exclude(exclusion.device_id, exclusion.stage, brief(exclusion.reason))
        for row in rows:
            self._show(row)

    def _show(self, row: rounds_pb2.LpsRound) -> None:
        self.latest_rounds[row.home_id] = row
        if (measured := self._measured(row)) is not None:
            self.latest_measured[row.home_id] = Measured(row.global_round + 1, measured)
            self._metrics.evaluated(row.home_id, self._gauges, measured)

    def _check_said(self, header: "rounds_pb2.UpdateHeader | pb.ReportHeader") -> None:
        """Check the content of an LPS's report. If it is impossible, raise UnknownChildError or PayloadError."""
        if header.home_id not in self._places.homes:
            raise UnknownChildError(f"no cluster is called {quoted(header.home_id)}")
        if header.lps_id and not self._serving.is_known(header.lps_id):
            raise UnknownChildError(f"no LPS is called {quoted(header.lps_id)}")
        members = self._members(header.home_id)
        _check_length("counts of bytes", header.link_bytes, MOST_COUNTS)
        _check_length("LPS rounds", header.lps_rounds, self._lps_rounds)
        _check_length("exclusions", header.exclusions, len(members) * MOST_EXCLUSIONS * (self._rounds_per_global + 2))
        check_link_bytes(header.link_bytes)
        check_lps_rounds(
            header.lps_rounds,
            rounds_per_global=self._rounds_per_global,
            held_out=self._places.held_out,
            task=self._task,
        )
        for row in header.lps_rounds:
            _check_children(row, header.home_id, members, self._device_count)
        for gone in header.exclusions:
            if gone.device_id not in members or not STAGES.fullmatch(gone.stage):
                raise PayloadError(
                    f"{header.home_id} reports {quoted(gone.device_id)} excluded at stage {quoted(gone.stage)}; "
                    "expected one of its own devices, and as stage a round, training or evaluation"
                )

    def _members(self, home_id: str) -> set[str]:
        """Return the devices about which an LPS may report: its present devices, and devices that have left it."""
        return {device.device_id for device in self._places.members(home_id)} | self._places.left(home_id)

    async def take(self, header: pb.ReportHeader, parts: AsyncIterator[pb.ReportPart]) -> None:
        """Take a cluster's final report and model. A repeated report changes nothing.

        Raises:
            UnknownChildError, PayloadError: the report is invalid.
            NotReadyError: the last global round is not closed.
            NotServedError: another LPS serves the cluster.
            SupersededError: the LPS has begun a newer report.
        """
        self._check_said(header)
        self._check_current(header)
        if self._journal.rounds.closed() < self._global_rounds:
            raise NotReadyError(f"{header.home_id} reports before the last global round has ended; try again then")
        self._check_evaluations(header)
        if not self._places.spans_lps:  # otherwise the GPS has the models already
            await self._take_newest(header, parts)
        self.note(header)
        self._journal.rounds.add_report(header.home_id, header.SerializeToString(deterministic=True))

    async def _take_newest(self, header: pb.ReportHeader, parts: AsyncIterator[pb.ReportPart]) -> None:
        """Take a cluster's model. If the LPS begins to send the model again, end this transfer, because the newer
        transfer replaces it.
        """
        before, newest = self._newest.get(header.home_id), Supersedable()
        self._newest[header.home_id] = newest
        if before is not None:
            before.supersede()
        async with newest.until_superseded(header.home_id):
            await self._take_model(header, parts)

    def _check_current(self, header: pb.ReportHeader) -> None:
        if not self._serving.is_current(header.home_id, header.term):
            now = self._serving.lps_of(header.home_id)
            raise NotServedError(f"{now} serves {header.home_id} now; this report is of an earlier term and is ignored")

    def _check_evaluations(self, header: pb.ReportHeader) -> None:
        examples = {device.device_id: device.num_held_out for device in self._places.members(header.home_id)}
        left = set(examples)
        held_out = HeldOut(examples=examples, task=self._task)
        for evaluation in header.evaluations:
            check_evaluation(evaluation)
            if evaluation.device_id not in left:
                raise PayloadError(
                    f"{header.home_id} reports a measurement of {quoted(evaluation.device_id)}; expected one "
                    "measurement per device, of its own devices only"
                )
            left.remove(evaluation.device_id)
            held_out.check(evaluation)

    async def _take_model(self, header: pb.ReportHeader, parts: AsyncIterator[pb.ReportPart]) -> None:
        path = self._models / f"{header.home_id}.safetensors"
        size = 0
        self._begun += 1  # each upload gets its own file: an earlier one may still hang
        with write_aside(path, label=f".{self._begun}") as file:
            async for part in parts:
                size += len(part.data)
                if size > self._largest:
                    raise PayloadError(f"the model file of {header.home_id} has more than {self._largest} bytes")
                file.write(part.data)
            file.flush()
            header.model_sha256 = await asyncio.to_thread(self._digest_of, Path(file.name))
            self._check_current(header)  # a new LPS may have sent its file meanwhile, which must stay

    def _digest_of(self, path: Path) -> str:
        """Return the digest of the values in a model file. Raises PayloadError if the file is not a complete model of
        this run.
        """
        try:
            with closing(ModelFile(path, self._layout)) as model:
                model.verify()
                return model.values_digest()
        except StateError as error:
            raise PayloadError(f"the model file is incomplete or damaged: {error}") from None

    def all(self) -> dict[str, pb.ReportHeader]:
        """Return the final reports so far, by cluster."""
        return {name: pb.ReportHeader.FromString(data) for name, data in self._journal.rounds.reports().items()}

    def missing(self) -> list[str]:
        """Return the clusters without a report."""
        return sorted(set(self._places.homes) - self._journal.rounds.reported())


def _measured(row: rounds_pb2.LpsRound, *, task: Task, per_global: int) -> dict[str, float | None] | None:
    """Return the loss and the metrics of the model after a global round, if all devices have measured it. Otherwise,
    and for a model between two LPS rounds of a global round, return None.
    """
    return metrics_of(row, task) if (row.lps_round + 1) % per_global == 0 else None


def _rows_before_restart(
    table: RoundTable, measured_in: Callable[[rounds_pb2.LpsRound], object | None]
) -> list[rounds_pb2.LpsRound]:
    """Return for each cluster the newest row that has a measurement. After these rows, return for each cluster its
    newest row, with or without a measurement. `measured_in` returns a row's measurement, or None.
    """
    newest: dict[str, rounds_pb2.LpsRound] = {}
    measured: dict[str, rounds_pb2.LpsRound] = {}
    rows = table.rows(key for key in reversed(table.keys()) if key[0] not in measured)  # each is read when needed
    for row in map(rounds_pb2.LpsRound.FromString, rows):
        newest.setdefault(row.home_id, row)
        if measured_in(row) is not None:
            measured[row.home_id] = row
    return [*measured.values(), *newest.values()]


def _check_children(row: rounds_pb2.LpsRound, home_id: str, members: Collection[str], devices: int) -> None:
    """Raise PayloadError if a row of an LPS's report has too many children, or names a child that does not exist."""
    count = len(members)
    _check_length("flows of a round", [*row.times.flows, *row.times.late], count)
    _check_length("transfers of a round", row.times.carried, MOST_CARRIED * count)
    _check_length("updates of a round", row.times.contributions, count)
    _check_length("factors of a round", row.factors.factors, count)
    if any(not 0 <= child < devices for child in (*children_of(row.times), *row.factors.children)):
        raise PayloadError(f"{home_id} reports a device that does not exist")
    if row.times.slowest and row.times.slowest not in members:
        raise PayloadError(f"{home_id} waited for {quoted(row.times.slowest)}, not a device of its own")


def _check_length(what: str, said: Sized, longest: int) -> None:
    if len(said) > longest:
        raise PayloadError(f"{len(said)} {what} reported, expected at most {longest}")
