"""One round between a parent and its children. The parent is an LPS with devices as children, or the GPS with LPSs as
children.
"""

from fedstrata.rounds.children import Refusals, RoundResult
from fedstrata.rounds.client import RoundClient
from fedstrata.rounds.intake import Intake
from fedstrata.rounds.models_and_updates import Identity, ParentCalls, ReceivedModel, Shield, Update
from fedstrata.rounds.offer import Offer
from fedstrata.rounds.open_round import OpenRound, RoundTerms, Stage
from fedstrata.rounds.plain_updates import PlainUpdates
from fedstrata.rounds.reported import ChildLimits, HeldOut
from fedstrata.rounds.server import RoundServer
from fedstrata.rounds.stages import Asking, on_time
from fedstrata.rpc.session import ParentStream

__all__ = [
    "Asking",
    "ChildLimits",
    "HeldOut",
    "Identity",
    "Intake",
    "Offer",
    "OpenRound",
    "ParentCalls",
    "ParentStream",
    "PlainUpdates",
    "ReceivedModel",
    "Refusals",
    "RoundClient",
    "RoundResult",
    "RoundServer",
    "RoundTerms",
    "Shield",
    "Stage",
    "Update",
    "on_time",
]
