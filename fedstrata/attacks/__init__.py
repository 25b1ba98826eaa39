"""Attacks, with which an experiment shows what a run withstands. `base` defines the interface, and `registry` maps
names to attacks.
"""

from fedstrata.attacks.base import Attack, Known
from fedstrata.attacks.registry import Entry, attack_settings, attacks_of
from fedstrata.experiment.attacks import AttackSettings, Label, Positive, Share

__all__ = ["Attack", "AttackSettings", "Entry", "Known", "Label", "Positive", "Share", "attack_settings", "attacks_of"]
