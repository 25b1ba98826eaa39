"""What a parent has of a round once it is closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedstrata.clock.exchanged import Exchanged
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What a closed round holds."""

    children: int
    num_examples: int
    train_loss: float
    missing: tuple[str, ...]
    evaluations: tuple[pb.Evaluation, ...]
    uploaded: Mapping[str, Exchanged] = field(default_factory=dict)  # on a clock, of those who reported: what went up
