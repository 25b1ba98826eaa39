"""The interface of an attack: what a device or an LPS does wrong on purpose.

An attack changes a device's examples, the update that a device or an LPS sends, or both. In some attacks, several
attackers know each other's updates. Such an attack is computed at their parent, so that the attackers need no
connection to each other. Draws come from a generator that seed, attacker and round determine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

import numpy as np

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment.attacks import AttackSettings
from fedstrata.tensors import Flat

Known = Callable[[], Iterator[Flat]]  # yields the updates that attackers know, in blocks of shape (updates, elements)


class Attack:
    """Define an attack. A subclass overrides `examples`, `num_examples` and `update`, or `collude`. An attack has no
    state except its options.
    """

    Options: ClassVar[type[AttackSettings]] = AttackSettings
    """The attack's options, a subclass of `AttackSettings`. pydantic checks them."""

    def __init__(self, options: AttackSettings) -> None:
        self.options = options

    @property
    def colludes(self) -> bool:
        """True if the attackers know each other's updates: the attack overrides `collude`."""
        return type(self).collude is not Attack.collude

    @property
    def changes_updates(self) -> bool:
        """True if the attack overrides `update` or `collude`."""
        return self.colludes or type(self).update is not Attack.update

    @property
    def changes_examples(self) -> bool:
        """True if the attack overrides `examples`."""
        return type(self).examples is not Attack.examples

    @property
    def states_numbers(self) -> bool:
        """True if the attack overrides `num_examples`."""
        return type(self).num_examples is not Attack.num_examples

    @property
    def is_measured(self) -> bool:
        """True if devices measure the attack's success: the attack overrides `probe`."""
        return type(self).probe is not Attack.probe

    def refuses(self) -> Mapping[str, str]:
        """Return the features (such as keys of the experiment file) that the attack refuses, each with the reason.

        `FEATURES` in `fedstrata.checks.combinations` has the names of all features.
        """
        return {}

    def check(self, info: DatasetInfo) -> None:
        """Raise ExperimentError if the options do not fit the data."""

    def examples(self, examples: Examples, num_classes: int, rng: np.random.Generator) -> Examples:
        """Return the examples on which an attacking device trains, as many as in `examples`."""
        return examples

    def num_examples(self, examples: int) -> int:
        """Return the number of training examples that an attacking device states. It is the same in all rounds."""
        return examples

    def update(self, update: Flat, rng: np.random.Generator) -> Flat:
        """Return the update that an attacker sends in place of `update`, float32, of the same shape (elements,)."""
        return update

    def probe(self, examples: Examples) -> Examples:
        """Return examples to measure the attack's success, made from held-out examples. The attack succeeds with an
        example if the model predicts the example's label.
        """
        raise NotImplementedError

    def collude(self, known: Known, liars: int, children: int) -> Iterable[Flat]:
        """Yield the update that all attackers send to their parent, block by block, each of shape (elements,).

        Args:
            known: yields the updates that the attackers know, each time from the first block to the last. These are
                the updates of the parent's other children or, if all children attack, their own.
            liars: number of the parent's children that attack.
            children: number of all children of the parent.
        """
        raise NotImplementedError
