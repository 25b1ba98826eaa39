"""A folder of one's own: `train.npz` and `test.npz`, each with the inputs as `x` and the labels as `y`."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets.examples import Dataset, Examples
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings

# what NumPy and zipfile raise for a damaged, encrypted or oversized archive
DAMAGE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def load(settings: DataSettings) -> Dataset:
    """Return the data set of a folder, written by `numpy.savez(file, x=inputs, y=labels)`.

    `x` is floating point of shape (n, *input_shape), or uint8 for pixels of 0 to 255, which are scaled to
    [0, 1]; `y` holds whole numbers of shape (n,).
    """
    if settings.folder is None or settings.num_classes is None:
        raise DataError("data.name folder: say in data.folder where train.npz and test.npz are")
    return Dataset(
        train=_read(settings.folder / "train.npz"),
        test=_read(settings.folder / "test.npz"),
        num_classes=settings.num_classes,
    )


def _read(path: Path) -> Examples:
    try:
        return _examples(*_arrays(path))
    except FileNotFoundError:
        raise DataError(f"there is no {path}; data.folder must hold train.npz and test.npz") from None
    except (DataError, *DAMAGE) as error:
        raise DataError(f"cannot use {path}: {' '.join(str(error).split())}") from None


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    with path.open("rb") as file:  # given a path, NumPy leaves a damaged file open
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise DataError("it is a single array; numpy.savez(file, x=inputs, y=labels) writes what is needed")
        if missing := {"x", "y"} - set(arrays.files):
            raise DataError(f"it has no array {' or '.join(sorted(missing))}, but {', '.join(arrays.files)}")
        return arrays["x"], arrays["y"]


def _examples(inputs: NDArray[Any], labels: NDArray[Any]) -> Examples:
    if labels.dtype.kind not in "iu":
        raise DataError(f"y must hold whole numbers, not {labels.dtype}")
    labels = labels.astype(np.int64)
    if inputs.dtype == np.uint8:
        return Examples(inputs=inputs, labels=labels)
    if inputs.dtype.kind != "f":
        raise DataError(f"x must be floating point, or uint8 for pixels, not {inputs.dtype}")
    with np.errstate(over="ignore"):  # a float64 too large becomes Inf, which Examples refuses
        return Examples(inputs=inputs.astype(np.float32), labels=labels)
