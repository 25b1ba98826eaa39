"""Rules, by which a parent combines the updates of its children. `base` defines the interface, and `registry` maps
names to rules.
"""

from fedstrata.experiment.sections import RuleSettings
from fedstrata.rules.base import AllUpdates, Rule, Total
from fedstrata.rules.gathering import Gathering, Route, of_parts, of_streams, of_updates, routed
from fedstrata.rules.products import ByProducts, Updates

__all__ = [
    "AllUpdates",
    "ByProducts",
    "Gathering",
    "Route",
    "Rule",
    "RuleSettings",
    "Total",
    "Updates",
    "of_parts",
    "of_streams",
    "of_updates",
    "routed",
]
