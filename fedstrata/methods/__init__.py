"""Methods, one per module. `base` and `work` define the interface of methods, and `registry` maps names to methods.

`clusters`, `sketch`, `row_groups`, `two_stages` and `gradients` are no methods. They have functions that several
methods use.
"""

from fedstrata.methods.base import (
    Answers,
    Arrays,
    Candidate,
    Channel,
    Facts,
    ForwardPass,
    Measurement,
    Method,
    MethodSettings,
    Moment,
    NonNegativeFloat,
    Outcome,
    Plan,
    Pull,
    Question,
    Reach,
    Steps,
    Trained,
    Work,
    all_layers,
    head_of,
    places_late,
    shared_and_rest,
)
from fedstrata.methods.registry import NAMES, make_method, method_of, method_settings, uses_default

__all__ = [
    "NAMES",
    "Answers",
    "Arrays",
    "Candidate",
    "Channel",
    "Facts",
    "ForwardPass",
    "Measurement",
    "Method",
    "MethodSettings",
    "Moment",
    "NonNegativeFloat",
    "Outcome",
    "Plan",
    "Pull",
    "Question",
    "Reach",
    "Steps",
    "Trained",
    "Work",
    "all_layers",
    "head_of",
    "make_method",
    "method_of",
    "method_settings",
    "places_late",
    "shared_and_rest",
    "uses_default",
]
