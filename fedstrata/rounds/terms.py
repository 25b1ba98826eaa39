"""What all rounds of one parent have in common."""

from dataclasses import dataclass, field

from fedstrata.clock.round_side import ParentClock
from fedstrata.experiment import LinkSettings, TierDeadline
from fedstrata.process.sleeping import HOLD_S
from fedstrata.rounds.mask_keys import KeyRing
from fedstrata.rpc.payload import Acceptance
from fedstrata.tensors import Layout


@dataclass(frozen=True, kw_only=True)
class RoundTerms:
    """What does not change from round to round."""

    run_id: str
    layout: Layout
    part: str  # what the one part of an update is called
    link: LinkSettings
    wait: TierDeadline
    clock: ParentClock = field(default_factory=ParentClock)
    keys: KeyRing | None = None  # under secure aggregation
    held_s: float = HOLD_S  # how long a child's call is held back

    def updates(self) -> Acceptance:
        """What an update has to be; a masked one lies on the grid of sums, whatever the link's encoding."""
        return Acceptance(self.layout, self.link.up if self.keys is None else "exact", self.part)
