"""A run from its first device to its record: the phases in order, each entered again after a restart."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedstrata.clock.clocks import clock_of
from fedstrata.datasets import dataset_info
from fedstrata.errors import FedstrataError, PluginError, RunStoppedError, StateError
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, Moment, make_method
from fedstrata.models import build_model
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.sleeping import Changes
from fedstrata.record.timeline import RunTimes
from fedstrata.record.timing import Timing
from fedstrata.rounds import Refusals
from fedstrata.rpc.answers import largest_bytes
from fedstrata.streams.streams import streams_of
from fedstrata.trust.files import TlsFiles
from fedstrata.v1 import gps_service_pb2 as pb
from gps.devices.enrolment import Enrolment
from gps.devices.questions import Questions
from gps.devices.roster import Device, Roster
from gps.hosting.adoption import Adoption
from gps.hosting.desired import Operator
from gps.hosting.reports import Reports
from gps.hosting.serving import Serving
from gps.hosting.waiting import Waiting
from gps.journal.journal import BEFORE, Journal
from gps.journal.lps_rounds import LpsRounds
from gps.kubernetes.backend import Backend
from gps.plans.asking import Asking, placed, planned
from gps.plans.keepers import Keeper, keeper_of
from gps.plans.plan import Plans
from gps.plans.rounds import ClosedRound, GlobalRounds
from gps.record import RunResult, recorded_end, wall_seconds, write_models, write_record

NEWS_S = 0.1  # how long what devices say may wait to be shown
EVENT_EVERY = 10  # global rounds between two notes to the operator


class Run:
    """One run: its devices, clusters, global rounds and record."""

    def __init__(
        self, experiment: Experiment, *, state: Path, metrics: ProcessMetrics, backend: Backend, log: EventLog,
        tls: TlsFiles | None = None,
    ) -> None:  # fmt: skip
        self.experiment = experiment
        self._log = log
        self._metrics = metrics
        self.journal = Journal(state / "journal.sqlite", run_id=experiment.run_id, experiment=experiment.to_yaml())
        self.record_folder = state / "record"
        self.phase, self.reason = recorded_end(self.record_folder) or ("enrolment", "")
        self.has_record = self.phase in {"completed", "failed"}
        self.is_over = self.has_record  # nothing more is wanted of devices and LPSs
        self.changes = Changes()  # what held calls wait for: clusters, LPSs, phases
        self.news = Changes()  # what is shown, too: how many devices are there, and how they do
        self._own_models: dict[str, str] = {}  # SHA-256 by cluster, of the final models that the GPS has itself
        self._showing: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._newcomers_are_in = False  # whether the round has begun in which they join

        self.clock = clock_of(experiment).gps(self.journal)
        self.method = make_method(experiment)
        metrics.links.questions = frozenset(question.name for question in self.method.questions())
        model = build_model(experiment.model, dataset_info(experiment.data))
        self.streams = streams_of(experiment, self.method, model)
        self.roster = Roster(experiment, self.journal)
        self.plan = Plans(experiment, self.method, self.roster, self.journal)
        self.serving = Serving(experiment, self.plan, self.journal, tls=tls)
        self._operator = Operator(backend, serving=self.serving, journal=self.journal)
        self._open_enrolment()
        self._open_training(state, keeper_of(experiment, self.method, model, self.streams, self.plan))

    def _open_enrolment(self) -> None:
        """What is needed until devices are grouped."""
        self.questions = Questions(
            self.method, roster=self.roster, journal=self.journal, log=self._log, on_change=self.tell_soon,
            on_late=self._place,
            clock=self.clock.questions,
        )  # fmt: skip
        self.enrolment = Enrolment(
            self.experiment, questions=self.questions, roster=self.roster, journal=self.journal, log=self._log,
            on_return=self._operator.label_pods,
        )  # fmt: skip
        asked = [question.name for question in self.questions.asked]
        self.waiting = Waiting(
            self.roster, self.plan, self.serving, questions=asked, metrics=self._metrics, log=self._log
        )

    def _open_training(self, state: Path, keeper: Keeper) -> None:
        """What is needed from then on."""
        self.reports = Reports(
            self.experiment, plan=self.plan, serving=self.serving, journal=self.journal, metrics=self._metrics,
            models=self.record_folder / "models", layout=self.streams.travelling, exclude=self._operator.exclude,
        )  # fmt: skip
        self.asking = Asking(
            self.method, self.streams, plans=self.plan, journal=self.journal, changes=self.changes, log=self._log,
            clock=self.clock,
        )  # fmt: skip
        self.rounds = GlobalRounds(
            self.experiment, keeper=keeper, plans=self.plan, asking=self.asking, folder=state, journal=self.journal,
            keep_counts=self.reports.keep_link_bytes, tell=self.tell, metrics=self._metrics, log=self._log,
            clock=self.clock, refused=Refusals(self._log, self._refuse_lps),
        )  # fmt: skip
        self._adoption = Adoption(
            self.experiment, serving=self.serving, rounds=self.rounds, journal=self.journal, operator=self._operator,
            changes=self.changes, tell=self.tell, log=self._log,
        )  # fmt: skip

    @property
    def largest_payload_bytes(self) -> int:
        """The most that one call brings: an LPS's final model, or a device's answer."""
        return max(self.streams.whole.float32_bytes, *map(largest_bytes, self.method.questions()), 0)

    def tell_soon(self) -> None:
        """Show soon what devices say: those who watch look again once for all that changes within a moment."""
        if self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(NEWS_S, self._show)

    def tell(self) -> None:
        """Let every held call look again, and everybody who watches."""
        self.changes.tell()
        self._show()

    def _show(self) -> None:
        if self._showing is not None:
            self._showing.cancel()
            self._showing = None
        self.news.tell()
        self._metrics.devices(self.roster.states())
        self._metrics.phase(self.phase)

    # --- the phases ---------------------------------------------------------------------------

    async def conduct(self) -> None:
        """All phases; ends with a written record, whether the run was completed or not."""
        if self.has_record:  # an earlier life has ended the run; this one serves its record
            self.rounds.server.finish(self.reason)
            self.tell()
            return
        watching = asyncio.ensure_future(self.waiting.watch(self, self._operator.tell))
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
            self._operator.tell("RunFailed", self.reason, is_warning=True)
        finally:
            watching.cancel()
            self.waiting.end()
            stopped.cancel()
            work.cancel()  # where this was cancelled itself: no round is closed under a journal about to be closed
        if not self.has_record:
            await asyncio.to_thread(write_record, self.record_folder, *self._result())
            self.has_record = True
        self.tell()

    async def _phases(self) -> None:
        if not self.plan.is_made:
            self._enter("enrolment")
            if self.plan.lps_known:
                self._operator.scale_lps(self.plan.lps_known)
            await self.enrolment.gather_devices()
            if len(self.questions.asked) > 1:
                self._enter("relevance")
                await self.enrolment.gather_answers()
            self._enter("grouping")
            await asyncio.to_thread(self._group)
        self._publish_plan()
        self._enter("training")
        watching = asyncio.ensure_future(self._adoption.watch())
        watching.add_done_callback(self._watch_ended)
        try:
            await self._adoption.until_served()
            async for closed in self.rounds.closed(self._joined):
                self._after(closed)
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
        await asyncio.to_thread(write_record, self.record_folder, *self._result())
        self._enter("completed")
        self.has_record = True  # not before: who watches takes the status with the record for the last
        self._operator.tell("RunCompleted", f"{self.experiment.run_id}: {self.rounds.global_round} global rounds")

    async def _gather_reports(self) -> None:
        """Wait until every cluster has reported, or for the deadline of global rounds, anew after an adoption."""
        handovers = -1
        while handovers < len(self.serving.handovers):
            handovers = len(self.serving.handovers)
            deadline_s = self.experiment.deadlines.gps.deadline_s
            if deadline_s is not None:
                deadline_s += self.serving.hold_s  # who fell silent as training ended is away by then, and adopted
            await self.changes.wait_until(lambda: not self._unreported(), deadline_s)
            if not self._unreported():
                return
        for cluster_id in self._unreported():
            self._log.warning("report_missing", cluster=cluster_id)
            self._operator.exclude(cluster_id, "evaluation", "no report by the deadline")

    def _unreported(self) -> list[str]:
        """The clusters whose reports may still come."""
        return [name for name in self.reports.missing() if not self.serving.is_refused(self.serving.lps_of(name))]

    def _refuse_lps(self, cluster_id: str, reason: str) -> None:
        """Go on without an LPS that has sent what none sends; its clusters are as those of one that is away."""
        self.serving.refuse(self.serving.lps_of(cluster_id))
        self._operator.exclude(cluster_id, f"global round {self.rounds.global_round + 1}", f"refused: {reason}")
        self.tell()

    def _watch_ended(self, watching: "asyncio.Future[None]") -> None:
        """A handover that cannot be written down ends the run."""
        if not watching.cancelled() and (error := watching.exception()):
            self.stop(str(error))

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

    def _publish_plan(self) -> None:
        """Let devices, LPSs and the operator know the clusters."""
        sizes = {name: len(devices) for name, devices in self.plan.homes.items()}
        self._log.info("grouped", rule=self.plan.rule, clusters=sizes)
        self._operator.scale_lps(self.plan.lps_known)
        self._operator.label_pods()
        for who, stage, reason in self.journal.exclusions():
            self._operator.tell_excluded(who, stage, reason)
        self._operator.tell("Grouped", f"{self.plan.rule}: {sizes}")
        self.questions.publish_sponsors(self.method.sponsors(self.plan.first) if self.plan.first is not None else ())

    def _place(self, device: Device) -> None:
        """Put a late device into the cluster that its answers speak for."""
        plan = self.plan.now
        founders = [self.roster.devices[index] for cluster in plan.clusters for index in cluster]
        answers = Answers(self.plan.described(founders), self.questions.answers([*founders, device]))
        try:
            cluster = placed(self.method, self.plan.described([device])[0], answers, plan)
        except PluginError as error:
            self.stop(str(error))  # else the device alone would hear of it, and the run wait for it
            raise
        self.plan.place(device, cluster, self._first_round(device))
        self._log.info("device_placed_late", device=device.device_id, cluster=self.plan.cluster_name(cluster))
        self._operator.label_pods()
        self.tell()

    def _first_round(self, device: Device) -> int:
        """The global round from which on a late device takes part: a newcomer's own, as long as that is not begun."""
        is_in_time = device.device_index in self.roster.newcomers and not self._newcomers_are_in
        return device.from_global_round if is_in_time else self.rounds.global_round + 1

    async def _joined(self, global_round: int) -> None:
        """Before the global round in which newcomers join, wait for them."""
        settings = self.experiment.newcomers
        if settings is not None and global_round == settings.from_global_round - 1:
            await self.enrolment.gather_newcomers()
        if settings is not None and global_round >= settings.from_global_round - 1:
            self._newcomers_are_in = True

    def _after(self, closed: ClosedRound) -> None:
        """What a closed global round leads to."""
        stage = f"global round {closed.done}"
        refused = {who for who, at, _ in self.journal.exclusions() if at == stage} | set(self.rounds.server.refused)
        for cluster_id in closed.missing:
            if cluster_id not in refused:
                self._operator.exclude(cluster_id, stage, "missed the deadline")
        if closed.done < self.experiment.training.global_rounds:  # else who trained last has the model measured, too
            self._adoption.hand_back()
        if closed.moved:
            self._operator.label_pods()
        if closed.done % EVENT_EVERY == 0:
            rounds = f"{closed.done} of {self.experiment.training.global_rounds} global rounds"
            self._operator.tell("RoundsDone", rounds)

    def has_news(self, known_version: int) -> bool:
        """Whether there is something to tell an LPS that knows the plan of a version."""
        is_told = self.plan.is_made and self.clock.knows_start
        return self.is_over or (is_told and self.plan.version != known_version)

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

    def standing(self) -> RunResult:
        """What the record would say if the run ended now, but for the matrix, which can be large."""
        reports = self.reports.all()
        reported = {name: report.model_sha256 for name, report in reports.items()}
        return RunResult(
            experiment=self.experiment,
            status="completed" if not self.reason else "failed",
            reason=self.reason or None,
            clusters=self.plan.clusters,
            clusters_rule=self.plan.rule,
            plans=self.plan.history(),
            homes=self.plan.homes if self.streams.spans else None,
            moves=self.plan.moves(),
            evaluations=[evaluation for report in reports.values() for evaluation in report.evaluations],
            model_sha256=self._own_models if self.streams.spans else reported,
            lost_state=[d.device_id for _, d in sorted(self.roster.devices.items()) if d.has_lost_state],
            link_bytes=self.reports.link_bytes(),
            exclusions=self.journal.exclusions(),
            adoptions=[(h.cluster_id, h.lps_id, self.serving.stage_of(h)) for h in self.serving.handovers],
            kernels=self.roster.kernels(),
            wall_seconds=wall_seconds(self.journal.phases()),
            global_rounds=self.rounds.global_round,
            relevance=None,
            relevance_ids=[],
        )

    def _result(self) -> tuple[RunResult, Timing]:
        """All that the record says; made where nothing changes meanwhile."""
        ids, first, clock = self.experiment.device_ids(), self.plan.first, self.clock
        result = replace(
            self.standing(),
            relevance=first.affinity if first is not None else None,
            relevance_ids=[ids[index] for index in first.related] if first is not None else [],
        )
        timing = Timing(
            experiment=self.experiment,
            rows=LpsRounds(self.journal),
            times=RunTimes(before=clock.before, global_rounds=dict(clock.closed), asked=clock.asked),
            carried_before=self.questions.carried(),
        )
        return result, timing
