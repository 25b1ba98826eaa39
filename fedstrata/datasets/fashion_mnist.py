"""Fashion-MNIST: 60,000 training and 10,000 test images in grey, of 28 × 28 pixels, of ten kinds of clothing.

Source: H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, 2017, https://github.com/zalandoresearch/fashion-mnist.
"""

from collections.abc import Sequence
from pathlib import Path

from fedstrata.datasets.download import download
from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples
from fedstrata.datasets.idx import read_labelled_images
from fedstrata.datasets.published import Published, find_files
from fedstrata.experiment import DataSettings

INFO = DatasetInfo(input_shape=(1, 28, 28), num_classes=10)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# SHA-256 of each file's uncompressed content. Debian's compressed files differ from the publisher's.
FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def load(settings: DataSettings) -> Dataset:
    """Return the images as bytes. `Examples` scales them to [0, 1] when a batch is read."""
    files = find_files(published(), settings)
    return Dataset(
        train=_read(files["train-images-idx3-ubyte"], files["train-labels-idx1-ubyte"]),
        test=_read(files["t10k-images-idx3-ubyte"], files["t10k-labels-idx1-ubyte"]),
        num_classes=INFO.num_classes,
    )


def published() -> Published:
    """Return the description of Fashion-MNIST, which has four files. Debian and Ubuntu also have a package with these
    files.
    """
    return Published(
        name="fashion-mnist",
        title="Fashion-MNIST",
        files=list(FILES),
        fetch=_fetch,
        content_sha256=FILES,
        usual_places=[DEBIAN],
        package="dataset-fashion-mnist",
    )


def _fetch(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        download(f"{URL}/{name}.gz", folder / f"{name}.gz", content_sha256=FILES[name])


def _read(images: Path, labels: Path) -> Examples:
    return read_labelled_images(images, labels, INFO, "Fashion-MNIST")
