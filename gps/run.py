"""One run at the GPS: its parts, its state, and the callers that wait for a change of the state."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from fedstrata.clock.clocks import clock_of
from fedstrata.datasets import dataset_info
from fedstrata.errors import PluginError, StateError
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, make_method
from fedstrata.models import build_model
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.waiting import Changes
from fedstrata.rounds import Refusals, RoundServer, RoundTerms
from fedstrata.rpc.answer_messages import largest_bytes
from fedstrata.streams.streams import streams_of
from fedstrata.tasks import make_task
from fedstrata.trust.security import Security
from gps.devices.enrolment import Enrolment
from gps.devices.questions import Questions
from gps.devices.roster import Device, Roster
from gps.hosting.adoption import Adoption
from gps.hosting.backend_calls import BackendCalls
from gps.hosting.reports import Reports
from gps.hosting.serving import Serving
from gps.hosting.waiting import Waiting
from gps.journal.journal import Journal
from gps.kubernetes.backend import Backend, Standing
from gps.plans.bundles import Bundles, placed
from gps.plans.global_rounds import GlobalRounds
from gps.plans.keepers import Keeper
from gps.plans.places import Places, described
from gps.plans.vector_files import VectorFiles
from gps.record_writer import recorded_end

NEWS_S = 0.1  # observers see news from devices at most this much later


class Run:
    """Hold one run: its devices, clusters, global rounds and record."""

    def __init__(
        self, experiment: Experiment, *, state: Path, metrics: ProcessMetrics, backend: Backend, log: EventLog,
        security: Security,
    ) -> None:  # fmt: skip
        self.experiment = experiment
        self.log = log
        self.metrics = metrics
        self.journal = Journal(state / "journal.sqlite", run_id=experiment.run_id, experiment=experiment.to_yaml())
        self.record_folder = state / "record"
        self.phase, self.reason = recorded_end(self.record_folder) or ("enrolment", "")
        self.has_record = self.phase in {"completed", "failed"}
        self.is_over = self.has_record  # devices and LPSs have nothing left to do
        if self.has_record:
            metrics.links.end()
        else:
            self.journal.continue_failed()
        self.changes = Changes()  # wakes held calls: clusters, LPSs or the phase changed
        self.news = Changes()  # wakes observers: also when a device enrols or answers
        self.own_models: dict[str, str] = {}  # SHA-256 by cluster, if the GPS has the final models
        self._showing: asyncio.TimerHandle | None = None
        self.stopped = asyncio.Event()
        self._newcomers_are_in = False  # whether the round in which newcomers join has begun

        self.clock = clock_of(experiment).gps(self.journal.clock)
        self.task = make_task(experiment)
        self.method = make_method(experiment)
        metrics.links.questions = frozenset(question.name for question in self.method.questions())
        model = build_model(experiment.model, dataset_info(experiment.data))
        self.streams = streams_of(experiment, self.method, model)
        self.roster = Roster(experiment, self.journal)
        self.places = Places(experiment, self.method, self.roster, self.journal)
        self.plans = self.places.plans
        self.serving = Serving(experiment, self.places, self.journal, security)
        self.backend = BackendCalls(backend, serving=self.serving, journal=self.journal)
        self._open_enrolment()
        self._open_training(state, Keeper(experiment, self.method, model, self.streams, self.places, folder=state))

    def _open_enrolment(self) -> None:
        """Construct the parts of the run that are needed before devices are grouped."""
        self.questions = Questions(
            self.method, roster=self.roster, journal=self.journal, log=self.log, on_change=self.tell_soon,
            on_late=self._place,
            clock=self.clock.questions,
        )  # fmt: skip
        self.enrolment = Enrolment(
            self.experiment, questions=self.questions, roster=self.roster, journal=self.journal, log=self.log,
            on_return=self.backend.label_pods,
        )  # fmt: skip
        asked = [question.name for question in self.questions.asked]
        self.waiting = Waiting(
            self.roster, self.places, self.serving, questions=asked, metrics=self.metrics, log=self.log
        )

    def _open_training(self, state: Path, keeper: Keeper) -> None:
        """Construct the parts of the run that are needed after devices are grouped."""
        self.reports = Reports(
            self.experiment, places=self.places, serving=self.serving, journal=self.journal, metrics=self.metrics,
            models=self.record_folder / "models", layout=self.streams.travelling, exclude=self.backend.exclude,
        )  # fmt: skip
        self.bundles = Bundles(
            self.method, self.streams, places=self.places, journal=self.journal, changes=self.changes, log=self.log,
            clock=self.clock, awaited=self.serving.awaited,
        )  # fmt: skip
        executor = ThreadPoolExecutor(1, thread_name_prefix="fold")
        self.rounds = GlobalRounds(
            self.experiment,
            files=VectorFiles(self.experiment, keeper, state, self.log),
            places=self.places,
            plan_round=self.bundles.plan_round,
            journal=self.journal,
            clock=self.clock,
            server=self._round_server(keeper),
            executor=executor,
        )
        self.adoption = Adoption(
            self.experiment, serving=self.serving, rounds=self.rounds, journal=self.journal, backend=self.backend,
            changes=self.changes, tell=self.tell, log=self.log,
        )  # fmt: skip

    def _round_server(self, keeper: Keeper) -> RoundServer:
        terms = RoundTerms(
            run_id=self.journal.attempt_id,
            link=self.experiment.links.lps_gps,
            wait=self.experiment.deadlines.gps,
            clock=self.clock.rounds,
        )
        refused = Refusals(
            self.log, self._refuse_lps, known=self.serving.refusals(), has_child=lambda home: home in self.places.homes
        )
        return RoundServer(terms, self.metrics, self.log, accepts_updates=keeper.acceptance, refused=refused)

    @property
    def largest_payload_bytes(self) -> int:
        """The size in bytes of the largest payload that the GPS receives: a final model from an LPS, or an answer from
        a device.
        """
        return max(self.streams.whole.float32_bytes, *map(largest_bytes, self.method.questions()), 0)

    def tell_soon(self) -> None:
        """Wake all observers of the run soon, but not the calls that wait for a change. Several changes within a moment
        wake the observers only once.
        """
        if self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(NEWS_S, self._show)

    def tell(self) -> None:
        """Wake all waiting calls and observers, so that they look at the state again."""
        self.changes.tell()
        self._show()

    def _show(self) -> None:
        if self._showing is not None:
            self._showing.cancel()
            self._showing = None
        self.news.tell()
        self.metrics.devices(self.roster.states())
        self.metrics.phase(self.phase)
        done, rounds = self.rounds.global_round, self.experiment.training.global_rounds
        self.backend.show(Standing(phase=self.phase, global_round=done, global_rounds=rounds, reason=self.reason))

    def enter(self, phase: str) -> None:
        """Begin a phase of the run, and write its beginning to the journal."""
        self.phase = phase
        self.journal.begin_phase(phase)
        self.reports.counts.keep()
        self.log.info("phase", phase=phase)
        self.tell()

    def fail(self, reason: str) -> None:
        """End the run as failed. This also works if the journal cannot be written, because a disk error may be the
        reason.
        """
        self.reason = reason
        self.log.error("run_failed", reason=reason)
        with suppress(StateError):
            self.enter("failed")
        self.phase, self.is_over = "failed", True
        self.tell()

    def end(self) -> None:
        """End the run: devices and LPSs get no more work."""
        self.is_over = True

    def note_record(self) -> None:
        """Note that the record is complete and can be fetched."""
        self.has_record = True

    def _refuse_lps(self, home_id: str, reason: str) -> None:
        """Refuse an LPS that has sent an impossible value, and continue the run without this LPS. If the run has
        deadlines, other LPSs adopt the LPS's clusters.
        """
        with self.journal.together():
            self.backend.exclude(home_id, self.serving.stage_of(self.rounds.global_round), f"refused: {reason}")
            self.serving.refuse(home_id, reason)
        self.tell()

    def _place(self, device: Device) -> None:
        """Put a late device into the cluster that the method chooses, based on the device's answers."""
        plan = self.plans.newest
        founders = [self.roster.devices[index] for cluster in plan.clusters for index in cluster]
        answers = Answers(described(self.experiment, founders), self.questions.answers([*founders, device]))
        try:
            cluster = placed(self.method, described(self.experiment, [device])[0], answers, plan)
        except PluginError as error:
            self.stop(str(error))  # otherwise only the device would get the error, and the run would wait for it
            raise
        self.places.place(device, cluster, self._first_round(device))
        self.log.info("device_placed_late", device=device.device_id, cluster=self.places.cluster_name(cluster))
        self.backend.label_pods()
        self.tell()

    def _first_round(self, device: Device) -> int:
        """Return the global round from which a late device takes part. This is the next global round. But a newcomer
        takes part from the global round that the experiment names, if that global round has not begun.
        """
        is_in_time = device.device_index in self.roster.newcomers and not self._newcomers_are_in
        return device.from_global_round if is_in_time else self.rounds.global_round + 1

    async def joined(self, global_round: int) -> None:
        """If newcomers join in this global round, wait for them."""
        settings = self.experiment.newcomers
        if settings is not None and global_round == settings.from_global_round - 1:
            await self.enrolment.gather_newcomers()
        if settings is not None and global_round >= settings.from_global_round - 1:
            self._newcomers_are_in = True

    def has_news(self, known_version: int) -> bool:
        """Return whether the run is over, or the plan has changed since the version that an LPS knows."""
        is_told = self.plans.is_made and self.clock.knows_start
        return self.is_over or (is_told and self.places.version != known_version)

    def stop(self, reason: str) -> None:
        """End the run without a result."""
        if not self.is_over:
            self.reason = reason
            self.stopped.set()
