"""One child in a round that is being gathered, and what children report beside their tensors."""

import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from fedstrata.clock.exchanged import Exchanged
from fedstrata.rounds.upload import Upload
from fedstrata.v1 import rounds_pb2 as pb


class ChildState(Enum):
    """Where a child stands in the round."""

    AWAITED = "awaited"
    ACCEPTED = "accepted"
    EXCLUDED = "excluded"


@dataclass
class Child:
    state: ChildState = ChildState.AWAITED
    upload: Upload | None = None
    offset: int = 0
    squares: float = 0.0  # of the values before `offset`, where norms are limited
    began: Upload | None = None  # the one whose bytes stand before `offset`
    has_switched: bool = False  # to another update half-way, which it may do once a round
    is_asked_again: bool = False  # had reported before a void, and has not had a deadline's time since


@dataclass
class Notes:
    """What children reported beside their tensors."""

    losses: dict[str, tuple[float, int]] = field(default_factory=dict)
    evaluations: dict[str, Sequence[pb.Evaluation]] = field(default_factory=dict)
    uploaded: dict[str, Exchanged] = field(default_factory=dict)


def mean_loss(losses: Collection[tuple[float, int]]) -> float:
    """The mean of losses, each of so many examples; 0 of none. Rounding takes it beyond none of them."""
    if not losses:
        return 0.0
    mean = math.fsum(loss * examples for loss, examples in losses) / sum(examples for _, examples in losses)
    return min(max(mean, min(losses)[0]), max(losses)[0])


def apart(evaluation: pb.Evaluation) -> pb.Evaluation:
    """A copy: a message inside another keeps all of that one, here an update, in memory."""
    copy = pb.Evaluation()
    copy.CopyFrom(evaluation)
    return copy


async def uninterrupted(job: "asyncio.Future[None]") -> bool:
    """Wait for a job in a thread even when the waiter is cancelled, and say whether it was: half a chunk must not
    stay in the sum."""
    was_cancelled = False
    while not job.done():
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            was_cancelled = True
    job.result()
    return was_cancelled
