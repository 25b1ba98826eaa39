"""CIFAR-10 and CIFAR-100: 50,000 training and 10,000 test images in colour, of 32 × 32 pixels, in ten or a hundred
classes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. The module reads the binary version. A record is a label (in CIFAR-100 a
coarse and a fine label), then 3,072 bytes. The bytes are first all red, then green, then blue, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedstrata.datasets.download import download_members
from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples
from fedstrata.datasets.published import Published, find_files
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings
from fedstrata.process.regular_files import check_regular

IMAGE = (3, 32, 32)
PIXEL_BYTES = 3 * 32 * 32
URL = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True, kw_only=True)
class Version:
    """Hold the values in which CIFAR-10 and CIFAR-100 differ."""

    name: str
    title: str
    info: DatasetInfo
    archive: str
    archive_sha256: str
    subfolder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int  # number of bytes before an image's pixels; the last of them is the label


CIFAR_10 = Version(
    name="cifar-10",
    title="CIFAR-10",
    info=DatasetInfo(input_shape=IMAGE, num_classes=10),
    archive="cifar-10-binary.tar.gz",
    archive_sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    subfolder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    label_bytes=1,
)
CIFAR_100 = Version(
    name="cifar-100",
    title="CIFAR-100",
    info=DatasetInfo(input_shape=IMAGE, num_classes=100),
    archive="cifar-100-binary.tar.gz",
    archive_sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    subfolder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    label_bytes=2,
)


def published(version: Version) -> Published:
    """Return the description of CIFAR-10 or CIFAR-100. All files of a version come in one archive."""

    def fetch(folder: Path, names: Sequence[str]) -> None:
        members = {name: f"{version.subfolder}/{name}" for name in names}
        download_members(f"{URL}/{version.archive}", folder, members, archive_sha256=version.archive_sha256)

    return Published(
        name=version.name,
        title=f"{version.title} (binary version)",
        files=[*version.train, version.test],
        fetch=fetch,
        subfolder=version.subfolder,
    )


def load(version: Version, settings: DataSettings) -> Dataset:
    """Return the images as bytes, with the fine labels. `Examples` scales them to [0, 1] when a batch is read."""
    files = find_files(published(version), settings)
    return Dataset(
        train=_read([files[name] for name in version.train], version.label_bytes),
        test=_read([files[version.test]], version.label_bytes),
        num_classes=version.info.num_classes,
    )


def _read(paths: Sequence[Path], label_bytes: int) -> Examples:
    parts = [_records(path, label_bytes) for path in paths]
    return Examples(
        inputs=np.concatenate([part[:, label_bytes:] for part in parts]).reshape(-1, *IMAGE),
        labels=np.concatenate([part[:, label_bytes - 1] for part in parts]).astype(np.int64),
    )


def _records(path: Path, label_bytes: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    record_bytes = label_bytes + PIXEL_BYTES
    try:
        check_regular(path)
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from None
    if not content or len(content) % record_bytes:
        raise DataError(
            f"cannot use {path}: its {len(content)} bytes are not whole records of {record_bytes} bytes; "
            "replace the file, or delete it"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, record_bytes)
