"""Wrong labels.

Minghong Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020,
section 4: label y of L labels becomes L − y − 1.
"""

from collections.abc import Mapping

import numpy as np

from fedstrata.attacks.base import Attack
from fedstrata.datasets import Examples


class LabelFlip(Attack):
    """Train on wrong labels: label y of L labels becomes L − 1 − y."""

    def refuses(self) -> Mapping[str, str]:
        return {"task without labels": "it changes labels"}

    def examples(self, examples: Examples, num_classes: int, rng: np.random.Generator) -> Examples:
        return examples.with_labels(num_classes - 1 - examples.labels)
