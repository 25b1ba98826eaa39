"""The models of a local parameter server (LPS). They come from the LPS's own disk, or from the global parameter server
(GPS).

A session runs the rounds in the same way in both cases. For each LPS round, the session's `Holding` object provides the
models and the sums. At the end of a global round, this object provides the update for the GPS.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from fedstrata.clock.lps_side import LpsClock
from fedstrata.experiment import Experiment
from fedstrata.methods import Method
from fedstrata.models import Model
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import Offer, PlainUpdates, ReceivedModel
from fedstrata.rpc.payload import Acceptance
from fedstrata.rules import Gathering, Rule, Weighing
from fedstrata.streams.streams import Streams
from fedstrata.tasks import Task
from fedstrata.tensors import PayloadCodec
from fedstrata.tensors.codec import AnyEncoding
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import tensors_pb2
from lps.members import Members
from lps.notes import Notes
from lps.to_gps import SessionClient


@dataclass(frozen=True, kw_only=True)
class LpsParts:
    """Hold the objects that all sessions of an LPS share."""

    experiment: Experiment
    method: Method
    streams: Streams
    model: Model
    state_folder: Path
    task: Task
    metrics: ProcessMetrics
    executor: Executor
    updates_of: Callable[[Callable[[str], bool]], PlainUpdates]  # given a test of membership
    rule: Rule
    clock_of: Callable[[pb.Cluster], LpsClock]
    sends_sums: bool  # whether the GPS gets exact sums, instead of mean updates


@dataclass(frozen=True, kw_only=True)
class SessionParts:
    """Hold the objects that a session and its `Holding` share."""

    lps: LpsParts
    cluster: pb.Cluster  # this LPS's devices of one cluster, or of all clusters, as the GPS has assigned them
    gps: SessionClient
    clock: LpsClock
    members: Members
    updates: PlainUpdates
    notes: Notes
    log: EventLog

    @property
    def update_encoding(self) -> AnyEncoding:
        """The encoding of the devices' updates."""
        return self.updates.encoding(self.lps.experiment.links.device_lps)

    def folder_of(self, term: int) -> Path:
        """Return the folder for this LPS's files of the cluster in a term.

        A term is a period in which one LPS serves the cluster. Term 0 has the folder `CLUSTER/`. After the first change
        of the cluster's LPS, term 1 has `CLUSTER.1/`. So an LPS that serves the cluster again never continues from its
        old files.
        """
        name = self.cluster.home_id
        return self.lps.state_folder / self.gps.attempt_id / (f"{name}.{term}" if term else name)

    @property
    def folder(self) -> Path:
        """The folder for this LPS's files of the cluster in the present term."""
        return self.folder_of(self.cluster.term)

    @property
    def rounds(self) -> int:
        """The number of LPS rounds in a global round."""
        return self.lps.experiment.training.lps_rounds_per_global_round

    def empty_report(self) -> pb.ReportHeader:
        """Return a report that has only the ids of the run and of the cluster."""
        return pb.ReportHeader(run_id=self.gps.attempt_id, home_id=self.cluster.home_id)


class Offers(NamedTuple):
    """Hold the models with which devices start an LPS round.

    `models` has the models by number. `of_devices` has the number of each device's model. A device without an entry
    starts with model 0. `earlier` maps the id of a device with an update under way to the model that
    the device trains.
    """

    models: Mapping[int, Offer]
    of_devices: Mapping[str, int]
    earlier: Mapping[str, Offer] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Upward:
    """Hold the update that an LPS sends to the GPS in a global round.

    `read(start, stop)` returns a range of the update's elements.
    """

    codec: PayloadCodec
    read: Callable[[int, int], NDArray[Any]]
    payload: tensors_pb2.PayloadHeader | None = None  # if the update has several parts


class Holding(Protocol):
    """Define where a session gets the models that devices train in each LPS round. If files are damaged or lost, the
    methods of this class raise StateError.
    """

    @property
    def final_model(self) -> Path | None:
        """Return the file of the final model. If the GPS has the final model, return None."""
        return None

    def accepts_updates(self, lps_round: int) -> Acceptance:
        """Return the required form of devices' updates in an LPS round. Raises NotReadyError if the form is not known
        yet.
        """

    def may_recover(self) -> bool:
        """Return whether `recover` may need the devices. This method reads only the names of files, so it is fast."""
        return False

    async def recover(self, show: Callable[[Any], None]) -> None:
        """Recover lost state from the devices. If the devices are needed, call `show` with the object that answers the
        devices' calls during the recovery.

        Raises:
            StateError: the remaining state is not enough to continue with the same results.
        """

    async def begin(self) -> tuple[int, pb.ReportHeader]:
        """Return the LPS round with which the session begins or continues, and the report of the earlier rounds."""

    def offers(self, *, is_planned: bool = False) -> Offers:
        """Return the models with which devices start now.

        Set `is_planned` if this LPS was restarted after the GPS had made the plan of the global round. The devices then
        still have the models of the previous plan.
        """

    def sums(self, children: Mapping[str, int], everybody: Mapping[str, int], weighing: Weighing) -> Gathering:
        """Return an object that gathers devices' updates. `children` has the number of examples of each asked device.
        `everybody` has the number of examples of each device of the global round. `weighing` defines factors by which
        the weights of updates are multiplied.
        """

    async def written(self) -> None:
        """Wait until all offered models are on disk, if this object keeps models on disk."""

    async def move(self, lps_round: int, sums: Gathering, report: pb.ReportHeader) -> None:
        """Apply the sums of an LPS round to the models. `report` already has the row of this round."""

    async def upward(self, report: pb.ReportHeader) -> Upward:
        """Return the update that this LPS sends to the GPS at the end of a global round."""

    async def take(self, received: ReceivedModel, report: pb.ReportHeader) -> None:
        """Apply the model that the GPS has sent for the next global round. `report` is this LPS's report so far."""

    async def go_back(self, received: ReceivedModel) -> pb.ReportHeader:
        """Go back to the start of a global round that the GPS must repeat. Return this LPS's report from the start of
        that round.
        """
