"""Handwritten digits: 1,797 images of 8 × 8 pixels that ship with scikit-learn.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples, position_in_label
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings

INFO = DatasetInfo(input_shape=(1, 8, 8), num_classes=10)
FILE = Path("datasets/data/digits.csv.gz")
HELD_OUT_EVERY = 5  # the fifth, tenth, … image of each digit is a test image: about 80/20, stratified


def load(settings: DataSettings) -> Dataset:
    """Return the digits, scaled to [0, 1]. The position of an image among the images of its digit decides whether the
    image is for training or for tests.
    """
    table = np.loadtxt(_file(), dtype=np.uint8, delimiter=",")  # 64 pixels from 0 to 16 and the label
    images, labels = table[:, :-1], table[:, -1]
    examples = Examples(
        inputs=(images / 16).astype(np.float32).reshape(-1, *INFO.input_shape), labels=labels.astype(np.int64)
    )
    is_test = position_in_label(examples.labels) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return Dataset(
        train=examples.take(np.flatnonzero(~is_test)),
        test=examples.take(np.flatnonzero(is_test)),
        num_classes=INFO.num_classes,
    )


def _file() -> Path:
    """Return the path of the file in scikit-learn's package. scikit-learn is not imported, because that takes over a
    second.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(
            "data set digits is a part of scikit-learn, which is not installed here; pip install scikit-learn"
        )
    file = Path(package.origin).parent / FILE
    if not file.exists():
        raise DataError(f"data set digits: the scikit-learn that is installed here has no {file}; install 1.5 or newer")
    return file
