"""A rule as a user writes it, with an option, and rules with faults."""

import numpy as np

from fedstrata.rules import AllUpdates, ByProducts, RuleSettings


class Median(AllUpdates):
    """The coordinate-wise median of the updates, shortened."""

    class Options(RuleSettings):
        scale: float = 1.0

    def combine(self, updates, weights):
        return self.options.scale * np.median(updates, axis=0)


class Short(AllUpdates):
    """A rule that forgets an element."""

    def combine(self, updates, weights):
        return updates[0, 1:]


class Broken(AllUpdates):
    def combine(self, updates, weights):
        return updates + int("no number")


class Words(AllUpdates):
    def combine(self, updates, weights):
        return ["no number"] * updates.shape[1]

    def withstands(self, children):
        return "all"


class Huge(AllUpdates):
    """Numbers too large for float32."""

    def combine(self, updates, weights):
        return np.full(updates.shape[1], 1e300)


class Alone(Median):
    """A rule that refuses a feature, and one that does not exist."""

    def refuses(self):
        return {"training.participation": "a cohort may have too few children"}


class Equal(ByProducts):
    """The mean of the updates, each scaled to norm 1."""

    def factors(self, updates):
        return 1 / updates.norms / len(updates.children)


class Single(ByProducts):
    def factors(self, updates):
        return [1.0]
