"""The global rounds: clusters send their shared layers' updates, the GPS averages them and hands the mean back."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedstrata.errors import StateError
from fedstrata.experiment import Experiment
from fedstrata.logs import EventLog
from fedstrata.metrics import ProcessMetrics
from fedstrata.models import Model
from fedstrata.rounds import Exchange, Intake, OpenRound, RoundServer
from fedstrata.store import AnyModel, ModelFile, ModelInMemory, clear_asides, write_model
from fedstrata.store.model_file import joined, pieces_of
from fedstrata.tensors import SMALL_BYTES, ExactSum, Flat
from gps.journal import Journal


class GlobalRounds:
    """Opens each global round for the clusters and moves the shared layers by the mean of their updates."""

    def __init__(
        self, experiment: Experiment, *, model: Model, sum_name: str, folder: Path, journal: Journal,
        metrics: ProcessMetrics, log: EventLog,
    ) -> None:  # fmt: skip
        self._experiment = experiment
        self._model = model
        self._layout = model.layout.select(model.shared)
        self._folder = folder
        self._journal = journal
        self._metrics = metrics
        self._log = log
        exchange = Exchange(
            run_id=experiment.run_id,
            layout=self._layout,
            part=sum_name,
            link=experiment.links.lps_gps,
            wait=experiment.deadlines.gps,
        )
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fold")
        self.server = RoundServer(exchange, metrics, log, self._executor)
        self.global_round = journal.global_rounds_closed()
        self.plan_version: Callable[[], int] = lambda: 0
        self.on_closing: Callable[[], None] = lambda: None  # in the transaction that closes a round
        self.on_closed: Callable[[int], None] = lambda global_round: None
        self.on_open: Callable[[], None] = lambda: None
        self.on_missing: Callable[[str, str], None] = lambda cluster_id, stage: None

    async def run(self, examples: Callable[[], Mapping[str, int]]) -> None:
        """All global rounds; `examples` gives each cluster's number of examples, at each round anew."""
        shared: AnyModel = await asyncio.to_thread(self._begin)
        while self.global_round < self._experiment.training.global_rounds:
            started = time.monotonic()
            children = dict(examples())
            total = ExactSum(self._layout.size, sum(children.values()))
            self._open(shared, children, total, evaluate_only=False)
            gathered = await self.server.gather()
            pieces = (shared.read(a, b) + total.mean(a, b) for a, b in pieces_of(self._layout.size))
            following = await asyncio.to_thread(self._save_following, pieces)
            shared.close()
            shared = following
            with self._journal.together(durable=True):  # from here to the next round's opening nothing is waited for
                self._journal.close_global_round(self.global_round)
                self.on_closing()
            seconds = time.monotonic() - started
            self._metrics.round_closed(seconds)
            self._log.info(
                "global_round_closed",
                global_round=self.global_round,
                clusters=gathered.children,
                train_loss=round(gathered.train_loss, 6),
                seconds=round(seconds, 4),
                missing=list(gathered.missing),
            )
            for cluster_id in gathered.missing:
                self.on_missing(cluster_id, f"global round {self.global_round + 1}")
            self.global_round += 1
            self.on_closed(self.global_round)
        self._open(shared, dict(examples()), ExactSum(0, 1), evaluate_only=True)

    def _save_following(self, pieces: Iterator[Flat]) -> AnyModel:
        """Write the shared layers of the next global round; gives them, small ones without reading them again."""
        following = self.global_round + 1
        if self._layout.float32_bytes > SMALL_BYTES:
            self._save(following, pieces)
            return ModelFile(self._path(following), self._layout)
        model = ModelInMemory(self._layout, joined(pieces), self._metadata(following))
        self._save(following, model.pieces(), model.digest)
        return model

    def _open(self, shared: AnyModel, children: Mapping[str, int], total: ExactSum, *, evaluate_only: bool) -> None:
        intake = Intake(children=children, total=total, wait=self._experiment.deadlines.gps, executor=self._executor)
        opened = OpenRound(
            number=self.global_round,
            global_round=self.global_round,
            model=shared,
            intake=intake,
            evaluate_only=evaluate_only,
            plan_version=self.plan_version(),
        )
        self.server.open(opened)
        self.on_open()

    def _begin(self) -> ModelFile:
        """The shared layers at the start of the open global round, or of the one before if that file is damaged.

        Raises:
            StateError: neither file is whole, or training is over and nobody could repeat its last round.
        """
        clear_asides(self._folder)
        rounds = self._experiment.training.global_rounds
        if not self.global_round:
            initial = self._model.initial(self._experiment.seed)
            self._save(0, (initial[place] for place in self._model.layout.slices_of(self._layout)))
            return ModelFile(self._path(0), self._layout)
        try:
            found = self._open_whole(self.global_round)
        except StateError as error:
            if self.global_round == rounds:
                raise
            self._log.warning("state_passed_over", reason=str(error))
            self.global_round -= 1
            found = self._open_whole(self.global_round)
        self._log.info("rounds_resumed", global_round=self.global_round)
        return found

    def _open_whole(self, global_round: int) -> ModelFile:
        found = ModelFile(self._path(global_round), self._layout)
        found.verify()
        expected = self._metadata(global_round)
        if found.metadata != expected:
            raise StateError(f"{found.path}: of {found.metadata}, expected {expected}; it is another file renamed")
        return found

    def _metadata(self, global_round: int) -> dict[str, str]:
        return {"format": "fedstrata", "run_id": self._experiment.run_id, "global_round": str(global_round)}

    def _save(self, global_round: int, pieces: Iterator[Flat], digest: bytes = b"") -> None:
        write_model(self._path(global_round), self._layout, pieces, self._metadata(global_round), digest=digest)
        self._path(global_round - 2).unlink(missing_ok=True)

    def _path(self, global_round: int) -> Path:
        return self._folder / f"shared-{global_round:06d}.safetensors"
