"""Map-style data sets of PyTorch: read when they are taken, and changed at random by address."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset as MapStyle

from device.evaluation import evaluate
from device.stacked.training import Stacked
from device.training import OneByOne, TrainingJob, train
from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, PluginError
from fedstrata.experiment import ModelSettings, TrainingSettings
from fedstrata.models import build_model
from fedstrata.tasks import CLASSIFICATION

Item = tuple[torch.Tensor, int]


class Noisy(MapStyle[Item]):
    """Items whose inputs are their number, and noise from the three global generators."""

    def __init__(self, size: int, noise: float = 1.0) -> None:
        self.size, self.noise, self.reads = size, noise, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Item:
        if index >= self.size:
            raise IndexError(index)
        self.reads += 1
        noise = torch.rand(4) + random.random() + torch.tensor(np.random.rand(), dtype=torch.float32)
        return index + self.noise * noise, index % 2


class Broken(Noisy):
    def __init__(self) -> None:
        super().__init__(1)

    def __getitem__(self, index: int) -> Item:
        raise OSError("no image")


def job(examples: Examples, **changes: object) -> TrainingJob:
    data = Dataset(train=examples, test=examples, num_classes=2)
    model = build_model(ModelSettings(name="mlp", hidden=(3,)), data.info)
    made = TrainingJob(
        model=model, start=model.initial(0), examples=examples, seed=5, device_index=2, lps_round=1, global_round=1,
        training=TrainingSettings.model_validate({"local_epochs": 2, "batch_size": 4}), task=CLASSIFICATION,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_items_are_read_when_they_are_taken_and_are_the_same_each_time() -> None:
    source = Noisy(6)
    examples = Examples.of_items(source)
    assert examples.labels.tolist() == [0, 1, 0, 1, 0, 1]
    read = source.reads
    part = examples.part(np.array([4, 1]))
    assert source.reads - read <= 1  # the shape is one item's
    assert part.labels.tolist() == [0, 1]
    state = torch.get_rng_state()
    first = part.take(np.array([0, 1])).inputs
    random.random(), np.random.rand()
    assert np.array_equal(first, examples.take(np.array([4, 1])).inputs)
    assert torch.equal(state, torch.get_rng_state())


def test_training_draws_by_seed_device_round_epoch_and_example_alone() -> None:
    local = job(Examples.of_items(Noisy(10)))
    weights = train(local).weights
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    assert np.array_equal(weights, train(local).weights)
    for change in ({"seed": 6}, {"device_index": 3}, {"lps_round": 2}, {"number": 1}):
        assert not np.array_equal(weights, train(replace(local, **change)).weights), change  # type: ignore[arg-type]
    epochs = np.zeros(3, np.int64)
    first, again, later = (
        local.examples.drawn(np.arange(3), [5, 2, 1, 0], each).inputs for each in (epochs, epochs, epochs + 1)
    )
    assert np.array_equal(first, again)
    assert not np.equal(first, later).any()


def test_without_noise_it_is_training_on_the_arrays() -> None:
    plain = Examples(inputs=np.repeat(np.arange(10, dtype=np.float32)[:, None], 4, axis=1), labels=np.arange(10) % 2)
    items = Examples.of_items(Noisy(10, noise=0.0))
    assert np.array_equal(train(job(plain)).weights, train(job(items)).weights)
    trained = Stacked().train([job(items), job(plain)])
    alone = OneByOne().train([job(items)])
    assert np.array_equal(trained[0].weights, alone[0].weights)
    measured = [evaluate(job(each).model, job(each).start, each, job(each).task) for each in (items, plain)]
    assert measured[0] == measured[1]


def test_items_of_several_shapes_and_items_that_fail_are_said_in_a_line() -> None:
    ragged = [(np.ones(2, np.float32), 0), (np.ones(3, np.float32), 1)]
    with pytest.raises(
        DataError, match=r"items of the data set have different shapes or types, \(2,\) and others; pad them"
    ):
        Examples.of_items(ragged).take(np.array([0, 1]))
    with pytest.raises(PluginError, match="data set Broken: reading item 0 failed with OSError: no image"):
        Examples.of_items(Broken())
    for item in ((np.ones(2, np.float32),), {"x": np.ones(2, np.float32), "y": 0}):
        with pytest.raises(DataError, match=f"item 0 of list is a {type(item).__name__}; return a pair of input and"):
            Examples.of_items([item])
    with pytest.raises(DataError, match="a generator has no numbered items; give a map-style data set of PyTorch"):
        Examples.of_items(item for item in ragged)


class Letters:
    """Items whose targets may differ from the attribute `targets`."""

    def __init__(self, targets: object, turn: Callable[[int], object]) -> None:
        self.targets, self.turn = targets, turn

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], object]:
        return np.full(2, index, np.float32), self.turn(index)


@pytest.mark.parametrize(
    "turn",
    [
        lambda index: 3 - index % 4,  # a target_transform
        lambda index: {2: 1}.get(index % 4, index % 4),  # of one target only
        lambda index: np.int64((index + 1) % 4),  # another order
        lambda index: torch.tensor(index % 2),
        lambda index: np.float32(index % 4 + 0.25),  # no whole number any more
        lambda index: np.eye(4, dtype=np.float32)[index % 4],  # one value per label
        lambda index: index % 4,  # the same
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_targets_are_those_of_the_items(turn: Callable[[int], object], as_tensor: bool) -> None:
    known = [index % 4 for index in range(300)]
    examples = Examples.of_items(Letters(torch.tensor(known) if as_tensor else known, turn))
    assert examples.targets is not None
    assert examples.targets.tolist() == [np.asarray(turn(index)).tolist() for index in range(300)]
    assert examples.part(np.array([7, 2])).take(np.array([1])).inputs.tolist() == [[2, 2]]


@pytest.mark.parametrize("targets", [None, [1, 2], list("ab") * 150, [[1], [1, 2]] * 150, lambda: 1])
def test_an_attribute_that_has_no_target_for_each_item_is_not_used(targets: object) -> None:
    assert Examples.of_items(Letters(targets, lambda index: index % 3)).labels.tolist() == [0, 1, 2] * 100


def test_a_target_that_changes_is_refused_when_its_item_is_read() -> None:
    examples = Examples.of_items(Letters([index % 4 for index in range(300)], lambda index: index % 4 + (index == 5)))
    assert examples.take(np.array([4])).labels.tolist() == [0]
    with pytest.raises(
        DataError, match="item 5 of Letters has target 2, but an earlier reading or the attribute targe"
    ):
        examples.take(np.array([4, 5]))
    drawn = Examples.of_items(Letters(None, lambda index: random.randrange(1000)))
    with pytest.raises(DataError, match="give each item the same target at each reading"):
        drawn.take(np.arange(3))


def test_a_target_that_is_not_finite_is_refused_as_in_arrays() -> None:
    with pytest.raises(DataError, match="targets contain NaN or Inf"):
        Examples.of_items([(np.ones(2, np.float32), float("nan"))])


@pytest.mark.parametrize("target", ["a", None, {"x": 1}])
def test_a_target_that_is_no_number_is_refused(target: object) -> None:
    with pytest.raises(DataError, match=r"item 0 of Letters has target .*; a target is a number, or an array of them"):
        Examples.of_items(Letters(None, lambda index: target))


def test_masked_items_are_refused_if_a_value_is_hidden() -> None:
    hidden, shown = np.ma.masked_equal(np.float32([1, 2]), 2), np.ma.masked_equal(np.float32([1, 2]), 3)
    with pytest.raises(
        DataError, match="input of item 0 of list: 1 values are masked; leave out their rows, or use ar"
    ):
        Examples.of_items([(hidden, 0)])
    with pytest.raises(DataError, match="target of item 0 of list: 1 values are masked"):
        Examples.of_items([(np.float32([1, 2]), hidden)])
    assert Examples.of_items([(shown, 0)]).inputs.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, requires_grad=True), "input of item 0 of list cannot be made a NumPy array: Can't call numpy"),
        (torch.ones(2).to_sparse(), "input of item 0 of list cannot be made a NumPy array: can't convert Sparse"),
        ([[1], [1, 2]], "input of item 0 of list cannot be made a NumPy array: setting an array element"),
    ],
)
def test_items_that_make_no_array_are_refused(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Examples.of_items([(value, 0)])
