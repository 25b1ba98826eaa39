"""The update times a factor."""

import numpy as np

from fedstrata.attacks.base import Attack
from fedstrata.experiment.attacks import AttackSettings, Positive
from fedstrata.tensors import Flat


class Scale(Attack):
    """Send the update times a factor."""

    class Options(AttackSettings):
        times: Positive = 10.0
        """Factor of the update."""

    options: Options

    def update(self, update: Flat, rng: np.random.Generator) -> Flat:
        return update * np.float32(self.options.times)
