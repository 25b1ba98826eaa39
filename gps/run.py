"""A run from its first device to its record: the phases in order, each entered again after a restart."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path

from fedstrata.datasets import dataset_info
from fedstrata.errors import FedstrataError, PayloadError, RunStoppedError, StateError, UnknownChildError
from fedstrata.experiment import Experiment
from fedstrata.fault_points import reach
from fedstrata.link import HOLD_S, wait_until
from fedstrata.logs import EventLog
from fedstrata.methods import Candidate, Grouping, make_method
from fedstrata.metrics import LinkKey, ProcessMetrics
from fedstrata.models import build_model
from fedstrata.relevance import Matrix
from fedstrata.rounds.notes import check_evaluation
from fedstrata.rpc.messages import link_bytes_from_proto, link_bytes_to_proto
from fedstrata.store import clear_asides, write_aside
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from gps.backend import Backend
from gps.enrolment import Enrolment
from gps.journal import Journal
from gps.plan import Plan
from gps.record import RunResult, write_record
from gps.roster import Device, Roster
from gps.rounds import GlobalRounds

NEWS_S = 0.1  # how long what devices say may wait to be shown
EVENT_EVERY = 10  # global rounds between two notes to the operator


class Run:
    """One run: its devices, clusters, global rounds and record."""

    def __init__(
        self, experiment: Experiment, *, state: Path, metrics: ProcessMetrics, backend: Backend, log: EventLog
    ) -> None:
        self.experiment = experiment
        self._log = log
        self._metrics = metrics
        self._backend = backend
        self.journal = Journal(state / "journal.sqlite", run_id=experiment.run_id, experiment=experiment.to_yaml())
        self.record_folder = state / "record"
        info = dataset_info(experiment.data)
        self._method = make_method(experiment.method)
        self.roster = Roster(experiment, self.journal)
        self.enrolment = Enrolment(
            experiment, method=self._method, info=info, roster=self.roster, journal=self.journal, log=log
        )
        self._model = build_model(experiment.model, info)
        self.rounds = GlobalRounds(
            experiment,
            model=self._model,
            sum_name=self._method.sums[0],
            folder=state,
            journal=self.journal,
            metrics=metrics,
            log=log,
        )
        self.plan = Plan(experiment, self.roster, self.journal)
        self.phase, self.reason = recorded_end(self.record_folder) or ("enrolment", "")
        self.has_record = self.phase in {"completed", "failed"}
        self.changed = asyncio.Event()
        self.lps_link_bytes: dict[str, Mapping[LinkKey, int]] = {}
        self.latest_rows: dict[str, rounds_pb2.LpsRound] = {}
        self.relevance: Matrix | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self.reports_under_way = 0
        self._reports_begun = 0
        clear_asides(self.record_folder / "models")
        self._notes: set[asyncio.Task[None]] = set()
        self.enrolment.on_change = self.tell_soon
        self.enrolment.on_late_relevance = self._place
        self.rounds.on_closed = self._round_closed
        self._recall_link_bytes()

    def tell_soon(self) -> None:
        """As `tell`, once for all that changes within a moment: what a thousand devices say is no thousand news."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(NEWS_S, self.tell)

    def tell(self) -> None:
        """Let everybody who watches look again."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self.changed.set()
        self.changed = asyncio.Event()
        self._metrics.devices(self.roster.states())

    # --- the phases ---------------------------------------------------------------------------

    async def conduct(self) -> None:
        """All phases; ends with a written record, whether the run was completed or not."""
        if self.has_record:  # an earlier life has ended the run; this one serves its record
            self.rounds.server.finish(self.reason)
            self.tell()
            return
        work, stopped = asyncio.ensure_future(self._phases()), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                raise RunStoppedError(self.reason)
            work.result()
        except FedstrataError as error:
            self.reason = " ".join(str(error).split())
            self.rounds.server.finish(self.reason)
            self._log.error("run_failed", reason=self.reason)
            with suppress(StateError):  # what failed may be the disk
                self._enter("failed")
            self.phase = "failed"
            self.tell()
            self._tell_operator("RunFailed", self.reason, is_warning=True)
        finally:
            stopped.cancel()
        if not self.has_record:
            await asyncio.to_thread(self._write_record)
        self.tell()

    async def _phases(self) -> None:
        if not self.plan.is_made:
            self._enter("enrolment")
            if self.plan.clusters_known:
                self._soon(self._backend.scale_lps(self.plan.clusters_known))
            await self.enrolment.gather_devices()
            if self._method.needs_profiles:
                self._enter("relevance")
                await self.enrolment.gather_relevance()
            self._enter("grouping")
            await asyncio.to_thread(self._group)
        elif self._method.needs_profiles:
            self.relevance = self.enrolment.relevance_matrix()
        self._publish_plan()
        self._enter("training")
        await self.rounds.run(self.plan.examples)
        self._enter("evaluation")
        await self._gather_reports()
        self.rounds.server.finish()
        await self._answered()
        await asyncio.to_thread(self._write_record)
        self._enter("completed")
        self._tell_operator("RunCompleted", f"{self.experiment.run_id}: {self.rounds.global_round} global rounds")

    async def _gather_reports(self) -> None:
        """Wait until every cluster has reported, or for the deadline of global rounds."""
        clusters, deadline_s = self.plan.clusters, self.experiment.deadlines.gps.deadline_s
        await wait_until(lambda: self.changed, lambda: len(self.journal.reports()) == len(clusters), deadline_s)
        for cluster_id in sorted(set(clusters) - set(self.journal.reports())):
            self._log.warning("report_missing", cluster=cluster_id)
            self._exclude(cluster_id, "evaluation", "no report by the deadline")

    async def _answered(self) -> None:
        """Let the reply to the last report be counted before the record is written."""
        await wait_until(lambda: self.changed, lambda: not self.reports_under_way, HOLD_S)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.journal.begin_phase(phase)
        self._keep_link_bytes()
        self._log.info("phase", phase=phase)
        self.tell()

    def _group(self) -> None:
        candidates = self.enrolment.candidates()
        tasks = self.experiment.task_of_devices()
        if self._method.needs_profiles:
            self.relevance = self.enrolment.relevance_matrix()
        described = [
            Candidate(
                device_index=device.device_index,
                num_examples=device.num_examples,
                true_task=tasks[device.device_index] if tasks else None,
            )
            for device in candidates
        ]
        grouping = self._grouping(described)
        grouping.check_covers(described)
        reach("grouping")
        self.plan.make(grouping)

    def _grouping(self, described: list[Candidate]) -> Grouping:
        """The method's clusters, of all candidates or of the landmarks and then of all."""
        if self.relevance is None:
            return self._method.group(described, None, self.experiment.seed)
        landmarks = {device.device_index for device in self.enrolment.related()}
        known = [candidate for candidate in described if candidate.device_index in landmarks]
        grouping = self._method.group(known, self.relevance, self.experiment.seed)
        if not known:
            raise RunStoppedError("none of the devices drawn as landmarks is there; raise method.landmarks")
        others = [device for device in self.enrolment.candidates() if device.device_index not in landmarks]
        rows = {device.device_index: self.roster.relevance(device) for device in others}
        return grouping.joined_by(rows, self._method.place) if others else grouping

    def _publish_plan(self) -> None:
        """Let devices, LPSs and the operator know the clusters."""
        self.enrolment.representatives = self.plan.representatives(self.enrolment.related(), self.relevance)
        placed = [device for device in self.roster.devices.values() if device.cluster is not None]
        self.rounds.late_devices = sum(device.is_late for device in placed)
        sizes = {name: len(devices) for name, devices in self.plan.clusters.items()}
        self._log.info("grouped", rule=self.plan.rule, clusters=sizes)
        self._soon(self._backend.scale_lps(len(sizes)))
        self._soon(self._backend.label_pods(self.plan.pods()))
        for who, stage, reason in self.journal.exclusions():
            self._tell_operator("Excluded", f"{who}, {stage}: {reason}", is_warning=True)
        self._tell_operator("Grouped", f"{self.plan.rule}: {sizes}")
        self.enrolment.tell()

    def _exclude(self, who: str, stage: str, reason: str) -> None:
        """Note an exclusion, and tell the operator the first time it is heard of."""
        if (who, stage, reason) not in self.journal.exclusions():
            self.journal.exclude(who, stage, reason)
            self._tell_operator("Excluded", f"{who}, {stage}: {reason}", is_warning=True)

    def _place(self, device: Device) -> None:
        """Put a late device into the cluster whose representatives it is most relevant to."""
        relevance = self.plan.relevance_to_clusters(self.roster.relevance(device))
        cluster_id = self._method.place(relevance)
        self.plan.place(device, cluster_id)
        self.rounds.late_devices += 1
        self._log.info("device_placed_late", device=device.device_id, cluster=cluster_id, relevance=relevance)
        self._soon(self._backend.label_pods(self.plan.pods()))

    def _round_closed(self, done: int) -> None:
        self._keep_link_bytes()
        if done % EVENT_EVERY == 0:
            self._tell_operator("RoundsDone", f"{done} of {self.experiment.training.global_rounds} global rounds")
        self.tell()

    def stop(self, reason: str) -> None:
        """End the run without a result."""
        if self.phase not in {"completed", "failed"}:
            self.reason = reason
            self._stopped.set()

    # --- what LPSs say ------------------------------------------------------------------------

    def register_lps(self, request: pb.RegisterLpsRequest) -> None:
        """Keep an LPS's address."""
        self.plan.register_lps(request)
        self._log.info("lps_registered", lps_id=request.lps_id, address=request.address)
        self.tell()

    def note_update(self, header: rounds_pb2.UpdateHeader) -> None:
        """Keep what an LPS says beside its aggregate; it says it again when it has not been answered."""
        self._note(header)
        self.tell_soon()

    def _note(self, header: "rounds_pb2.UpdateHeader | pb.ReportHeader") -> None:
        if header.cluster_id not in self.plan.clusters:
            raise UnknownChildError(f"no cluster is called {header.cluster_id[:80]!r}")
        rounds = self.experiment.training.lps_rounds
        rows = [r for r in header.lps_rounds if r.cluster_id == header.cluster_id and 0 <= r.lps_round < rounds]
        self.journal.add_lps_rounds(
            (row.cluster_id, row.lps_round, row.SerializeToString(deterministic=True)) for row in rows
        )
        for row in rows:
            self.latest_rows[row.cluster_id] = row
            if row.evaluated_examples:
                loss, accuracy = row.loss_sum / row.evaluated_examples, row.correct / row.evaluated_examples
                self._metrics.evaluated(row.cluster_id, loss=loss, accuracy=accuracy)
        for exclusion in header.exclusions:
            self._exclude(exclusion.device_id, exclusion.stage, exclusion.reason)
        self.lps_link_bytes[header.cluster_id] = link_bytes_from_proto(header.link_bytes)
        self._keep(header.cluster_id, self.lps_link_bytes[header.cluster_id])

    async def submit_report(self, header: pb.ReportHeader, parts: AsyncIterator[pb.ReportPart]) -> None:
        """Take a cluster's final report and model; a second time changes nothing."""
        if header.cluster_id not in self.plan.clusters:
            raise UnknownChildError(f"no cluster is called {header.cluster_id[:80]!r}")
        members = {device.device_id for device in self.plan.members(header.cluster_id)}
        for evaluation in header.evaluations:
            check_evaluation(evaluation)
            if evaluation.device_id not in members:
                raise PayloadError(f"{header.cluster_id} reports a measurement of {evaluation.device_id[:80]!r}")
        path = self.record_folder / "models" / f"{header.cluster_id}.safetensors"
        largest = 4 * self._model.layout.size + (1 << 20)
        digest, size = hashlib.sha256(), 0
        self._reports_begun += 1  # one that hangs must not share its file with the next try
        with write_aside(path, label=f".{self._reports_begun}") as file:
            async for part in parts:
                size += len(part.data)
                if size > largest:
                    raise PayloadError(f"a model file of more than {largest} bytes")
                digest.update(part.data)
                file.write(part.data)
            if digest.hexdigest() != header.model_sha256:
                raise PayloadError(f"the model file of {header.cluster_id} does not fit its checksum; send it again")
        self._note(header)
        self.journal.add_report(header.cluster_id, header.SerializeToString(deterministic=True))

    # --- the record ---------------------------------------------------------------------------

    def _recall_link_bytes(self) -> None:
        """Go on counting from where an earlier life stood when it last kept its counts."""
        for source, data in self.journal.link_bytes().items():
            counts = link_bytes_from_proto(pb.RunStatus.FromString(data).link_bytes)
            if source:
                self.lps_link_bytes[source] = counts
            else:
                self._metrics.links.go_on_from(counts)

    def _keep_link_bytes(self) -> None:
        self._keep("", self._metrics.links.snapshot())

    def _keep(self, source: str, counts: Mapping[LinkKey, int]) -> None:
        message = pb.RunStatus(link_bytes=link_bytes_to_proto(counts))
        self.journal.set_link_bytes(source, message.SerializeToString(deterministic=True))

    def link_bytes(self) -> dict[LinkKey, int]:
        """All bytes counted so far at the parents' ends: here, and at each LPS as it last reported."""
        counts = {key: n for key, n in self._metrics.links.snapshot().items() if key.end == "parent"}
        for reported in self.lps_link_bytes.values():
            for key, count in reported.items():
                if key.end == "parent" and key.link == "device-lps":
                    counts[key] = counts.get(key, 0) + count
        return counts

    def _write_record(self) -> None:
        reports = {name: pb.ReportHeader.FromString(data) for name, data in self.journal.reports().items()}
        for name, report in reports.items():
            self.lps_link_bytes.setdefault(name, link_bytes_from_proto(report.link_bytes))
        candidates = self.enrolment.related() if self.relevance is not None else []
        result = RunResult(
            experiment=self.experiment,
            status="completed" if not self.reason else "failed",
            reason=self.reason or None,
            clusters=self.plan.clusters,
            clusters_rule=self.plan.rule,
            reports=reports,
            rows=[rounds_pb2.LpsRound.FromString(row) for row in self.journal.lps_rounds()],
            link_bytes=self.link_bytes(),
            exclusions=self.journal.exclusions(),
            wall_seconds=wall_seconds(self.journal.phases()),
            global_rounds=self.rounds.global_round,
            relevance=self.relevance,
            relevance_ids=[device.device_id for device in candidates],
        )
        write_record(self.record_folder, result)
        self.has_record = True

    # --- notes to the operator ----------------------------------------------------------------

    def _tell_operator(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        self._soon(self._backend.record_event(reason, message, is_warning=is_warning))

    def _soon(self, note: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(note)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)


def recorded_end(folder: Path) -> tuple[str, str] | None:
    """How a run ended, as phase and reason, if its record says so."""
    path = folder / "summary.json"
    if not path.exists():
        return None
    summary = json.loads(path.read_text(encoding="utf-8"))
    return ("failed" if summary["status"] == "failed" else "completed", summary["reason"] or "")


def wall_seconds(phases: Mapping[str, float]) -> dict[str, float]:
    """How long the phases took, from when each began."""
    now = time.time()
    order = ("enrolment", "relevance", "grouping", "training")
    began = {phase: phases.get(phase, now) for phase in order}
    began["relevance"] = min(began["relevance"], began["grouping"])
    ends = [began["relevance"], began["grouping"], began["training"], now]
    lengths = [max(0.0, end - began[phase]) for phase, end in zip(order, ends, strict=True)]
    return {**dict(zip(("enrol", "relevance", "group", "train"), lengths, strict=True)), "total": sum(lengths)}
