"""EMNIST, balanced: 112,800 training and 18,800 test images in grey, of 28 × 28 pixels. They show handwritten digits
and letters in 47 classes.

Source: G. Cohen, S. Afshar, J. Tapson and A. van Schaik, EMNIST: an extension of MNIST to handwritten letters, 2017,
https://www.nist.gov/itl/products-and-services/emnist-dataset. Capital and small letters that look alike are one class.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedstrata.datasets.download import download_members
from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples
from fedstrata.datasets.idx import read_labelled_images
from fedstrata.datasets.published import Published, find_files
from fedstrata.experiment import DataSettings

INFO = DatasetInfo(input_shape=(1, 28, 28), num_classes=47)
URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
ARCHIVE_SHA256 = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
FILES = tuple(
    f"emnist-balanced-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


def load(settings: DataSettings) -> Dataset:
    """Return the images as bytes. `Examples` scales them to [0, 1] when a batch is read."""
    files = find_files(published(), settings)
    train_images, train_labels, test_images, test_labels = (files[name] for name in FILES)
    return Dataset(
        train=_read(train_images, train_labels), test=_read(test_images, test_labels), num_classes=INFO.num_classes
    )


def published() -> Published:
    """Return the description of EMNIST's balanced version. Its four files come in one archive."""
    return Published(name="emnist", title="EMNIST", files=FILES, fetch=_fetch, subfolder="gzip")


def _fetch(folder: Path, names: Sequence[str]) -> None:
    members = {f"{name}.gz": f"gzip/{name}.gz" for name in names}
    download_members(URL, folder, members, archive_sha256=ARCHIVE_SHA256)


def _read(images: Path, labels: Path) -> Examples:
    """Return the images with rows before columns. The publisher's files have columns before rows."""
    stored = read_labelled_images(images, labels, INFO, "EMNIST")
    return stored.with_inputs(np.ascontiguousarray(stored.stored.swapaxes(-1, -2)))
