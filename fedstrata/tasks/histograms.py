"""The area under the ROC curve, computed from a histogram of scores. The histograms of several devices can be added."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedstrata.tasks.base import Sum

if TYPE_CHECKING:
    from torch import Tensor


def histogram_sums(bins: int) -> tuple[Sum, ...]:
    """Return the sums of a histogram: the negatives in each bin, then the positives in each bin."""
    return tuple(
        Sum(name=f"{kind}_{number}", is_count=True) for kind in ("negatives", "positives") for number in range(bins)
    )


def counted(scores: "Tensor", is_positive: "Tensor", bins: int) -> list[float]:
    """Return how many scores in [0, 1] are in each bin, first for negatives, then for positives. `scores` and
    `is_positive` have the same shape.
    """
    import torch

    places = (scores * bins).long().clamp(0, bins - 1)
    both = torch.bincount((places + bins * is_positive).flatten(), minlength=2 * bins)
    return [float(count) for count in both.tolist()]


def ranking(counts: Sequence[float]) -> float | None:
    """Return the area under the ROC curve, computed from the counts that `counted` returns. Without positives or
    without negatives, return None.

    The area is a share of all pairs of a positive and a negative example: the pairs in which the positive example has
    the higher score. A pair in the same bin is counted as half a pair. So the result differs from the exact share by at
    most half the share of such pairs.
    """
    negatives, positives = np.asarray(counts, np.float64).reshape(2, -1)
    pairs = negatives.sum() * positives.sum()
    lower = np.cumsum(negatives) - negatives / 2
    return float((positives * lower).sum() / pairs) if pairs else None
