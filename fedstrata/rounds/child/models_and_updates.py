"""The models and updates that a child exchanges with its parent."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Self

from numpy.typing import NDArray

from fedstrata.clock.round_side import ChildClock
from fedstrata.errors import PayloadError
from fedstrata.process.time_limits import HOLD_S
from fedstrata.rpc.call_stream import ParentStream
from fedstrata.tensors import Flat, PayloadCodec
from fedstrata.v1 import answers_pb2, tensors_pb2
from fedstrata.v1 import rounds_pb2 as pb

Compute = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class ParentCalls:
    """Hold the RPCs that a child uses in a round: one stream for models and updates, one RPC for a single update, and
    one RPC that asks how much of an upload has arrived. LpsService and GpsService name these RPCs differently.
    """

    stream: ParentStream
    submit: Callable[..., Awaitable[pb.UpdateReply]]
    locate: Callable[..., Awaitable[pb.LocateUpdateResponse]]
    held_s: float = HOLD_S  # longest time for which the parent holds a call
    clock: ChildClock = field(default_factory=ChildClock)  # adds the time that calls take on the child's link
    patience: int | None = None  # tries without an answer before ParentAwayError; None: no limit


@dataclass(frozen=True, kw_only=True)
class ReceivedModel:
    """Hold a model that a child has received, and what the model's header says. `flat` has the shape (layout.size,) and
    is read-only.
    """

    round: int
    global_round: int
    evaluate_only: bool
    plan_version: int
    flat: Flat
    digest: bytes = b""  # the digest in the model's header
    cluster: int = 0  # the child's cluster at the start of the round
    clusters: int = 0  # number of clusters with streams in the vector; 0 if the vector is one model
    offered: tuple[int, ...] = ()  # clusters with streams in the vector, if they are not all clusters
    offers: tuple[tuple[int, ...], ...] = ()  # for an LPS: by cluster, the offered clusters, if they are not all
    withdrawn: tuple[str, ...] = ()  # tensors that are no longer sent
    told: answers_pb2.Answer | None = None  # arrays that the GPS sends to all devices
    begins_ns: int = 0  # for an LPS, on the virtual clock: begin of the global round
    whole_bytes: int = 0  # size of header and payload in a transfer that was not interrupted

    @classmethod
    def of(cls, header: pb.ModelHeader, flat: Flat, whole_bytes: int) -> Self:
        """Return a model that has arrived completely, with the values of the model's header."""
        return cls(
            round=header.round,
            global_round=header.global_round,
            evaluate_only=header.evaluate_only,
            plan_version=header.plan_version,
            flat=flat,
            digest=header.digest,
            cluster=header.cluster,
            clusters=header.clusters,
            offered=tuple(header.offered),
            offers=tuple(tuple(offered.clusters) for offered in header.offers),
            withdrawn=tuple(header.withdrawn),
            told=header.told if header.HasField("told") else None,
            begins_ns=header.begins_ns,
            whole_bytes=whole_bytes,
        )

    def trained_from(self, home_id: str, cluster: int) -> bytes:
        """Return the SHA-256 of all received values that affect how a device of this cluster trains.

        The digest is computed from the values. The digest in the parent's header is not used.
        """
        numbers = (self.round, self.global_round, self.plan_version, self.cluster, self.clusters, self.begins_ns)
        lists = (self.offered, self.offers, self.withdrawn)
        told = self.told.SerializeToString(deterministic=True) if self.told is not None else b""
        found = sha256(json.dumps([home_id, cluster, numbers, lists, len(told)]).encode() + b"\n" + told)
        found.update(self.flat.data)
        return found.digest()


Offered = ReceivedModel | pb.SendAgain | pb.SendModel | pb.GoOn | pb.Finished


@dataclass(frozen=True, kw_only=True)
class Update:
    """Hold the update that a child sends for one round. The child may send this update several times. `read` returns
    elements of the update.
    """

    round: int
    num_examples: int
    codec: PayloadCodec
    read: Callable[[int, int], NDArray[Any]]
    train_loss: float = 0.0
    evaluations: tuple[pb.Evaluation, ...] = ()
    lps_rounds: tuple[pb.LpsRound, ...] = ()
    exclusions: tuple[pb.Exclusion, ...] = ()
    base_digest: bytes = b""  # digest of the model from which the update was computed; empty if the round names it
    payload: tensors_pb2.PayloadHeader | None = None  # header of a payload with several parts
    work: pb.Work | None = None  # with a clock: the work that was done for the update
    trained_from: bytes = b""  # if updates are hidden: digest of the received values that affect training
    # fields that `Shield.hidden` adds to the update's header
    note: pb.UpdateHeader = field(default_factory=pb.UpdateHeader)


class Shield:
    """Prepare a child's updates for its parent. This class leaves them as they are; subclasses hide them."""

    growth = 1  # factor by which a prepared update may be larger than float32

    def mark(self, request: pb.FetchModelRequest) -> None:
        """Add the fields for secure aggregation to a request for a model. This class adds no fields."""

    def take(self, roster: pb.Roster) -> None:
        """Hide each update from now on, so that only the sum over the devices of this roster is readable. Raises
        PayloadError if this is not possible; this class always raises it.
        """
        raise PayloadError(
            "the parent asks for hidden updates, and this process does not hide them; give all processes the same "
            "experiment file"
        )

    async def trained_from(self, received: ReceivedModel, home_id: str, cluster: int, compute: Compute) -> bytes:
        """If updates are hidden, return the digest of all received values that affect training. Otherwise, return no
        bytes.
        """
        return b""

    async def hidden(self, update: Update, compute: Compute) -> Update:
        """Return the update as the child sends it, hidden if this class hides updates. `compute` runs a computation in
        a thread, so that the event loop does not wait.
        """
        return update


PLAIN = Shield()


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identify a caller in its requests."""

    run_id: str  # of the attempt: see fedstrata/store/attempts.py
    child_id: str
    home_id: str
    lps_id: str = ""  # for an LPS: its id
    term: int = 0  # for an LPS: its term as the cluster's LPS
