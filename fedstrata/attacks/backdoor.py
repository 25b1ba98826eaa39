"""A backdoor: inputs with a trigger get the label that the attacker wants.

The trigger is from Tianyu Gu et al., "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain",
2017, and the factor is from Eugene Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.attacks.base import Attack
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.attacks import AttackSettings, Count, Label, Positive, Share
from fedstrata.tensors import Flat


class Backdoor(Attack):
    """Train on examples with a trigger and the label that the attacker wants, and send the update times a factor. The
    trigger is a square in the last corner of an image or, in a row of numbers, the last numbers. The record has the
    share of other devices' examples that get this label with the trigger (`attack_success`).
    """

    class Options(AttackSettings):
        label: Label = 0
        """Label that the attacker wants."""
        size: Count = 3
        """Side of the trigger."""
        value: float = 1.0
        """Value of the trigger's numbers; 1.0 is white in images."""
        poisoned: Share = 0.5
        """Share of an attacker's examples that have the trigger."""
        times: Positive = 1.0
        """Factor of the update."""

    options: Options

    def refuses(self) -> Mapping[str, str]:
        return {"task without labels": "it changes labels"}

    def check(self, info: DatasetInfo) -> None:
        if self.options.label >= info.num_classes:
            raise ExperimentError(
                f"attack backdoor: label is {self.options.label}; choose one from 0 to {info.num_classes - 1}"
            )

    def examples(self, examples: Examples, num_classes: int, rng: np.random.Generator) -> Examples:
        count = round(self.options.poisoned * len(examples))
        return self._triggered(examples, rng.permutation(len(examples))[:count])

    def update(self, update: Flat, rng: np.random.Generator) -> Flat:
        return update * np.float32(self.options.times)

    def probe(self, examples: Examples) -> Examples:
        others = examples.part(np.flatnonzero(examples.labels != self.options.label))
        return self._triggered(others, np.arange(len(others)))

    def _triggered(self, examples: Examples, places: NDArray[np.int64]) -> Examples:
        """Return examples of which those at `places` have the trigger and its label."""
        if examples.is_drawn or examples.stored.dtype == np.int64:
            raise DataError("attack backdoor needs inputs of pixels or numbers, in memory; choose another attack")
        inputs, labels = np.array(examples.stored), examples.labels.copy()
        corner = (slice(-self.options.size, None),) * min(2, inputs.ndim - 1)
        trigger: Any = (places, ..., *corner)
        inputs[trigger] = self.options.value * (examples.scale or 1)
        labels[places] = self.options.label
        return examples.with_inputs(inputs).with_labels(labels)
