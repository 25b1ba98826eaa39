"""What convolutional models require of a data set: images that are large enough."""

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExperimentError


def image_shape(info: DatasetInfo, model: str, *, smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of the data set's examples. Images without channels are grey.

    Raises:
        ExperimentError: the examples are no images, or their shorter side is below `smallest` pixels.
    """
    match info.input_shape:
        case (height, width) if min(height, width) >= smallest:
            return (1, height, width)
        case (channels, height, width) if min(height, width) >= smallest:
            return (channels, height, width)
    raise ExperimentError(
        f"model {model} takes images, (channels, height, width) or (height, width) of at least {smallest}×{smallest} "
        f"pixels, and the data set's examples have shape {info.input_shape}; choose model mlp or other data"
    )
