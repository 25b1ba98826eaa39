"""An attack as a user writes it: attackers send the opposite of the known mean, as long as the longest update."""

import numpy as np

from fedstrata.attacks import Attack, AttackSettings, Positive


class Opposing(Attack):
    class Options(AttackSettings):
        times: Positive = 1.0

    def collude(self, known, liars, children):
        lengths = sum((block.astype(float) ** 2).sum(axis=1) for block in known())
        of_mean = sum((block.mean(axis=0, dtype=float) ** 2).sum() for block in known())
        factor = -self.options.times * np.sqrt(lengths.max() / of_mean)
        for block in known():
            yield factor * block.mean(axis=0, dtype=float)
