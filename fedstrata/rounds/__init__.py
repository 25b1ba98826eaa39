"""One round between a parent and its children, the same for LPS and devices as for GPS and LPSs."""

from fedstrata.rounds.client import Identity, Model, ParentCalls, RoundClient, Update
from fedstrata.rounds.intake import Gathered, Intake
from fedstrata.rounds.server import Exchange, OpenRound, RoundServer
from fedstrata.rounds.session import Session

__all__ = [
    "Exchange",
    "Gathered",
    "Identity",
    "Intake",
    "Model",
    "OpenRound",
    "ParentCalls",
    "RoundClient",
    "RoundServer",
    "Session",
    "Update",
]
