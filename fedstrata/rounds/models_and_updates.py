"""The models and updates that a child exchanges with its parent."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Self

from numpy.typing import NDArray

from fedstrata.clock.round_side import ChildClock
from fedstrata.errors import PayloadError
from fedstrata.process.sleeping import HOLD_S
from fedstrata.tensors import Flat, PayloadCodec
from fedstrata.v1 import answers_pb2, tensors_pb2
from fedstrata.v1 import rounds_pb2 as pb

Compute = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class ParentCalls:
    """Hold a child's calls in a round: to fetch a model, to submit an update, and to locate an upload. LpsService and
    GpsService name these calls differently.
    """

    fetch: Any
    submit: Any
    locate: Any
    exchange: Any = None  # submit and fetch in one, where the parent has it
    close: Callable[[], None] = lambda: None  # gives up what stays open between calls
    held_s: float = HOLD_S  # how long the parent may hold a call back
    clock: ChildClock = field(default_factory=ChildClock)  # how long calls take on the child's link
    patience: int | None = None  # tries without an answer before ParentAwayError; None: as long as it takes


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
    digest: bytes = b""  # as its header says
    cluster: int = 0  # of the child, as the round begins
    clusters: int = 0  # how many clusters' streams it has; 0: it is one model
    offered: tuple[int, ...] = ()  # the clusters whose streams it has, where it has some of them
    offers: tuple[
        tuple[int, ...], ...
    ] = ()  # of an LPS: what the devices of each cluster are offered, where it is some
    withdrawn: tuple[str, ...] = ()  # tensors of the model that travel no more
    told: answers_pb2.Answer | None = None  # what the GPS tells all devices with it
    begins_ns: int = 0  # of an LPS, on the virtual clock: when the global round began
    whole_bytes: int = 0  # header and payload, as they are when nothing is resumed

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
    """Hold the update that a child sends for one round. The child may send it several times. `read` returns elements of
    the update.
    """

    round: int
    num_examples: int
    codec: PayloadCodec
    read: Callable[[int, int], NDArray[Any]]
    train_loss: float = 0.0
    evaluations: tuple[pb.Evaluation, ...] = ()
    lps_rounds: tuple[pb.LpsRound, ...] = ()
    exclusions: tuple[pb.Exclusion, ...] = ()
    base_digest: bytes = b""  # of the model that it is against; empty where the parent's round alone says which
    payload: tensors_pb2.PayloadHeader | None = None  # where it has more than one part
    work: pb.Work | None = None  # on the virtual clock: what has been done for it
    trained_from: bytes = b""  # the digest of what was received for it, where the update is to be hidden
    note: pb.UpdateHeader = field(default_factory=pb.UpdateHeader)  # fields of its header that hiding it adds


class Shield:
    """Prepare a child's updates for its parent. This class leaves them as they are; subclasses hide them."""

    growth = 1  # by which factor a prepared update may be larger than float32

    def mark(self, request: pb.FetchModelRequest) -> None:
        """Add the fields to a request for a model that the parent needs from this object."""

    def take(self, roster: pb.Roster) -> None:
        """Hide updates among the devices of this roster from now on. Raises PayloadError if this is not possible."""
        raise PayloadError("asked to hide updates, which this process does not; give all processes the same file")

    async def trained_from(self, received: ReceivedModel, home_id: str, cluster: int, compute: Compute) -> bytes:
        """Return the digest of all received values that affect training, if updates are hidden."""
        return b""

    async def hidden(self, update: Update, compute: Compute) -> Update:
        """Return the update that is sent. `compute` runs a computation beside the event loop."""
        return update


PLAIN = Shield()


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identify a caller in its requests."""

    run_id: str
    child_id: str
    home_id: str
    lps_id: str = ""  # of an LPS: who it is,
    term: int = 0  # and its term at the cluster
