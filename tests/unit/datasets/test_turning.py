"""Images in several orientations, each with labels of its own."""

from pathlib import Path

import numpy as np
import pytest

from fedstrata.datasets import Dataset, DatasetInfo, Examples, dataset_info, load_dataset
from fedstrata.datasets.turning import in_orientations, turned
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment import DataSettings
from tests.support.splits import fashion_mnist, needs_fashion_mnist


def folder(path: Path, orientations: tuple[int, ...], shape: tuple[int, ...] = (2, 2)) -> DataSettings:
    """Six examples of two labels; the values of example i start at 10·i."""
    values = 10 * np.arange(6)[:, None] + np.arange(np.prod(shape))
    for part in ("train", "test"):
        np.savez(path / f"{part}.npz", x=values.astype(np.uint8).reshape(6, *shape), y=[0, 1, 0, 0, 1, 1])
    return DataSettings.model_validate(
        {"name": "folder", "folder": path, "input_shape": shape, "num_classes": 2, "orientations": orientations}
    )


def test_the_images_of_each_label_are_turned_in_turn_and_named_anew(tmp_path: Path) -> None:
    dataset = load_dataset(folder(tmp_path, (0, 90)), 0)
    assert dataset.train.scale == 255
    assert dataset.train.labels.tolist() == [0, 1, 2, 0, 3, 1]
    assert dataset.train.stored[0].tolist() == [[0, 1], [2, 3]]
    assert dataset.train.stored[2].tolist() == [[21, 23], [20, 22]]
    assert dataset.train.stored[4].tolist() == [[41, 43], [40, 42]]
    assert np.array_equal(dataset.test.labels, dataset.train.labels)
    assert dataset.num_classes == 4


def test_the_servers_know_the_number_of_labels_without_the_data() -> None:
    settings = DataSettings(name="fashion-mnist", orientations=(0, 90, 180))
    assert dataset_info(settings) == DatasetInfo(input_shape=(1, 28, 28), num_classes=30)


def test_floating_point_images_turn_as_bytes_do() -> None:
    upright, both = (load_dataset(DataSettings(name="digits", orientations=turns), 0) for turns in (None, (0, 90)))
    assert both.num_classes == 20
    first_turned = int(np.flatnonzero(both.train.labels == 13)[0])
    assert upright.train.labels[first_turned] == 3
    assert np.array_equal(both.train.inputs[first_turned, 0], np.rot90(upright.train.inputs[first_turned, 0]))


@needs_fashion_mnist
def test_fashion_mnist_upright_and_turned_has_twenty_classes_of_half_as_many_images() -> None:
    dataset = in_orientations(fashion_mnist(), [0, 90])
    assert np.bincount(dataset.train.labels).tolist() == [3000] * 20
    assert np.bincount(dataset.test.labels).tolist() == [500] * 20


@pytest.mark.parametrize(
    ("shape", "orientations", "message"),
    [
        ((4,), (0, 90), r"data\.orientations: only images of shape .* have shape \(4,\); remove data"),
        ((1, 2, 3), (0, 90), r"data\.orientations: images of 2 x 3 rotated by 90 degrees have another shape"),
    ],
)
def test_what_cannot_be_turned_is_refused(
    tmp_path: Path, shape: tuple[int, ...], orientations: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ExperimentError, match=message):
        dataset_info(folder(tmp_path, orientations, shape))


def test_oblong_images_can_be_upside_down(tmp_path: Path) -> None:
    dataset = load_dataset(folder(tmp_path, (0, 180), (1, 3)), 0)
    assert dataset.train.inputs[2].tolist() == (np.array([[22, 21, 20]], np.float32) / 255).tolist()


def test_images_that_are_read_when_needed_cannot_be_turned() -> None:
    items = Examples.of_items([(np.zeros((2, 2), np.float32), 0)])
    with pytest.raises(DataError, match="images of a map-style data set cannot be rotated here; remove rotation and"):
        in_orientations(Dataset(train=items, test=items, num_classes=1), [0, 90])
    with pytest.raises(DataError, match="rotate them in the data set"):
        turned(items, 1)
