"""Fashion-MNIST: 60,000 and 10,000 grey images of 28 × 28 in ten kinds of clothing.

Source: H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
Learning Algorithms, 2017, https://github.com/zalandoresearch/fashion-mnist.
"""

import os
from pathlib import Path

import numpy as np

from fedstrata.datasets.download import download
from fedstrata.datasets.examples import Dataset, DatasetInfo, Pixels
from fedstrata.datasets.idx import read_idx
from fedstrata.errors import DataError
from fedstrata.experiment import DataSettings

INFO = DatasetInfo(input_shape=(1, 28, 28), num_classes=10)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# SHA-256 of the content, for archives of it differ in their bytes: Debian's are not the publisher's
FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def load(settings: DataSettings) -> Dataset:
    """The images as bytes, scaled to [0, 1] when they are taken."""
    files = _find(settings)
    return Dataset(
        train=_read(files["train-images-idx3-ubyte"], files["train-labels-idx1-ubyte"]),
        test=_read(files["t10k-images-idx3-ubyte"], files["t10k-labels-idx1-ubyte"]),
        num_classes=INFO.num_classes,
    )


def _own_places(settings: DataSettings) -> list[Path]:
    """Where the files may lie before Debian's folder; the first is also where they are downloaded to."""
    data = os.environ.get("FEDSTRATA_DATA")
    places = [settings.folder, Path(data) / "fashion-mnist" if data else None]
    return [place for place in places if place is not None]


def _find(settings: DataSettings) -> dict[str, Path]:
    own = _own_places(settings)
    for place in [*own, DEBIAN]:
        files = _files_in(place)
        if len(files) == len(FILES):
            return files
    looked = ", ".join(str(place) for place in [*own, DEBIAN])
    if not settings.download:
        raise DataError(
            f"Fashion-MNIST is not in {looked}; apt-get install dataset-fashion-mnist, or name its folder in "
            "data.folder, or set data.download: true"
        )
    if not own:
        raise DataError(
            f"Fashion-MNIST is not in {looked}; to download it, say where in data.folder or $FEDSTRATA_DATA"
        )
    return _download(own[0])


def _files_in(place: Path) -> dict[str, Path]:
    """The files found there, plain or gzipped, by name."""
    candidates = {name: (place / name, place / f"{name}.gz") for name in FILES}
    found = {name: [path for path in paths if path.is_file()] for name, paths in candidates.items()}
    return {name: paths[0] for name, paths in found.items() if paths}


def _download(place: Path) -> dict[str, Path]:
    files = _files_in(place)
    for name in FILES.keys() - files.keys():
        files[name] = place / f"{name}.gz"
        download(f"{URL}/{name}.gz", files[name], content_sha256=FILES[name])
    return files


def _read(images: Path, labels: Path) -> Pixels:
    values = read_idx(images, dimensions=3)
    if values.shape[1:] != INFO.input_shape[1:]:
        raise DataError(f"{images} holds images of {values.shape[1:]}; Fashion-MNIST has 28 × 28")
    numbers = read_idx(labels, dimensions=1).astype(np.int64)
    if len(values) != len(numbers):
        raise DataError(f"{images} holds {len(values)} images, but {labels} {len(numbers)} labels")
    return Pixels(values=values.reshape(-1, *INFO.input_shape), labels=numbers)
