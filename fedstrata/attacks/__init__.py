"""Attacks: an experiment with attacks shows which of them a run withstands. `base` defines the interface, and
`registry` maps names to attacks.
"""

from fedstrata.attacks.base import Attack, Known
from fedstrata.attacks.registry import Entry, attack_settings, attacks_of
from fedstrata.experiment.attacks import AttackSettings, Count, Label, Positive, Share

__all__ = [
    "Attack",
    "AttackSettings",
    "Count",
    "Entry",
    "Known",
    "Label",
    "Positive",
    "Share",
    "attack_settings",
    "attacks_of",
]
