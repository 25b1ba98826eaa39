"""Normal noise on the update."""

import numpy as np

from fedstrata.attacks.base import Attack
from fedstrata.experiment.attacks import AttackSettings, Positive
from fedstrata.tensors import Flat


class AddNoise(Attack):
    """Add independent normal noise to each value of the update."""

    class Options(AttackSettings):
        deviation: Positive = 1.0
        """Standard deviation of the noise."""

    options: Options

    def update(self, update: Flat, rng: np.random.Generator) -> Flat:
        noise = rng.standard_normal(len(update), np.float32)
        return update + np.float32(self.options.deviation) * noise
