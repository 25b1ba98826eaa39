"""What a parent has of a round once it is closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from fedstrata.clock.timeline import Exchanged
from fedstrata.rounds.offer import Offer
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """An update's bytes on the way up, as they are when nothing goes wrong, and what its sender has done for it."""

    up_bytes: int
    work: pb.Work

    @classmethod
    def of(cls, header: pb.UpdateHeader) -> Self:
        """Payload and header, without what depends on real time or on resumption: counts, rows, offsets."""
        own = pb.UpdateHeader(
            run_id=header.run_id,
            child_id=header.child_id,
            cluster_id=header.cluster_id,
            round=header.round,
            payload=header.payload,
            train_loss=header.train_loss,
            evaluations=header.evaluations,
            base_digest=header.base_digest,
            num_examples=header.num_examples,
        )
        work = pb.Work()  # apart from its message
        work.CopyFrom(header.work)
        return cls(up_bytes=own.ByteSize() + header.payload.payload_bytes, work=work)

    def exchanged(self, offer: Offer) -> Exchanged:
        """With what its sender had been sent."""
        return Exchanged(down_bytes=offer.whole_bytes, up_bytes=self.up_bytes, work=self.work, stream=offer.cluster)


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What a closed round holds."""

    children: int
    num_examples: int
    train_loss: float
    missing: tuple[str, ...]
    evaluations: tuple[pb.Evaluation, ...]
    uploaded: Mapping[str, Uploaded] = field(default_factory=dict)  # on the virtual clock, of those who reported
