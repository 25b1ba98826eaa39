"""What all rounds of one parent have in common."""

from dataclasses import dataclass

from fedstrata.clock.transfers import Transfers
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
    is_timed: bool = False  # whether updates say what their senders have done, for a timeline
    transfers: Transfers | None = None  # on the real clock
    keys: KeyRing | None = None  # under secure aggregation
    held_s: float = HOLD_S  # how long a child's call is held back
    moving: frozenset[int] = frozenset()  # the devices of which a child says until when they are busy

    @property
    def now_ns(self) -> int:
        """The time by which links carry on the real clock; without it 0."""
        return self.transfers.now_ns() if self.transfers is not None else 0

    def round_opened(self) -> None:
        """What is broadcast from now on is of another round."""
        if self.transfers is not None:
            self.transfers.open_round()

    def updates(self) -> Acceptance:
        """What an update has to be; a masked one lies on the grid of sums, whatever the link's encoding."""
        return Acceptance(self.layout, self.link.up if self.keys is None else "exact", self.part)
