"""The geometric median of the updates.

RFA: Krishna Pillutla et al., "Robust Aggregation for Federated Learning", 2019, Algorithm 2 (smoothed Weiszfeld).
"""

import numpy as np

from fedstrata.rules.products import ByProducts, Numbers, Updates

ROUNDS = 100  # of the algorithm
LEAST = 1e-6  # the smallest distance: ν of the paper


class GeometricMedian(ByProducts):
    """Take the point with the smallest sum of distances to all updates. Each child counts once, so a false number of
    examples changes nothing.
    """

    def factors(self, updates: Updates) -> Numbers:
        products = updates.products
        factors = np.full(len(products), 1 / len(products))
        for _ in range(ROUNDS):  # the point is always the sum of the updates times their factors
            with_point = (products * factors).sum(axis=1)
            squares = np.diagonal(products) - 2 * with_point + (with_point * factors).sum()
            closeness = 1 / np.sqrt(np.maximum(squares, LEAST**2))
            factors = closeness / closeness.sum()
        return factors

    def withstands(self, children: int) -> int:
        return (children - 1) // 2
