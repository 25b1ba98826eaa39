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
from fedstrata.methods import Answers, Arrays, Moment, make_method
from fedstrata.metrics import ProcessMetrics
from fedstrata.models import build_model
from fedstrata.rpc.answers import largest_bytes
from fedstrata.streams import UPDATE_PART, streams_of
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from gps.asking import Asking, planned
from gps.backend import Backend
from gps.enrolment import Enrolment
from gps.journal import BEFORE, Journal
from gps.keepers import keeper_of
from gps.plan import Plans
from gps.questions import Questions
from gps.record import RunResult, recorded_end, wall_seconds, write_models, write_record
from gps.reports import Reports
from gps.roster import Device, Roster
from gps.rounds import GlobalRounds
from gps.serving import Serving
from gps.waiting import Waiting

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
        self.method = make_method(experiment)
        metrics.links.questions = frozenset(question.name for question in self.method.questions())
        self.roster = Roster(experiment, self.journal)
        self.questions = Questions(self.method, roster=self.roster, journal=self.journal, log=log)
        self.enrolment = Enrolment(
            experiment, questions=self.questions, roster=self.roster, journal=self.journal, log=log
        )
        model = build_model(experiment.model, info)
        self.streams = streams_of(experiment, self.method, model)
        self.plan = Plans(experiment, self.method, self.roster, self.journal)
        keeper = keeper_of(experiment, self.method, model, self.streams, self.plan)
        self.rounds = GlobalRounds(
            experiment, keeper=keeper, part=UPDATE_PART, folder=state, journal=self.journal, metrics=metrics, log=log
        )
        self.serving = Serving(experiment, self.plan, self.journal)
        self.reports = Reports(
            experiment,
            plan=self.plan,
            serving=self.serving,
            journal=self.journal,
            metrics=metrics,
            models=self.record_folder / "models",
            layout=self.streams.travelling,
        )
        asked = [question.name for question in self.questions.asked]
        self.waiting = Waiting(self.roster, self.plan, self.serving, questions=asked, metrics=metrics, log=log)
        self.phase, self.reason = recorded_end(self.record_folder) or ("enrolment", "")
        self.has_record = self.phase in {"completed", "failed"}
        self.is_over = self.has_record  # nothing more is wanted of devices and LPSs
        self.changes = Changes()
        self._own_models: dict[str, str] = {}  # SHA-256 by cluster, of the final models that the GPS has itself
        self._telling: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._notes: set[asyncio.Task[None]] = set()
        self.questions.on_change = self.tell_soon
        self.questions.on_late_answer = self._place
        self.enrolment.on_return = lambda device: self._label_pods()
        self.rounds.on_closing = self.reports.keep_link_bytes
        self.rounds.on_closed = self._round_closed
        self.rounds.on_open = self.tell  # after the LPSs, who are waited for
        self.rounds.on_missing = lambda cluster_id, stage: self._exclude(cluster_id, stage, "missed the deadline")
        self.rounds.plan_version = lambda: self.plan.version
        self.rounds.on_going_back = self.plan.go_back_to
        self.asking = Asking(self.method, self.streams, plans=self.plan, journal=self.journal, changes=self.changes)
        if self.asking.question is not None:
            self.rounds.plan_round = self._plan_round
        self.reports.on_exclusion = self._exclude
        self.reports.is_trained = lambda: self.rounds.global_round == experiment.training.global_rounds

    @property
    def largest_payload_bytes(self) -> int:
        """The most that one call brings: an LPS's final model, or a device's answer."""
        return max(self.streams.model.float32_bytes, *map(largest_bytes, self.method.questions()), 0)

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
        self._metrics.phase(self.phase)

    # --- the phases ---------------------------------------------------------------------------

    async def conduct(self) -> None:
        """All phases; ends with a written record, whether the run was completed or not."""
        if self.has_record:  # an earlier life has ended the run; this one serves its record
            self.rounds.server.finish(self.reason)
            self.tell()
            return
        watching = asyncio.ensure_future(self.waiting.watch(self, self._tell_operator))
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
            watching.cancel()
            stopped.cancel()
            work.cancel()  # where this was cancelled itself: no round is closed under a journal about to be closed
        if not self.has_record:
            await asyncio.to_thread(write_record, self.record_folder, self._result())
            self.has_record = True
        self.tell()

    async def _phases(self) -> None:
        if not self.plan.is_made:
            self._enter("enrolment")
            if self.plan.lps_known:
                self._soon(self._backend.scale_lps(self.plan.lps_known))
            await self.enrolment.gather_devices()
            if len(self.questions.asked) > 1:
                self._enter("relevance")
                await self.enrolment.gather_answers()
            self._enter("grouping")
            await asyncio.to_thread(self._group)
        self._publish_plan()
        self._enter("training")
        watching = asyncio.ensure_future(self._watch_lps())
        watching.add_done_callback(self._watch_ended)
        try:
            await self._until_served()
            await self.rounds.run(self.plan.examples)
            models = self.rounds.final_models()
            self._own_models = await asyncio.to_thread(write_models, self.record_folder, models, self.experiment)
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
        self._label_pods()
        self.tell()

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.journal.begin_phase(phase)
        self.reports.keep_link_bytes()
        self._log.info("phase", phase=phase)
        self.tell()

    def _group(self) -> None:
        """Make the first plan."""
        devices = self.enrolment.candidates()
        described = self.plan.described(devices)
        plan = planned(self.method, Moment.BEFORE, Answers(described, self.questions.answers(devices)), None)
        plan.check_covers(described, may_be_empty=self.streams.spans)
        self.streams.check_plan(plan, self.method, None)
        reach("grouping")
        self.plan.make(BEFORE, plan)

    async def _plan_round(self, global_round: int) -> None:
        """Have the plan of a global round made of what devices answer in it."""
        deadline_s = self.experiment.deadlines.gps.deadline_s
        if await self.asking.plan_round(global_round, deadline_s):
            self._log.info("planned_again", global_round=global_round, rule=self.plan.rule)
            self.tell()

    def _publish_plan(self) -> None:
        """Let devices, LPSs and the operator know the clusters."""
        sizes = {name: len(devices) for name, devices in self.plan.homes.items()}
        self._log.info("grouped", rule=self.plan.rule, clusters=sizes)
        self._soon(self._backend.scale_lps(self.plan.lps_known))
        self._label_pods()
        for who, stage, reason in self.journal.exclusions():
            self._tell_operator("Excluded", f"{who}, {stage}: {reason}", is_warning=True)
        self._tell_operator("Grouped", f"{self.plan.rule}: {sizes}")
        self.questions.publish_sponsors(self.method.sponsors(self.plan.first) if self.plan.first is not None else ())

    def _exclude(self, who: str, stage: str, reason: str) -> None:
        """Note an exclusion, and tell the operator the first time it is heard of."""
        if self.journal.exclude(who, stage, reason):
            self._tell_operator("Excluded", f"{who}, {stage}: {reason}", is_warning=True)

    def _place(self, device: Device, arrays: Arrays) -> None:
        """Put a late device into the cluster that its answer speaks for."""
        cluster = self.method.place(arrays, self.questions.sponsors or ())
        self.plan.place(device, cluster, self.rounds.global_round + 1)
        self._log.info("device_placed_late", device=device.device_id, cluster=self.plan.cluster_name(cluster))
        self._label_pods()
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

    def stop(self, reason: str) -> None:
        """End the run without a result."""
        if not self.is_over:
            self.reason = reason
            self._stopped.set()

    # --- the record ---------------------------------------------------------------------------

    def _result(self) -> RunResult:
        """All that the record says, as it stands now; made where nothing changes meanwhile."""
        ids, first = self.experiment.device_ids(), self.plan.first
        reports = self.reports.all()
        reported = {name: report.model_sha256 for name, report in reports.items()}
        return RunResult(
            experiment=self.experiment,
            status="completed" if not self.reason else "failed",
            reason=self.reason or None,
            clusters=self.plan.clusters,
            clusters_rule=self.plan.rule,
            homes=self.plan.homes if self.streams.spans else None,
            evaluations=[evaluation for report in reports.values() for evaluation in report.evaluations],
            model_sha256=self._own_models if self.streams.spans else reported,
            lost_state=[d.device_id for _, d in sorted(self.roster.devices.items()) if d.has_lost_state],
            rows=[rounds_pb2.LpsRound.FromString(row) for row in self.journal.lps_rounds()],
            times=self.rounds.times.all(),
            link_bytes=self.reports.link_bytes(),
            exclusions=self.journal.exclusions(),
            adoptions=[(h.cluster_id, h.lps_id, self.serving.stage_of(h)) for h in self.serving.handovers],
            kernels=self.roster.kernels(),
            wall_seconds=wall_seconds(self.journal.phases()),
            global_rounds=self.rounds.global_round,
            relevance=first.affinity if first is not None else None,
            relevance_ids=[ids[index] for index in first.related] if first is not None else [],
        )

    def _tell_operator(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        self._soon(self._backend.record_event(reason, message, is_warning=is_warning))

    def _label_pods(self) -> None:
        self._soon(self._backend.label_pods(self.serving.pods()))

    def _soon(self, note: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(note)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
