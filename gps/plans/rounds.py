"""The global rounds: LPSs send what they have of every stream, the GPS moves the streams and hands them back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedstrata.clock.gps_side import GpsClock
from fedstrata.clock.round import Exchanged
from fedstrata.errors import StateError
from fedstrata.experiment import Experiment
from fedstrata.optimisers.files import OptimiserFiles
from fedstrata.optimisers.server import Move, server_optimiser
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import Intake, OpenRound, Refusals, RoundResult, RoundServer, RoundTerms
from fedstrata.store import AnyModel, ModelFile, ModelInMemory, clear_asides, write_model
from fedstrata.store.model_file import joined
from fedstrata.tensors import Flat, Layout, Sums
from gps.journal.journal import Journal
from gps.plans.asking import Asking
from gps.plans.keepers import Keeper
from gps.plans.plan import Plans


@dataclass(frozen=True)
class ClosedRound:
    """A global round that is over."""

    done: int  # global rounds, with it
    missing: Sequence[str]  # the clusters that missed its deadline
    moved: Sequence[str] = ()  # the devices that hang on another LPS from the next one on


class GlobalRounds:
    """Opens each global round for the LPSs and moves what the GPS keeps by what comes back."""

    def __init__(
        self, experiment: Experiment, *, keeper: Keeper, plans: Plans, asking: Asking, folder: Path, journal: Journal,
        keep_counts: Callable[[], None], tell: Callable[[], None], metrics: ProcessMetrics, log: EventLog,
        clock: GpsClock, refused: Refusals,
    ) -> None:  # fmt: skip
        """`keep_counts` is called in the transaction that closes a round, `tell` whenever a round is open."""
        self._experiment = experiment
        self._keeper = keeper
        self._plans = plans
        self._asking = asking
        self._keep_counts = keep_counts
        self._tell = tell
        self._folder = folder
        self._journal = journal
        self._metrics = metrics
        self._log = log
        exchange = RoundTerms(
            run_id=experiment.run_id,
            layout=Layout(()),  # each round says what it takes
            link=experiment.links.lps_gps,
            wait=experiment.deadlines.gps,
            clock=clock.rounds,
        )
        self._clock = clock
        optimiser = server_optimiser(experiment.training.gps_optimiser)
        self._optimiser = OptimiserFiles(optimiser, folder, self._metadata)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fold")
        self.server = RoundServer(
            exchange, metrics, log, self._executor, accepts_updates=keeper.acceptance, refused=refused
        )
        self.global_round = journal.global_rounds_closed()

    async def closed(self, joined: Callable[[int], Awaitable[None]]) -> AsyncIterator[ClosedRound]:
        """All global rounds that are still to do, each when it is closed, before the next is opened.

        A round is opened, and after the last one the final measurement, once those are there who join in it.
        """
        model: AnyModel = await asyncio.to_thread(self._begin)
        await asyncio.to_thread(self._clock.begin)
        self._clock.resume(self.global_round)
        while self.global_round < self._experiment.training.global_rounds:
            started = time.monotonic()
            await joined(self.global_round)
            children = self._plans.examples(self.global_round)
            self._open(model, children, evaluate_only=False)
            if await self._asking.plan_round(self.global_round, self._experiment.deadlines.gps.deadline_s):
                self._tell()
            sums = self._keeper.sums(children, self.global_round)
            self.server.go_on({}, sums)
            gathered = await self.server.gather()
            times = self._clock.of_round(self.global_round, partial(self._exchanged, gathered))
            following = await asyncio.to_thread(self._save_following, model, sums)
            model.close()
            model = following
            with self._journal.together(durable=True):  # from here to the next round's opening nothing is waited for
                self._journal.close_global_round(self.global_round)
                self._clock.keep(self.global_round, times)
                self._keep_counts()
                moved = self._move(self.global_round + 1)
            self._note_closed(gathered, time.monotonic() - started)
            self.global_round += 1
            yield ClosedRound(self.global_round, gathered.missing, moved)
        self.final = model
        await joined(self.global_round)
        self._open(model, self._plans.examples(self.global_round), evaluate_only=True)

    def _move(self, global_round: int) -> list[str]:
        """Let devices hang on other LPSs from a global round on, where the schedule has moved them as it begins."""
        if global_round == self._experiment.training.global_rounds:
            return []
        moved = self._plans.move(global_round, self._clock.homes.at(self._clock.now_ns(global_round)))
        if moved:
            self._log.info("devices_moved", global_round=global_round, devices=moved)
        return moved

    def _exchanged(self, gathered: RoundResult) -> Mapping[str, Exchanged]:
        """What went between the GPS and the LPSs; nothing down, where LPSs have themselves what all begin with."""
        exchanged = self.server.exchanged(gathered)
        if self.global_round or self._keeper.is_fetched_first:
            return exchanged
        return {name: replace(each, down_bytes=0) for name, each in exchanged.items()}

    def _note_closed(self, gathered: RoundResult, seconds: float) -> None:
        self._metrics.round_closed(seconds)
        self._log.info(
            "global_round_closed",
            global_round=self.global_round,
            clusters=gathered.children,
            train_loss=round(gathered.train_loss, 6),
            seconds=round(seconds, 4),
            missing=list(gathered.missing),
        )

    def final_models(self) -> dict[str, AnyModel]:
        """The clusters' models, by name, that the GPS has once training is over."""
        return self._keeper.models(self.final, self.global_round)

    def _save_following(self, model: AnyModel, sums: Sums) -> AnyModel:
        """Write what the next global round starts from; gives it, small vectors without reading them again."""
        following, layout = self.global_round + 1, self._keeper.layout(self.global_round + 1)
        self._optimiser.save(following, layout, partial(self._moves, model, sums))
        pieces = self._optimiser.moved(self._moves(model, sums))
        if not layout.is_small:
            self._save(following, layout, pieces)
            return ModelFile(self._path(following), layout)
        moved = ModelInMemory(layout, joined(pieces), self._metadata(following))
        self._save(following, layout, moved.pieces(), moved.digest)
        return moved

    def _moves(self, model: AnyModel, sums: Sums) -> Iterator[Move]:
        """How the model moves, piece by piece: where it stands, by how much, and the optimiser's state there."""
        for move in self._keeper.moves(model, sums, self.global_round):
            base, update = model.read(move.start, move.stop), move.update
            if update is not None and move.is_absolute:
                base, update = (base, update - base) if self._optimiser.has_state else (update, None)
            yield base, update, self._optimiser.at(self.global_round, model.layout, move.start, move.stop)

    def _open(self, model: AnyModel, children: Mapping[str, int], *, evaluate_only: bool) -> None:
        intake = Intake(children=children, wait=self._experiment.deadlines.gps, executor=self._executor)
        opened = OpenRound(
            number=self.global_round,
            global_round=self.global_round,
            offers={0: self._keeper.offer(model, self.global_round)},
            intake=intake,
            evaluate_only=evaluate_only,
            plan_version=self._plans.version,
            begins_ns=self._clock.begins_ns(self.global_round),
        )
        self.server.open(opened)
        self._tell()  # after the LPSs, who are waited for

    def _begin(self) -> ModelFile:
        """What the open global round starts from, or of the one before if that file is damaged.

        Raises:
            StateError: neither file is whole, or training is over and nobody could repeat its last round.
        """
        clear_asides(self._folder)
        rounds = self._experiment.training.global_rounds
        if not self.global_round:
            layout = self._keeper.layout(0)
            self._save(0, layout, self._keeper.initial())
            self._optimiser.begin(0, layout)
            return ModelFile(self._path(0), layout)
        try:
            found = self._open_whole(self.global_round)
        except StateError as error:
            if self.global_round == rounds:
                raise
            self._log.warning("state_passed_over", reason=str(error))
            self.global_round -= 1
            self._plans.go_back_to(self.global_round)
            found = self._open_whole(self.global_round)
        self._log.info("rounds_resumed", global_round=self.global_round)
        return found

    def _open_whole(self, global_round: int) -> ModelFile:
        found = ModelFile(self._path(global_round), self._keeper.layout(global_round))
        found.verify()
        self._optimiser.begin(global_round, self._keeper.layout(global_round))
        expected = self._metadata(global_round)
        if found.metadata != expected:
            raise StateError(f"{found.path}: of {found.metadata}, expected {expected}; it is another file renamed")
        return found

    def _metadata(self, global_round: int) -> dict[str, str]:
        return {"format": "fedstrata", "run_id": self._experiment.run_id, "global_round": str(global_round)}

    def _save(self, global_round: int, layout: Layout, pieces: Iterator[Flat], digest: bytes = b"") -> None:
        write_model(self._path(global_round), layout, pieces, self._metadata(global_round), digest=digest)
        self._path(global_round - 2).unlink(missing_ok=True)
        self._optimiser.remove(global_round - 2)

    def _path(self, global_round: int) -> Path:
        return self._folder / f"shared-{global_round:06d}.safetensors"
