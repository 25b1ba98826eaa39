"""Rhythms. A rhythm says when a parent makes its next model, and how much updates of earlier models weigh. `base`
defines the interface, and `registry` makes the rhythm of an experiment.
"""

from fedstrata.rhythms.base import Contributed, Rhythm
from fedstrata.rhythms.registry import make_rhythm
from fedstrata.rhythms.weights import UpdateFactors, make_factors

__all__ = ["Contributed", "Rhythm", "UpdateFactors", "make_factors", "make_rhythm"]
