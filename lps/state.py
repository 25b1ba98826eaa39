"""A cluster's state on disk: the model at the start of each LPS round and what has not been reported yet.

`round-000012.safetensors` is the model that LPS round 12 starts from, `round-000012.pb` (a ReportHeader) what
was known by then. Kept are the files since the start of the last but one global round.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from fedstrata.errors import StateError
from fedstrata.logs import EventLog
from fedstrata.store import ModelFile, write_aside, write_model
from fedstrata.tensors import Flat, Layout
from fedstrata.v1 import gps_service_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a cluster stands: the LPS round to open, its model, and what is to be reported."""

    lps_round: int
    model: ModelFile
    base: ModelFile  # the model at the start of the global round
    report: pb.ReportHeader


class ClusterState:
    """Reads and writes one cluster's files."""

    def __init__(self, folder: Path, *, run_id: str, cluster_id: str, layout: Layout, rounds_per_global: int) -> None:
        self._folder = folder
        self._metadata = {"format": "fedstrata", "run_id": run_id, "cluster_id": cluster_id}
        self._layout = layout
        self._rounds_per_global = rounds_per_global

    def save(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader) -> Standing:
        """Write the start of an LPS round; flushed to disk where a global round starts."""
        is_base = lps_round % self._rounds_per_global == 0
        with write_aside(self._path(lps_round, "pb"), durable=is_base) as file:
            file.write(report.SerializeToString(deterministic=True))
        metadata = self._metadata | {"lps_round": str(lps_round)}
        write_model(self._path(lps_round, "safetensors"), self._layout, pieces, metadata, durable=is_base)
        self._prune(lps_round)
        return self.open(lps_round)

    def scratch(self, pieces: Iterator[Flat]) -> ModelFile:
        """A model that needs to outlive nothing."""
        path = self._folder / "scratch.safetensors"
        write_model(path, self._layout, pieces, self._metadata, durable=False)
        return ModelFile(path, self._layout)

    def newest(self, log: EventLog) -> Standing | None:
        """The newest state that is whole; what is damaged is named in the log and passed over."""
        for path in sorted(self._folder.glob("round-*.safetensors"), reverse=True):
            try:
                lps_round = int(path.stem.removeprefix("round-"))
                standing = self.open(lps_round)
                for model in {standing.model, standing.base}:
                    model.verify()
                if standing.model.metadata.get("run_id") != self._metadata["run_id"]:
                    raise StateError(f"{path}: of run {standing.model.metadata.get('run_id')}")
            except (StateError, ValueError) as error:
                log.warning("state_passed_over", reason=str(error))
                continue
            return standing
        return None

    def open(self, lps_round: int) -> Standing:
        """The state at the start of an LPS round. Raises StateError, naming a file that is damaged."""
        base_round = lps_round - lps_round % self._rounds_per_global
        model = ModelFile(self._path(lps_round, "safetensors"), self._layout)
        base = model if base_round == lps_round else ModelFile(self._path(base_round, "safetensors"), self._layout)
        try:
            report = pb.ReportHeader.FromString(self._path(lps_round, "pb").read_bytes())
        except (OSError, DecodeError) as error:
            raise StateError(f"{self._path(lps_round, 'pb')}: {error}") from None
        return Standing(lps_round=lps_round, model=model, base=base, report=report)

    def _path(self, lps_round: int, ending: str) -> Path:
        return self._folder / f"round-{lps_round:06d}.{ending}"

    def _prune(self, lps_round: int) -> None:
        oldest = (lps_round // self._rounds_per_global - 1) * self._rounds_per_global
        for path in self._folder.glob("round-*"):
            number = path.stem.removeprefix("round-")
            if number.isdigit() and int(number) < oldest:
                path.unlink(missing_ok=True)
