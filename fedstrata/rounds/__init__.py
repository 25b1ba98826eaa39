"""One round between a parent and its children. The parent is an LPS with devices as children, or the GPS with LPSs as
children.
"""

from fedstrata.rounds.child.models_and_updates import Identity, ParentCalls, ReceivedModel, Shield, Update
from fedstrata.rounds.child.round_client import RoundClient
from fedstrata.rounds.parent.children import Refusals, RoundResult
from fedstrata.rounds.parent.intake import Intake
from fedstrata.rounds.parent.offer import Offer
from fedstrata.rounds.parent.open_round import OpenRound, RoundTerms, Stage
from fedstrata.rounds.parent.plain_updates import PlainUpdates
from fedstrata.rounds.parent.report_checks import ChildLimits, HeldOut
from fedstrata.rounds.parent.round_server import RoundServer
from fedstrata.rounds.parent.stages import Asking, on_time
from fedstrata.rpc.call_stream import ParentStream

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
