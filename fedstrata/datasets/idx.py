"""The IDX format of the MNIST family. The real size of a file is checked before memory is allocated.

Format: two zero bytes, type 0x08 (unsigned byte), the number of dimensions, each dimension as a big-endian uint32, then
the values. Files may be gzipped (`.gz`).
"""

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets.examples import DatasetInfo, Examples
from fedstrata.errors import DataError
from fedstrata.process.regular_files import check_regular

DEFLATE_RATIO = 1032  # largest number of bytes that one deflated byte can expand to (zlib's technical notes)
MAX_BYTES = 1 << 30
PIECE_BYTES = 1 << 20


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file with elements of one byte. The array is read-only. Raises DataError if the file
    has another format or number of dimensions.
    """
    try:
        with _open(path) as file:
            return _parse(file, dimensions=dimensions, limit_bytes=_most_bytes(path))
    except (OSError, EOFError, zlib.error, DataError) as error:
        raise DataError(f"cannot use {path}: {error}; replace the file, or delete it") from None


def read_labelled_images(images: Path, labels: Path, info: DatasetInfo, title: str) -> Examples:
    """Return grey images and their labels from two IDX files. Raises DataError if the images do not have the shape in
    `info`, or if the numbers of images and labels differ.
    """
    values = read_idx(images, dimensions=3)
    if values.shape[1:] != info.input_shape[1:]:
        raise DataError(
            f"{images} has images of {_times(values.shape[1:])} pixels; {title} has {_times(info.input_shape[1:])}"
        )
    numbers = read_idx(labels, dimensions=1).astype(np.int64)
    if len(values) != len(numbers):
        raise DataError(f"{images} has {len(values)} images, but {labels} has {len(numbers)} labels")
    return Examples(inputs=values.reshape(-1, *info.input_shape), labels=numbers)


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(str(side) for side in shape)


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content. The content of a `.gz` file is decompressed first.

    Raises:
        DataError: the file cannot be read, or its content is larger than MAX_BYTES.
    """
    digest, length = hashlib.sha256(), 0
    try:
        with _open(path) as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                length += len(piece)
                if length > MAX_BYTES:
                    raise DataError(f"{path} has more than {MAX_BYTES} bytes")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    return digest.hexdigest()


def _open(path: Path) -> BinaryIO:
    check_regular(path)
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _most_bytes(path: Path) -> int:
    """Return the largest size that this file's content can have after decompression, given the file's size on disk."""
    size = path.stat().st_size
    return min(MAX_BYTES, size * DEFLATE_RATIO if path.suffix == ".gz" else size)


def _parse(file: BinaryIO, *, dimensions: int, limit_bytes: int) -> NDArray[np.uint8]:
    magic, expected = file.read(4), bytes([0, 0, 8, dimensions])
    if magic != expected:
        raise DataError(
            f"it starts with the bytes {magic.hex(' ')}; an IDX file of this kind starts with {expected.hex(' ')}"
        )
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise DataError("it ends inside its header")
    shape = struct.unpack(f">{dimensions}I", header)
    total = math.prod(shape)
    if total > limit_bytes:
        raise DataError(f"its header announces {total} bytes, more than the file can contain")
    content = file.read(total)
    if len(content) < total:
        raise DataError(f"it ends after {len(content)} of {total} bytes")
    if file.read(1):
        raise DataError(f"it has more bytes than the {total} that its header announces")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
