"""Load the data set that the section `data` of an experiment names, or only its shape."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

from fedstrata.datasets import cifar, digits, emnist, fashion_mnist, fcube, folder, svhn, synthetic
from fedstrata.datasets.examples import Dataset, DatasetInfo
from fedstrata.datasets.published import Published
from fedstrata.datasets.turning import in_orientations, oriented_info
from fedstrata.errors import DataError, ExperimentError, PluginError
from fedstrata.experiment import DataSettings, SyntheticSettings
from fedstrata.plugins import load_plugin, or_failed

BUILT_IN = {
    "digits": digits.INFO,
    "fcube": fcube.INFO,
    "synthetic": synthetic.INFO,
    "fashion-mnist": fashion_mnist.INFO,
    "emnist": emnist.INFO,
    "cifar-10": cifar.CIFAR_10.info,
    "cifar-100": cifar.CIFAR_100.info,
    "svhn": svhn.INFO,
}
MOST_SAID = 8  # largest number of column names in a message
LOADERS: Mapping[str, Callable[[DataSettings], Dataset]] = {
    "digits": digits.load,
    "fcube": fcube.load,
    "fashion-mnist": fashion_mnist.load,
    "emnist": emnist.load,
    "cifar-10": partial(cifar.load, cifar.CIFAR_10),
    "cifar-100": partial(cifar.load, cifar.CIFAR_100),
    "svhn": svhn.load,
    "folder": folder.load,
}
PUBLISHED: Mapping[str, Callable[[], Published]] = {
    "fashion-mnist": fashion_mnist.published,
    "emnist": emnist.published,
    "cifar-10": partial(cifar.published, cifar.CIFAR_10),
    "cifar-100": partial(cifar.published, cifar.CIFAR_100),
    "svhn": svhn.published,
}


def dataset_info(settings: DataSettings) -> DatasetInfo:
    """Return the shape and the number of classes of a data set, without reading its data. Servers do not have the data.

    Raises:
        ExperimentError: `data.input_shape` is missing for a data set that is not built in, or images of this shape
            cannot be rotated as `data.orientations` says.
    """
    info = _plain_info(settings)
    return oriented_info(info, settings.orientations) if settings.orientations else info


def _plain_info(settings: DataSettings) -> DatasetInfo:
    if settings.name in BUILT_IN:
        return BUILT_IN[settings.name]
    if settings.input_shape is None:
        raise ExperimentError(f"data.name {settings.name} needs data.input_shape; add it")
    return DatasetInfo(
        input_shape=settings.input_shape,
        num_classes=settings.num_classes or len(settings.classes or ()),
        target_shape=settings.target_shape,
    )


def load_dataset(settings: DataSettings, seed: int) -> Dataset:
    """Return the data set. It has the shape and the classes of `dataset_info`.

    `seed` is the experiment's seed. Only the data set `synthetic` uses it, and only if `synthetic` has no seed of its
    own.

    Raises:
        DataError: the data is missing, damaged, or of another shape than declared.
        PluginError: the user's own code in `module:function` is missing, fails or does not return a Dataset.
    """
    if settings.name == "synthetic":
        dataset = synthetic.load(settings.synthetic or SyntheticSettings(), seed)
    else:
        dataset = LOADERS.get(settings.name, _load_own)(settings)
    declared = _plain_info(settings)
    if dataset.info != declared:
        raise DataError(
            f"data set {settings.name} has examples of {_said(dataset.info)}, but the section data declares "
            f"{_said(declared)}; correct {_advice(dataset, declared)}"
        )
    return in_orientations(dataset, settings.orientations) if settings.orientations else dataset


def _advice(dataset: Dataset, declared: DatasetInfo) -> str:
    """Return which keys to correct. If the inputs do not have the declared shape, also return from which columns they
    were made. If targets look like labels in another form, also return how to write them as labels.
    """
    found = asdict(dataset.info)
    keys = " and ".join(f"data.{key}" for key, value in asdict(declared).items() if found[key] != value)
    if not declared.target_shape and (flat := _as_labels(dataset.info)):
        (name,) = dataset.target_names if len(dataset.target_names) == 1 else ["y"]
        keys += f", or for task classification, which needs labels of shape (n,), write {name}{flat} in place of {name}"
    names = dataset.input_names
    if not names or dataset.info.input_shape == declared.input_shape:
        return keys
    said = ", ".join(names[:MOST_SAID]) + (" …" if len(names) > MOST_SAID else "")
    return f"{keys}, or choose columns in data.inputs (the input columns are {said})"


def _as_labels(info: DatasetInfo) -> str:
    """Return the NumPy code that makes labels of targets with one value, or with one value per label, of which the
    largest marks the label. For other targets, return an empty text.
    """
    if not info.num_classes or len(info.target_shape) != 1:
        return ""
    return {1: "[:, 0]", info.num_classes: ".argmax(1)"}.get(info.target_shape[0], "")


def _said(info: DatasetInfo) -> str:
    targets = f" with targets of shape {info.target_shape}" if info.target_shape else ""
    classes = f"in {info.num_classes} classes" if info.num_classes else "without classes"
    return f"shape {info.input_shape} {classes}{targets}"


def _load_own(settings: DataSettings) -> Dataset:
    function = load_plugin(settings.name, "data set")
    try:
        with or_failed(f"data set {settings.name} failed with", function):
            dataset = function(settings)
    except DataError as error:
        raise DataError(f"data set {settings.name}: {error}") from None
    if not isinstance(dataset, Dataset):
        raise PluginError(
            f"data set {settings.name} must return a fedstrata.datasets.Dataset, not {type(dataset).__name__}; return "
            "Dataset(train=Examples(inputs=..., labels=...), test=..., num_classes=...)"
        )
    return dataset
