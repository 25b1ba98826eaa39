"""The vector that LPSs receive at the start of each global round. It has the values of all streams that the GPS keeps
(see `gps.plans.keepers`). Each vector is written to a file, so that a restarted GPS can continue from it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fedstrata.errors import StateError
from fedstrata.experiment import Experiment
from fedstrata.optimisers.server_optimisers import server_optimiser
from fedstrata.optimisers.state_files import Move, OptimiserFiles, without_optimiser
from fedstrata.process.logs import EventLog
from fedstrata.rules import Gathering
from fedstrata.store import GLOBAL_ROUNDS_KEPT, AnyModel, ModelFile, ModelInMemory, clear_asides, write_model
from fedstrata.store.model_file import joined
from fedstrata.tensors import Flat, Layout
from gps.plans.keepers import Keeper


class VectorFiles:
    """Write and read the files of global rounds. Each global round has a file for the vector and, if the GPS's
    optimiser has a state, a file for this state.
    """

    def __init__(self, experiment: Experiment, keeper: Keeper, folder: Path, log: EventLog) -> None:
        self.keeper = keeper
        self._experiment = experiment
        self._folder = folder
        self._log = log
        self._optimiser = OptimiserFiles(server_optimiser(keeper.optimiser), folder, self._metadata)

    def begin(self, global_round: int) -> tuple[ModelFile, int]:
        """Return the file with the vector at the start of a global round, and the round's number. If this file is
        damaged, return the file and the number of the previous round.

        Raises:
            StateError: both files are damaged, or training is over and the file with its result is damaged.
        """
        clear_asides(self._folder)
        if not global_round:
            layout = self.keeper.layout(0)
            self._save(0, layout, self.keeper.initial())
            self._optimiser.begin(0, layout)
            return ModelFile(self._path(0), layout), 0
        try:
            found = self._open(global_round)
        except StateError as error:
            if global_round == self._experiment.training.global_rounds:
                raise
            self._log.warning("state_passed_over", reason=str(error))
            global_round -= 1
            found = self._open(global_round)
        self._log.info("rounds_resumed", global_round=global_round)
        return found, global_round

    def _open(self, global_round: int) -> ModelFile:
        found = self._whole(global_round)
        self._optimiser.begin(global_round, self.keeper.layout(global_round))
        return found

    def earlier(self, global_round: int) -> ModelFile | None:
        """Return the file with the vector at the start of an earlier global round. If the file is missing or damaged,
        return None.
        """
        try:
            return self._whole(global_round)
        except StateError as error:
            self._log.warning("state_passed_over", reason=str(error))
            return None

    def _whole(self, global_round: int) -> ModelFile:
        found = ModelFile(self._path(global_round), self.keeper.layout(global_round))
        found.check(self._metadata(global_round))
        return found

    def following(self, model: AnyModel, sums: Gathering, global_round: int) -> AnyModel:
        """Compute and write the vector that follows a global round, and return it. A small vector is returned in
        memory, and a large vector as its file.
        """
        following, layout = global_round + 1, self.keeper.layout(global_round + 1)
        self._optimiser.save(following, layout, partial(self._moves, model, sums, global_round))
        pieces = self._optimiser.moved(self._moves(model, sums, global_round))
        if not layout.is_small:
            self._save(following, layout, pieces)
            return ModelFile(self._path(following), layout)
        moved = ModelInMemory(layout, joined(pieces), self._metadata(following))
        self._save(following, layout, moved.pieces(), moved.digest)
        return moved

    def _moves(self, model: AnyModel, sums: Gathering, global_round: int) -> Iterator[Move]:
        """Yield, for each piece of the vector, its values, its change, the optimiser's state, and the share of all
        examples that took part in the change.
        """
        for change in self.keeper.changes(sums, global_round):
            base, update = model.read(change.start, change.stop), change.update
            if update is not None and change.is_absolute:
                base, update = (base, update - base) if self._optimiser.has_state else (update, None)
            state = self._optimiser.at(global_round, model.layout, change.start, change.stop)
            move: Move = (base, update, state, change.share)
            yield without_optimiser(move) if change.counts_absent else move

    def _metadata(self, global_round: int) -> dict[str, str]:
        return {"format": "fedstrata", "run_id": self._experiment.run_id, "global_round": str(global_round)}

    def _save(self, global_round: int, layout: Layout, pieces: Iterator[Flat], digest: bytes = b"") -> None:
        write_model(self._path(global_round), layout, pieces, self._metadata(global_round), digest=digest)
        self._path(global_round - GLOBAL_ROUNDS_KEPT).unlink(missing_ok=True)
        self._optimiser.remove(global_round - GLOBAL_ROUNDS_KEPT)

    def _path(self, global_round: int) -> Path:
        return self._folder / f"shared-{global_round:06d}.safetensors"
