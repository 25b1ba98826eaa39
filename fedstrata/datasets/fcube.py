"""FCUBE: 4,000 points in a cube of three dimensions, drawn here as the authors' program does.

Source: Q. Li, Y. Diao, Q. Chen and B. He, *Federated Learning on Non-IID Data Silos: An Experimental Study*, 2021, with
the function in `utils.py` of github.com/Xtra-Computing/NIID-Bench (`dataset == 'generated'`). The label says on which
side of the plane x₁ = 0 a point lies. Each of four owners has a thousand points in two opposite octants. So features
differ between owners, and label shares do not. The 1,000 test points are uniform over the cube.
"""

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples
from fedstrata.experiment import DataSettings

INFO = DatasetInfo(input_shape=(3,), num_classes=2)
OWNERS, PER_OWNER, TESTS = 4, 1000, 1000
OWNER = "owner"
POINTS, TEST_POINTS = 0x6663756265, 0x6663756266  # addresses of the two draws, the same in every experiment


def load(settings: DataSettings) -> Dataset:
    """Return the points. The column `owner` has the owner of each point, and so its pair of octants. A `natural`
    partition can use this column.
    """
    owners = np.repeat(np.arange(OWNERS), PER_OWNER)
    points = np.random.default_rng(POINTS).random((OWNERS * PER_OWNER, 3), np.float32)
    points[owners > 1, 1] *= -1
    points[owners % 2 == 1, 2] *= -1
    points[1::2] *= -1
    tests = np.random.default_rng(TEST_POINTS).uniform(-1, 1, (TESTS, 3)).astype(np.float32)
    return Dataset(train=_examples(points), test=_examples(tests), num_classes=INFO.num_classes)


def _examples(points: NDArray[np.float32]) -> Examples:
    """Return points with labels and owners. The owner depends on whether x₂ has the same sign as x₁, and on whether x₃
    has the same sign as x₁.
    """
    is_negative = points < 0
    owners = 2 * (is_negative[:, 1] != is_negative[:, 0]) + (is_negative[:, 2] != is_negative[:, 0])
    labels = is_negative[:, 0].astype(np.int64)
    return Examples(inputs=points, labels=labels, columns={OWNER: owners.astype(np.int64)})
