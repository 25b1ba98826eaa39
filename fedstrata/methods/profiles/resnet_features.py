"""The feature map Φ of Ali & Arafa's CIFAR setting: for each image, the outputs of the last convolutions of a trained
ResNet-18.

The weights come from a file in torchvision's format. The module checks the file's SHA-256, then loads the file by
`torch.load` with `weights_only`. So nothing in the file is executed. For a feature map with your own weights, two lines
are enough:

    from fedstrata.methods.profiles.resnet_features import resnet18_features
    phi = resnet18_features(Path("weights.pth"), sha256="…")
"""

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import DataError
from fedstrata.store.named_files import file_sha256

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

# torchvision's ResNet18_Weights.IMAGENET1K_V1, from https://download.pytorch.org/models/
PUBLISHED = "resnet18-f37072fd.pth"
PUBLISHED_SHA256 = "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"
BATCH = 64
STAGES = (64, 128, 256, 512)
# mean and deviation of each colour in ImageNet, on which the weights were trained
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def imagenet(inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return features (n, 512) of images, computed with the published weights in `$FEDSTRATA_DATA/resnet18`. Raises
    DataError if the weights are missing.
    """
    return _published()(inputs)


@cache
def _published() -> Callable[[NDArray[np.float32]], NDArray[np.float64]]:
    data = os.environ.get("FEDSTRATA_DATA")
    if not data:
        raise DataError(
            f"features resnet18 needs a file of weights, and $FEDSTRATA_DATA is not set; set it, and put {PUBLISHED} "
            "into $FEDSTRATA_DATA/resnet18"
        )
    return resnet18_features(Path(data) / "resnet18" / PUBLISHED, sha256=PUBLISHED_SHA256)


def resnet18_features(path: Path, *, sha256: str) -> Callable[[NDArray[np.float32]], NDArray[np.float64]]:
    """Return the feature map with the weights in a file. It maps images (n, height, width) or (n, 1 or 3, height,
    width) in [0, 1] to features (n, 512).

    Images are not resized. A grey image is repeated in all three colour channels.

    Raises:
        DataError: the file is missing, has another SHA-256, or holds no ResNet-18.
    """
    weights = _weights(path, sha256)

    def features(inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        import torch

        images = _in_colour(inputs)
        with torch.inference_mode():
            parts = [_pooled(weights, torch.tensor(images[at : at + BATCH])) for at in range(0, len(images), BATCH)]
        return np.concatenate([part.numpy() for part in parts]).astype(np.float64)

    return features


def _in_colour(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the images normalised and with three channels. Raises DataError for inputs that are no images."""
    images = inputs[:, None] if inputs.ndim == 3 else inputs
    if images.ndim != 4 or images.shape[1] not in {1, 3}:
        raise DataError(f"features resnet18 needs images with one or three channels, not shape {inputs.shape[1:]}")
    mean, deviation = (np.array(values, np.float32)[:, None, None] for values in (MEAN, DEVIATION))
    return (images - mean) / deviation


def _weights(path: Path, sha256: str) -> "Weights":
    import torch

    try:
        found = file_sha256(path)
    except OSError as error:
        raise DataError(f"features resnet18: cannot read {path}: {error.strerror}; put the weights there") from None
    if found != sha256:
        raise DataError(f"cannot use {path}: its SHA-256 is {found}, not {sha256}; replace the file")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch can raise any exception for a damaged file
        raise DataError(f"cannot use {path}: {' '.join(str(error).split()):.200}") from None
    return _checked(path, loaded)


def _checked(path: Path, loaded: Any) -> "Weights":
    """Return the required tensors of a loaded file. Raises DataError if one is missing or has the wrong shape."""
    import torch

    found = loaded if isinstance(loaded, dict) else {}
    for name, shape in _shapes().items():
        tensor = found.get(name)
        if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            raise DataError(f"cannot use {path}: it must have a tensor {name} of float32 and shape {shape}")
    return {name: found[name] for name in _shapes()}


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes = _normalised_shapes("conv1", "bn1", (64, 3, 7, 7))
    into = 64
    for stage, out in enumerate(STAGES, 1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            shapes |= _normalised_shapes(f"{name}.conv1", f"{name}.bn1", (out, into, 3, 3))
            shapes |= _normalised_shapes(f"{name}.conv2", f"{name}.bn2", (out, out, 3, 3))
            if into != out:
                shapes |= _normalised_shapes(f"{name}.downsample.0", f"{name}.downsample.1", (out, into, 1, 1))
            into = out
    return shapes


def _normalised_shapes(conv: str, norm: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    kinds = ("weight", "bias", "running_mean", "running_var")
    return {f"{conv}.weight": shape, **{f"{norm}.{kind}": shape[:1] for kind in kinds}}


def _pooled(weights: "Weights", images: "torch.Tensor") -> "torch.Tensor":
    """Return the mean over pixels of the last convolutions' outputs, shape (n, 512)."""
    from torch.nn.functional import max_pool2d

    maps = max_pool2d(_normalised(weights, "conv1", "bn1", images, stride=2).relu(), 3, stride=2, padding=1)
    for stage in range(1, len(STAGES) + 1):
        for block in range(2):
            maps = _block(weights, f"layer{stage}.{block}", maps, stride=2 if stage > 1 and block == 0 else 1)
    return maps.mean((2, 3))


def _block(weights: "Weights", name: str, maps: "torch.Tensor", stride: int) -> "torch.Tensor":
    inner = _normalised(weights, f"{name}.conv1", f"{name}.bn1", maps, stride=stride).relu()
    inner = _normalised(weights, f"{name}.conv2", f"{name}.bn2", inner)
    if stride != 1:
        maps = _normalised(weights, f"{name}.downsample.0", f"{name}.downsample.1", maps, stride=stride)
    return (inner + maps).relu()


def _normalised(weights: "Weights", conv: str, norm: str, maps: "torch.Tensor", stride: int = 1) -> "torch.Tensor":
    from torch.nn.functional import batch_norm, conv2d

    kernel = weights[f"{conv}.weight"]
    mean, variance = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
    maps = conv2d(maps, kernel, stride=stride, padding=kernel.shape[-1] // 2)
    return batch_norm(maps, mean, variance, weights[f"{norm}.weight"], weights[f"{norm}.bias"])
