"""Rules, by which a parent combines the updates of its children. `base` defines the interface, and `registry` maps
names to rules.
"""

from fedstrata.experiment.sections import RuleSettings
from fedstrata.rules.base import AllUpdates, Rule, Total
from fedstrata.rules.gathering import Gathering, Route, Shares, of_parts, of_streams, of_updates, routed_shares
from fedstrata.rules.products import ByProducts, Updates
from fedstrata.rules.weighing import AS_STATED, Weighing

__all__ = [
    "AS_STATED",
    "AllUpdates",
    "ByProducts",
    "Gathering",
    "Route",
    "Rule",
    "RuleSettings",
    "Shares",
    "Total",
    "Updates",
    "Weighing",
    "of_parts",
    "of_streams",
    "of_updates",
    "routed_shares",
]
