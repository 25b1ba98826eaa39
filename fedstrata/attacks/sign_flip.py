"""The opposite of the update."""

import numpy as np

from fedstrata.attacks.base import Attack
from fedstrata.experiment.attacks import AttackSettings, Positive
from fedstrata.tensors import Flat


class SignFlip(Attack):
    """Send the update with the opposite sign, times a factor."""

    class Options(AttackSettings):
        times: Positive = 1.0
        """Factor of the opposite update."""

    options: Options

    def update(self, update: Flat, rng: np.random.Generator) -> Flat:
        return update * np.float32(-self.options.times)
