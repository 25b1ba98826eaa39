"""A run from its first device to its record: the phases in order, each entered again after a restart."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

from fedstrata.datasets import dataset_info
from fedstrata.errors import FedstrataError, RunStoppedError, StateError
from fedstrata.experiment import Experiment
from fedstrata.fault_points import reach
from fedstrata.link import Changes
from fedstrata.logs import EventLog
from fedstrata.methods import Candidate, Grouping, make_method
from fedstrata.metrics import ProcessMetrics
from fedstrata.models import build_model
from fedstrata.relevance import Matrix
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from gps.backend import Backend
from gps.enrolment import Enrolment
from gps.journal import Journal
from gps.plan import Plan
from gps.record import RunResult, recorded_end, wall_seconds, write_record
from gps.reports import Reports
from gps.roster import Device, Roster
from gps.rounds import GlobalRounds
from gps.serving import Serving

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
        self.serving = Serving(experiment, self.plan, self.journal)
        self.reports = Reports(
            experiment,
            plan=self.plan,
            serving=self.serving,
            journal=self.journal,
            metrics=metrics,
            models=self.record_folder / "models",
            model_size=self._model.layout.size,
        )
        self.phase, self.reason = recorded_end(self.record_folder) or ("enrolment", "")
        self.has_record = self.phase in {"completed", "failed"}
        self.is_over = self.has_record  # nothing more is wanted of devices and LPSs
        self.changes = Changes()
        self.relevance: Matrix | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._notes: set[asyncio.Task[None]] = set()
        self.enrolment.on_change = self.tell_soon
        self.enrolment.on_late_relevance = self._place
        self.rounds.on_closing = self.reports.keep_link_bytes
        self.rounds.on_closed = self._round_closed
        self.rounds.on_open = self.tell  # after the LPSs, who are waited for
        self.rounds.on_missing = self._cluster_missing
        self.rounds.plan_version = lambda: self.plan.version
        self.reports.on_exclusion = self._exclude

    @property
    def largest_payload_bytes(self) -> int:
        """The most that one call brings: an LPS's final model, or a device's profile."""
        return max(self._model.layout.float32_bytes, self.enrolment.profile_bytes)

    def tell_soon(self) -> None:
        """As `tell`, once for all that changes within a moment: what a thousand devices say is no thousand news."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(NEWS_S, self.tell)

    def tell(self) -> None:
        """Let everybody who watches look again."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self.changes.tell()
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
            self.phase, self.is_over = "failed", True
            self.tell()
            self._tell_operator("RunFailed", self.reason, is_warning=True)
        finally:
            stopped.cancel()
            work.cancel()  # where this was cancelled itself: no round is closed under a journal about to be closed
        if not self.has_record:
            await asyncio.to_thread(write_record, self.record_folder, self._result())
            self.has_record = True
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
        watching = asyncio.ensure_future(self._watch_lps())
        watching.add_done_callback(self._watch_ended)
        try:
            await self._until_served()
            await self.rounds.run(self.plan.examples)
            self._enter("evaluation")
            await self._gather_reports()
        finally:
            watching.cancel()
        self.is_over = True
        self.rounds.server.finish()
        self.tell()
        await self.reports.all_answered()
        await asyncio.to_thread(write_record, self.record_folder, self._result())
        self._enter("completed")
        self.has_record = True  # not before: who watches takes the status with the record for the last
        self._tell_operator("RunCompleted", f"{self.experiment.run_id}: {self.rounds.global_round} global rounds")

    async def _gather_reports(self) -> None:
        """Wait until every cluster has reported, or for the deadline of global rounds, anew after an adoption."""
        handovers = -1
        while handovers < len(self.serving.handovers):
            handovers = len(self.serving.handovers)
            deadline_s = self.experiment.deadlines.gps.deadline_s
            if deadline_s is not None:
                deadline_s += self.serving.hold_s  # who fell silent as training ended is away by then, and adopted
            await self.changes.wait_until(lambda: not self.reports.missing(), deadline_s)
            if not self.reports.missing():
                return
        for cluster_id in self.reports.missing():
            self._log.warning("report_missing", cluster=cluster_id)
            self._exclude(cluster_id, "evaluation", "no report by the deadline")

    # --- LPSs that stay away ------------------------------------------------------------------

    async def _until_served(self) -> None:
        """With deadlines, open no global round before every cluster's LPS, or another in its place, is there."""
        deadline_s = self.experiment.deadlines.gps.deadline_s
        if deadline_s is not None:
            longest_s = deadline_s + self.serving.hold_s
            await self.changes.wait_until(lambda: self.serving.are_all_there, longest_s)

    async def _watch_lps(self) -> None:
        """Have the clusters of an LPS that is away adopted by another, as soon as there is one."""
        loop = asyncio.get_running_loop()
        self.serving.listen()
        while (check_again_s := self.serving.check_again_s()) is not None:
            due = loop.time() + check_again_s
            await self.changes.wait_until(lambda: bool(self._adoptable()), check_again_s)
            if loop.time() > due + self.serving.hold_s:
                self.serving.listen()  # it was the GPS that stood still
            for cluster_id, lps_id in self._adoptable().items():
                self._hand_over(cluster_id, lps_id)

    def _watch_ended(self, watching: "asyncio.Future[None]") -> None:
        """A handover that cannot be written down ends the run."""
        if not watching.cancelled() and (error := watching.exception()):
            self.stop(str(error))

    def _adoptable(self) -> dict[str, str]:
        return self.serving.adoptable(self.journal.reported())

    def _hand_over(self, cluster_id: str, lps_id: str) -> None:
        """Let another LPS serve a cluster; it hears of it by the call that is held for it."""
        before = self.serving.lps_of(cluster_id)
        handover = self.serving.hand_over(cluster_id, lps_id, self.rounds.global_round)
        self.rounds.server.restart(cluster_id)
        told = f"{cluster_id} from {before} to {lps_id}, {self.serving.stage_of(handover)}"
        self._log.warning("returned" if handover.is_return else "adopted", cluster=cluster_id, lps=lps_id, was=before)
        self._tell_operator("Returned" if handover.is_return else "Adopted", told, is_warning=not handover.is_return)
        self._soon(self._backend.label_pods(self.serving.pods()))
        self.tell()

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.journal.begin_phase(phase)
        self.reports.keep_link_bytes()
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
        sizes = {name: len(devices) for name, devices in self.plan.clusters.items()}
        self._log.info("grouped", rule=self.plan.rule, clusters=sizes)
        self._soon(self._backend.scale_lps(len(sizes)))
        self._soon(self._backend.label_pods(self.serving.pods()))
        for who, stage, reason in self.journal.exclusions():
            self._tell_operator("Excluded", f"{who}, {stage}: {reason}", is_warning=True)
        self._tell_operator("Grouped", f"{self.plan.rule}: {sizes}")
        self.enrolment.tell()

    def _exclude(self, who: str, stage: str, reason: str) -> None:
        """Note an exclusion, and tell the operator the first time it is heard of."""
        if self.journal.exclude(who, stage, reason):
            self._tell_operator("Excluded", f"{who}, {stage}: {reason}", is_warning=True)

    def _place(self, device: Device) -> None:
        """Put a late device into the cluster whose representatives it is most relevant to."""
        relevance = self.plan.relevance_to_clusters(self.roster.relevance(device))
        cluster_id = self._method.place(relevance)
        self.plan.place(device, cluster_id, self.rounds.global_round + 1)
        self._log.info("device_placed_late", device=device.device_id, cluster=cluster_id, relevance=relevance)
        self._soon(self._backend.label_pods(self.serving.pods()))
        self.tell()

    def _round_closed(self, done: int) -> None:
        if done < self.experiment.training.global_rounds:  # else who trained last has the model measured, too
            for cluster_id, lps_id in self.serving.returnable().items():
                self._hand_over(cluster_id, lps_id)
        if done % EVENT_EVERY == 0:
            self._tell_operator("RoundsDone", f"{done} of {self.experiment.training.global_rounds} global rounds")

    def has_news(self, known_version: int) -> bool:
        """Whether there is something to tell an LPS that knows the plan of a version."""
        return self.is_over or (self.plan.is_made and self.plan.version != known_version)

    def heard_of(self, request: pb.RegisterLpsRequest) -> None:
        """Tell that an LPS is there, and where."""
        self._log.info("lps_registered", lps_id=request.lps_id, address=request.address)
        self.tell()

    def _cluster_missing(self, cluster_id: str, stage: str) -> None:
        self._exclude(cluster_id, stage, "missed the deadline")

    def stop(self, reason: str) -> None:
        """End the run without a result."""
        if not self.is_over:
            self.reason = reason
            self._stopped.set()

    # --- the record ---------------------------------------------------------------------------

    def _result(self) -> RunResult:
        """All that the record says, as it stands now; made where nothing changes meanwhile."""
        candidates = self.enrolment.related() if self.relevance is not None else []
        return RunResult(
            experiment=self.experiment,
            status="completed" if not self.reason else "failed",
            reason=self.reason or None,
            clusters=self.plan.clusters,
            clusters_rule=self.plan.rule,
            reports=self.reports.all(),
            rows=[rounds_pb2.LpsRound.FromString(row) for row in self.journal.lps_rounds()],
            link_bytes=self.reports.link_bytes(),
            exclusions=self.journal.exclusions(),
            adoptions=[(h.cluster_id, h.lps_id, self.serving.stage_of(h)) for h in self.serving.handovers],
            wall_seconds=wall_seconds(self.journal.phases()),
            global_rounds=self.rounds.global_round,
            relevance=self.relevance,
            relevance_ids=[device.device_id for device in candidates],
        )

    # --- notes to the operator ----------------------------------------------------------------

    def _tell_operator(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        self._soon(self._backend.record_event(reason, message, is_warning=is_warning))

    def _soon(self, note: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(note)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
