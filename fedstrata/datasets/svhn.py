"""SVHN, cropped digits: 73,257 training and 26,032 test images in colour, of 32 × 32 pixels. They show digits of house
numbers in ten classes.

Source: Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu and A. Y. Ng, Reading Digits in Natural Images with
Unsupervised Feature Learning, 2011, http://ufldl.stanford.edu/housenumbers. The files are in MATLAB's format. Each file
has two arrays: X, of shape (row, column, colour, image), and y, in which 10 means the digit 0.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets.download import download
from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples
from fedstrata.datasets.idx import DEFLATE_RATIO
from fedstrata.datasets.published import Published, find_files
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings

INFO = DatasetInfo(input_shape=(3, 32, 32), num_classes=10)
URL = "http://ufldl.stanford.edu/housenumbers"
FILES = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
IMAGE = (32, 32, 3)  # shape of an image in the files
IMAGE_BYTES = 32 * 32 * 3
NOUGHT = 10


def load(settings: DataSettings) -> Dataset:
    """Return the data set. Its images are uint8 arrays. `Examples` scales them to [0, 1] when a batch is read."""
    files = find_files(published(), settings)
    train, test = (_read(files[name]) for name in FILES)
    return Dataset(train=train, test=test, num_classes=INFO.num_classes)


def published() -> Published:
    """Return the description of SVHN, which has two files."""
    return Published(name="svhn", title="SVHN", files=list(FILES), fetch=_fetch, content_sha256=FILES)


def _fetch(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        download(f"{URL}/{name}", folder / name, content_sha256=FILES[name])


def _read(path: Path) -> Examples:
    try:
        images, labels = _arrays(path)
    except DataError:
        raise
    except Exception as error:  # SciPy can raise any exception for a damaged file
        reason = " ".join(str(error).split())
        raise DataError(
            f"cannot use {path}: {type(error).__name__}: {reason}; replace the file, or delete it"
        ) from None
    numbers = labels.reshape(-1).astype(np.int64)
    return Examples(
        inputs=np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels=np.where(numbers == NOUGHT, 0, numbers)
    )


def _arrays(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the arrays X and y. Their headers are checked before the arrays are read. Nothing in the file is
    executed.
    """
    try:
        from scipy.io import loadmat, whosmat
    except ImportError:
        raise DataError("data set svhn is in MATLAB's format, for which SciPy is needed; pip install scipy") from None
    declared = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    images, labels = declared.get("X", ((), "")), declared.get("y", ((), ""))
    number = images[0][-1] if len(images[0]) == len(IMAGE) + 1 else 0
    if images != ((*IMAGE, number), "uint8") or labels[0] != (number, 1) or labels[1] not in {"uint8", "double"}:
        raise DataError(
            f"cannot use {path}: it must contain X with 32 × 32 × 3 × n bytes and y with n × 1 labels, not {declared}; "
            "replace the file, or delete it"
        )
    if number * IMAGE_BYTES > path.stat().st_size * DEFLATE_RATIO:
        raise DataError(f"cannot use {path}: its header announces {number} images, more than the file can contain")
    arrays = loadmat(path, variable_names=["X", "y"])
    return arrays["X"], arrays["y"]
