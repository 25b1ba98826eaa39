"""One round between a parent and its children, the same for LPS and devices as for GPS and LPSs."""

from fedstrata.rounds.client import RoundClient
from fedstrata.rounds.exchanged import Identity, ParentCalls, ReceivedModel, Update
from fedstrata.rounds.intake import Intake
from fedstrata.rounds.limits import ChildLimits
from fedstrata.rounds.mask_keys import KeyRing, Masking
from fedstrata.rounds.offer import Offer
from fedstrata.rounds.open_round import OpenRound
from fedstrata.rounds.refusals import Refusals
from fedstrata.rounds.result import RoundResult
from fedstrata.rounds.server import RoundServer
from fedstrata.rounds.terms import RoundTerms
from fedstrata.rpc.session import ParentStream

__all__ = [
    "ChildLimits",
    "Identity",
    "Intake",
    "KeyRing",
    "Masking",
    "Offer",
    "OpenRound",
    "ParentCalls",
    "ParentStream",
    "ReceivedModel",
    "Refusals",
    "RoundClient",
    "RoundResult",
    "RoundServer",
    "RoundTerms",
    "Update",
]
