"""The attack Min-Max: updates as far from honest updates as the most distant honest updates are from each other.

Virat Shejwalkar and Amir Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
Federated Learning", NDSS 2021, equation 5 with the perturbation "inverse standard deviation".
"""

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from fedstrata.attacks.base import Attack, Known
from fedstrata.tensors import Flat


class MinMax(Attack):
    """Send the mean of the known updates minus γ standard deviations. With the largest possible γ, no known update is
    farther from the lie than the two most distant known updates are from each other. The paper searches for γ, and here
    it is computed.
    """

    def collude(self, known: Known, liars: int, children: int) -> Iterable[Flat]:
        gamma = largest_gamma(known)
        for updates in known():
            yield updates.mean(0, dtype="f8") - gamma * updates.std(0, dtype="f8")


def largest_gamma(known: Known) -> float:
    """Return the largest γ. With the mean m and the deviations s, each update u gives |m − γs − u|² ≤ D², which is a
    quadratic inequality in γ. D is the largest distance between two updates.
    """
    count = len(next(known()))
    between = dict.fromkeys(combinations(range(count), 2), 0.0)  # squared distances
    squares, along, deviations = np.zeros(count), np.zeros(count), 0.0  # |m − u|², (m − u)·s, |s|²
    for block in known():
        updates = block.astype(np.float64)
        away, deviation = updates.mean(0) - updates, updates.std(0)
        squares += (away**2).sum(1)
        along += (away * deviation).sum(1)
        deviations += float((deviation**2).sum())
        for one, other in between:
            between[one, other] += float(((updates[one] - updates[other]) ** 2).sum())
    if not deviations:
        return 0.0
    room = max(between.values()) - squares
    return float(((along + np.sqrt(along**2 + deviations * room)) / deviations).min())
