"""The attacks by name. The module makes the attacks of an experiment from its section `attacks`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedstrata.attacks.base import Attack, Known
from fedstrata.datasets import Examples
from fedstrata.errors import PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment.attacks import ATTACKS_ADDRESS, AttackSettings
from fedstrata.experiment.registry import Registry
from fedstrata.plugins import or_failed
from fedstrata.tensors import Flat, own_vector

# By name `module:Class`. The module is imported when the name is first used.
REGISTRY: Mapping[str, str] = {
    "sign_flip": "fedstrata.attacks.sign_flip:SignFlip",
    "scale": "fedstrata.attacks.scale:Scale",
    "noise": "fedstrata.attacks.noise:AddNoise",
    "label_flip": "fedstrata.attacks.label_flip:LabelFlip",
    "backdoor": "fedstrata.attacks.backdoor:Backdoor",
    "examples": "fedstrata.attacks.examples:FalseNumber",
    "alie": "fedstrata.attacks.alie:ALittleIsEnough",
    "inner_product": "fedstrata.attacks.inner_product:InnerProduct",
    "min_max": "fedstrata.attacks.min_max:MinMax",
}
ATTACKS = Registry(section="attack", base=Attack, options=AttackSettings, default="", known=REGISTRY)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Hold one entry of the section `attacks`: the attack, and the devices or LPSs that attack."""

    number: int  # in the section, from 0
    experiment: Experiment
    attack: Attack

    @cached_property
    def devices(self) -> frozenset[int]:
        """The indexes of the devices that attack."""
        topology, count = self.experiment.topology, self.experiment.device_count
        homes = [topology.home_of(index) if topology else 0 for index in range(count)]
        return self.attack.options.indexes(homes, self.experiment.seed)

    @property
    def lps(self) -> Collection[int]:
        """The numbers of the LPSs that attack."""
        return self.attack.options.lps or ()

    def is_on(self, global_round: int) -> bool:
        """Return whether the attack goes on in this global round. The first round has the number 0."""
        return self.attack.options.is_on(global_round)

    def examples(self, examples: Examples, num_classes: int, device_index: int) -> Examples:
        """Return the examples on which a device trains. Raises PluginError if the user's own attack fails, returns
        impossible labels, or changes the number of examples (the device's weight).
        """
        changed: Any = self.attack.examples(examples, num_classes, self._draws(device_index))
        if not isinstance(changed, Examples) or len(changed) != len(examples):
            raise PluginError(f"{self}: examples must return Examples, as many as it gets ({len(examples)})")
        if changed.has_labels and not 0 <= changed.labels.min() <= changed.labels.max() < num_classes:
            least, most = changed.labels.min(), changed.labels.max()
            raise PluginError(
                f"{self}: examples returned labels {least} to {most}; they must be 0 to {num_classes - 1}"
            )
        return changed

    def num_examples(self, examples: int) -> int:
        """Return the number of training examples that a device states. The number is within the limits that the GPS
        accepts.
        """
        with or_failed(f"{self} failed in num_examples:", self.attack):
            stated = int(self.attack.num_examples(examples))
        return min(max(1, stated), self.experiment.most_examples)

    def update(self, update: Flat, attacker: int, round_number: int, stream: int = 0) -> Flat:
        """Return the update of one stream that a device or an LPS with this number sends in a round. Raises PluginError
        if the user's own attack fails, or returns no finite numbers of the same shape.
        """
        draws = self._draws(attacker, round_number, *([stream] if stream else []))
        with or_failed(f"{self} failed in update:", self.attack):
            return own_vector(self.attack.update(update.copy(), draws), len(update), self._wanted)

    def probe(self, examples: Examples) -> Examples:
        """Return examples to measure the attack's success. Raises PluginError if the user's own attack fails."""
        found: Any = self.attack.probe(examples)
        if not isinstance(found, Examples):
            raise PluginError(f"{self}: probe must return Examples, not {found!r:.80}")
        return found

    def collude(self, known: Known, liars: int, children: int, size: int) -> Flat:
        """Return the update, shape (size,), that all attackers of a parent send. Raises PluginError like `update`."""
        with or_failed(f"{self} failed in collude:", self.attack):
            blocks = [np.asarray(block, np.float32) for block in self.attack.collude(known, liars, children)]
            return own_vector(np.concatenate(blocks), size, self._wanted)

    @property
    def _wanted(self) -> str:
        return f"{self}: an update must have finite float32 numbers"

    def __str__(self) -> str:
        return f"attack {self.attack.options.name}"

    def _draws(self, attacker: int, *place: int) -> np.random.Generator:
        return np.random.default_rng([self.experiment.seed, ATTACKS_ADDRESS, self.number, attacker, *place])


def attack_settings(section: Any) -> Any:
    """Return the section `attacks`, in which each entry is replaced by the settings of its attack. Raises
    ExperimentError for an attack that does not exist, or for wrong options.
    """
    if not isinstance(section, list | tuple):
        return section
    return [ATTACKS.settings(entry, f"attacks.{number}") for number, entry in enumerate(section)]


def _made(settings: AttackSettings) -> Attack:
    return ATTACKS.made(settings.name, lambda kind: kind(settings))


def attacks_of(experiment: Experiment) -> tuple[Entry, ...]:
    """Return the attacks of an experiment. Raises PluginError if the user's own attack cannot be made."""
    return tuple(
        Entry(number=number, experiment=experiment, attack=_made(settings))
        for number, settings in enumerate(experiment.attacks)
    )
