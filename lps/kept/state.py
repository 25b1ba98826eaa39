"""A cluster's state on disk: the model at the start of each LPS round, and reports that the GPS does not have yet.

`round-000012.safetensors` is the model at the start of LPS round 12. `round-000012.pb` is the report at that time, in a
file that begins with the report's SHA-256. `final.pb` is the cluster's report after its devices have measured the final
model.

The base of an LPS round is the model at the start of its global round. At the end of the global round, the LPS sends
the GPS the difference from this base. With 5 LPS rounds per global round, the base of LPS rounds 10 to 14 is the model
of LPS round 10. So an LPS can continue from LPS round 12 only if it has the files of LPS rounds 10 and 12. The folder
keeps the files of the present and of the previous global round. If a file is damaged, the LPS continues from an older
file, and trains again with the same results (`oldest_usable` in `lps.kept.takeover` says how old it may be).

Each term has its own folder (`SessionParts.folder_of`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedstrata.errors import StateError
from fedstrata.optimisers.server_optimisers import ServerOptimiser, server_optimiser
from fedstrata.optimisers.state_files import OptimiserFiles
from fedstrata.process.logs import EventLog
from fedstrata.store import GLOBAL_ROUNDS_KEPT, AnyModel, ModelFile, ModelInMemory, clear_asides, write_model
from fedstrata.store.model_file import joined
from fedstrata.tensors import Flat, Layout
from fedstrata.v1 import gps_service_pb2 as pb
from lps.holding import SessionParts
from lps.report_files import read_report, write_report


@dataclass(frozen=True, kw_only=True)
class RoundStart:
    """Hold a cluster's state at the start of an LPS round: the round's number, model and base, and the report."""

    lps_round: int
    model: AnyModel
    base: AnyModel  # the model at the start of the global round
    report: pb.ReportHeader

    def close(self) -> None:
        """Close the files of the models."""
        self.model.close()
        self.base.close()


class ClusterState:
    """Read and write one cluster's files."""

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        home_id: str,
        layout: Layout,
        rounds_per_global: int,
        optimiser: ServerOptimiser,
    ) -> None:
        """Set the folder of the files. `optimiser` applies the mean update to the cluster's model."""
        self.folder = folder
        self._metadata = {"format": "fedstrata", "run_id": run_id, "home_id": home_id}
        self.layout = layout
        self.rounds_per_global = rounds_per_global
        self.optimiser = OptimiserFiles(optimiser, folder, self._metadata_of)
        self._last_base: tuple[int, AnyModel] | None = None  # a cache of the last start, for small models
        clear_asides(folder)

    @property
    def newest_named(self) -> int:
        """Return the newest LPS round that is in the name of a file. The file may be incomplete. Without files, return
        -1.
        """
        names = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def save(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader) -> RoundStart:
        """Write the state at the start of an LPS round, and return this state."""
        self.write(lps_round, pieces, report)
        return self.open(lps_round)

    def write(
        self,
        lps_round: int,
        pieces: Iterator[Flat],
        report: pb.ReportHeader,
        *,
        durable: bool = False,
        digest: bytes = b"",
    ) -> None:
        """Write the files of the start of an LPS round. The first files of a global round are always durable (flushed
        to disk). After writing them, delete old files.
        """
        is_base = lps_round == self._base_round(lps_round)
        durable = durable or is_base
        write_report(self._path(lps_round, "pb"), report, durable=durable)
        metadata = self._metadata_of(lps_round)
        write_model(self.path_of(lps_round), self.layout, pieces, metadata, durable=durable, digest=digest)
        if is_base:
            self._prune(lps_round)

    def _metadata_of(self, lps_round: int) -> dict[str, str]:
        return self._metadata | {"lps_round": str(lps_round)}

    def in_memory(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader) -> RoundStart:
        """Return the state at the start of an LPS round with a small model, before `write` has written its files."""
        model = ModelInMemory(self.layout, joined(pieces), self._metadata_of(lps_round))
        if lps_round == self._base_round(lps_round):
            self._last_base = (lps_round, model)
        return RoundStart(lps_round=lps_round, model=model, base=self._base_of(lps_round, model), report=report)

    def scratch(self, pieces: Iterator[Flat]) -> AnyModel:
        """Return a model with the values `pieces`, for use until the next call of this method. A small model is in
        memory. A large model is in a file, which the next call overwrites.
        """
        if self.layout.is_small:
            return ModelInMemory(self.layout, joined(pieces))
        path = self.folder / "scratch.safetensors"
        write_model(path, self.layout, pieces, self._metadata, durable=False)
        return ModelFile(path, self.layout)

    def newest(self, log: EventLog) -> RoundStart | None:
        """Return the newest complete state. If there is no complete state, return None. Damaged files are ignored, and
        the log names them.
        """
        for path in sorted(self.folder.glob("round-*.safetensors"), reverse=True):
            try:
                lps_round = int(path.stem.removeprefix("round-"))
                for number in {lps_round, self._base_round(lps_round)}:
                    with closing(self._file(number)) as model:
                        model.check(self._metadata_of(number))
                self.optimiser.begin(lps_round, self.layout)
                return self.open(lps_round)
            except (StateError, ValueError) as error:
                log.warning("state_passed_over", reason=str(error))
        return None

    def open(self, lps_round: int) -> RoundStart:
        """Return the state at the start of an LPS round from its files. If a file is damaged, raise StateError, which
        names the file.
        """
        model = self._file(lps_round)
        report = read_report(self._path(lps_round, "pb"))
        return RoundStart(lps_round=lps_round, model=model, base=self._base_of(lps_round, model), report=report)

    def _base_of(self, lps_round: int, model: AnyModel) -> AnyModel:
        """Return the base of an LPS round. `model` is the model of this LPS round."""
        base_round = self._base_round(lps_round)
        if base_round == lps_round:
            return model
        if self._last_base is not None and self._last_base[0] == base_round:
            return self._last_base[1]
        return self._file(base_round)

    def _base_round(self, lps_round: int) -> int:
        """Return the first LPS round of the global round to which an LPS round belongs."""
        return lps_round - lps_round % self.rounds_per_global

    def path_of(self, lps_round: int) -> Path:
        """Return the file of the model at the start of an LPS round."""
        return self._path(lps_round, "safetensors")

    def _file(self, lps_round: int) -> ModelFile:
        return ModelFile(self.path_of(lps_round), self.layout)

    def _path(self, lps_round: int, ending: str) -> Path:
        return self.folder / f"round-{lps_round:06d}.{ending}"

    def _prune(self, lps_round: int) -> None:
        oldest = (lps_round // self.rounds_per_global + 1 - GLOBAL_ROUNDS_KEPT) * self.rounds_per_global
        for path in (*self.folder.glob("round-*"), *self.folder.glob("optimiser-*")):
            number = path.stem.partition("-")[2]
            if number.isdecimal() and int(number) < oldest and path.is_file():
                path.unlink(missing_ok=True)


class Writing:
    """Save one cluster's state before a round opens or, if the model is small, while devices train.

    So a round may open before its files are on disk, but at most one round may be unsaved. No round is closed or
    reported before its files exist. If the LPS is killed before the files exist, it continues one round earlier, with
    the same results to the bit. There is at most one write at a time.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._under_way: asyncio.Future[None] | None = None

    async def save(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader) -> RoundStart:
        """Save the state at the start of an LPS round, and return this state. If the model is small, the files are
        written in the background, and `done` waits for them.
        """
        await self.done()
        if not self._state.layout.is_small:
            return await asyncio.to_thread(self._state.save, lps_round, pieces, report)
        start = self._state.in_memory(lps_round, pieces, report)
        write = partial(self._state.write, lps_round, start.model.pieces(), report, digest=start.model.digest)
        self._under_way = asyncio.get_running_loop().run_in_executor(None, write)
        return start

    async def done(self) -> None:
        """Wait until all saved states are on disk.

        Raises:
            StateError: the disk is full or refuses to write.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            await under_way


def state_of(parts: SessionParts, term: int) -> ClusterState:
    """Return the state that this LPS has of a cluster from a term."""
    return ClusterState(
        parts.folder_of(term),
        run_id=parts.lps.experiment.run_id,
        home_id=parts.cluster.home_id,
        layout=parts.lps.streams.travelling,
        rounds_per_global=parts.rounds,
        optimiser=server_optimiser(parts.lps.method.server_optimiser or parts.lps.experiment.training.lps_optimiser),
    )
