"""A cluster's state on disk: the model at the start of each LPS round, and reports that the GPS does not have yet.

`round-000012.safetensors` is the model at the start of LPS round 12. `round-000012.pb` is the report at that time, in a
file that begins with the report's SHA-256. The folder keeps the files of the present and of the previous global round.
`final.pb` is the cluster's report after its devices have measured the final model.

The folder is `CLUSTER/` or, after TERM changes of the cluster's LPS, `CLUSTER.TERM/`. So an LPS never continues from
old files after another LPS has served the cluster.
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedstrata.errors import StateError
from fedstrata.experiment.sections import NoOptimiserSettings
from fedstrata.optimisers.files import OptimiserFiles
from fedstrata.optimisers.server import ServerOptimiser, server_optimiser
from fedstrata.process.logs import EventLog
from fedstrata.store import GLOBAL_ROUNDS_KEPT, AnyModel, ModelFile, ModelInMemory, clear_asides, write_model
from fedstrata.store.model_file import joined
from fedstrata.tensors import Flat, Layout
from fedstrata.v1 import gps_service_pb2 as pb
from lps.report_files import read_report, write_report


@dataclass(frozen=True, kw_only=True)
class RoundStart:
    """Hold a cluster's state at the start of an LPS round: the number of the round, the model, and the report."""

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
        term: int = 0,
        optimiser: ServerOptimiser | None = None,
    ) -> None:
        """Set `folder`, the folder of term 0. A term is a period in which one LPS serves the cluster. In the folder of
        a later term, the number of the term is added to the name `folder`.

        The parameter `optimiser` applies the mean update to the cluster's model. If `optimiser` is None, the mean
        update is added to the model.
        """
        self._first = folder
        self._home_id = home_id
        self._term = term
        self.folder = self._folder_of(term)
        self._metadata = {"format": "fedstrata", "run_id": run_id, "home_id": home_id}
        self.layout = layout
        self.rounds_per_global = rounds_per_global
        self.optimiser = OptimiserFiles(
            optimiser or server_optimiser(NoOptimiserSettings(name="none")), self.folder, self._metadata_of
        )
        self._last_base: tuple[int, AnyModel] | None = None  # a cache of the last start, for small models
        clear_asides(self.folder)

    def _folder_of(self, term: int) -> Path:
        return self._first.with_name(f"{self._first.name}.{term}") if term else self._first

    @property
    def newest_named(self) -> int:
        """Return the newest LPS round that is in the name of a file. The file may be incomplete. Without files, return
        -1.
        """
        names = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def empty_report(self) -> pb.ReportHeader:
        """Return the empty report with which a cluster begins."""
        return pb.ReportHeader(run_id=self._metadata["run_id"], home_id=self._home_id)

    def of_an_earlier_term(self, log: EventLog) -> RoundStart | None:
        """Return the newest complete state from an earlier term in which this LPS served the cluster. If there is no
        such state, return None.
        """
        for term in reversed(range(self._term)):
            if self._folder_of(term).exists():
                run_id, rounds = self._metadata["run_id"], self.rounds_per_global
                earlier = ClusterState(
                    self._first, run_id=run_id, home_id=self._home_id, layout=self.layout,
                    rounds_per_global=rounds, term=term,
                )  # fmt: skip
                if found := earlier.newest(log):
                    return found
        return None

    def save(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader) -> RoundStart:
        """Write the state at the start of an LPS round to disk, and return this state."""
        self.keep(lps_round, pieces, report)
        return self.open(lps_round)

    def keep(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader, digest: bytes = b"") -> None:
        """Write the state at the start of an LPS round. If this is also the start of a global round, flush the files to
        disk and delete old files.
        """
        is_base = lps_round == self._base_round(lps_round)
        self.write(lps_round, pieces, report, durable=is_base, digest=digest)
        if is_base:
            self._prune(lps_round)

    def write(
        self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader, *, durable: bool, digest: bytes = b""
    ) -> None:
        """Write the state at the start of an LPS round. An LPS can continue from this state only if it also has the
        state at the start of the global round.
        """
        write_report(self._path(lps_round, "pb"), report, durable=durable)
        metadata = self._metadata_of(lps_round)
        write_model(self.path_of(lps_round), self.layout, pieces, metadata, durable=durable, digest=digest)

    def _metadata_of(self, lps_round: int) -> dict[str, str]:
        return self._metadata | {"lps_round": str(lps_round)}

    def begun(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader) -> RoundStart:
        """Return the state at the start of an LPS round, with a small model in memory. `keep` writes this state to disk
        later.
        """
        model = ModelInMemory(self.layout, joined(pieces), self._metadata_of(lps_round))
        if lps_round == self._base_round(lps_round):
            self._last_base = (lps_round, model)
        return RoundStart(lps_round=lps_round, model=model, base=self._base_of(lps_round, model), report=report)

    def scratch(self, pieces: Iterator[Flat]) -> AnyModel:
        """Return a temporary model. A small model is in memory, and a large model is on disk."""
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
                    self._check_whole(number)
                self.optimiser.begin(lps_round, self.layout)
                return self.open(lps_round)
            except (StateError, ValueError) as error:
                log.warning("state_passed_over", reason=str(error))
        return None

    def _check_whole(self, lps_round: int) -> None:
        """Check the model file of an LPS round. If the file is damaged, or belongs to another run, cluster or round,
        raise StateError, which names the file.
        """
        with closing(self._file(lps_round)) as model:
            model.verify()
            if model.metadata != self._metadata_of(lps_round):
                raise StateError(
                    f"{model.path} has metadata {model.metadata}, expected {self._metadata_of(lps_round)}; "
                    "was it renamed?"
                )

    def open(self, lps_round: int) -> RoundStart:
        """Return the state at the start of an LPS round. If a file of the state is damaged, raise StateError, which
        names the file.
        """
        model = self._file(lps_round)
        report = read_report(self._path(lps_round, "pb"))
        return RoundStart(lps_round=lps_round, model=model, base=self._base_of(lps_round, model), report=report)

    def _base_of(self, lps_round: int, model: AnyModel) -> AnyModel:
        """Return the model at the start of the global round to which an LPS round belongs."""
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
        standing = self._state.begun(lps_round, pieces, report)
        model = standing.model
        self._under_way = asyncio.get_running_loop().run_in_executor(
            None, self._state.keep, lps_round, model.pieces(), report, model.digest
        )
        return standing

    async def done(self) -> None:
        """Wait until all saved states are on disk.

        Raises:
            StateError: the disk is full or refuses to write.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            await under_way
