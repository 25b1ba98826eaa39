"""The partition `feature_noise`, value by value, against a second implementation of the rule of NIID-Bench."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, ExperimentError
from tests.support.owned_data import Items
from tests.support.splits import all_devices, experiment, numbered

SEEDS = range(10)


def images(train: int, tests: int) -> Dataset:
    """Images of bytes: 2 x 3 pixels that name the example."""

    def part(size: int, first: int) -> Examples:
        pixels = (np.arange(size * 6).reshape(size, 2, 3) + first) % 256
        return Examples(inputs=pixels.astype(np.uint8), labels=np.arange(size) % 4)

    return Dataset(train=part(train, 0), test=part(tests, 7), num_classes=4)


def of_niid_bench(
    part: Examples, seed: int, devices: int, level: float, law: str, *, trained: bool
) -> list[NDArray[np.float32]]:
    """Random equal parts; the paper's noise has variance σ·i/N with i from 1, its program's deviation σ·i/(N−1), i from
    0. Returns the inputs of each device in the order of the data.
    """
    order = list(np.random.default_rng([seed, 101 if trained else 102]).permutation(len(part)))
    purpose, found = 0x666E7A01 if trained else 0x666E7A02, []
    for device in range(devices):
        deviation = math.sqrt(level * (device + 1) / devices) if law == "paper" else level * device / (devices - 1)
        size = len(part) // devices + (device < len(part) % devices)
        own, order = sorted(order[:size]), order[size:]
        noise = [np.random.default_rng([seed, purpose, device, i]).normal(0, deviation, (2, 3)) for i in own]
        clean = np.array([part.stored[i] for i in own], np.float32).reshape(-1, 2, 3) / np.float32(255)
        found.append(clean + np.array(noise, np.float32).reshape(clean.shape))
    return found


@pytest.mark.parametrize("law", ["paper", "program"])
@pytest.mark.parametrize(("devices", "level", "sizes"), [(5, 0.1, (50, 20)), (7, 3.0, (50, 3)), (50, 1e-6, (50, 60))])
def test_inputs_of_training_and_of_tests_are_those_of_niid_bench(
    law: str, devices: int, level: float, sizes: tuple[int, int]
) -> None:
    dataset = images(*sizes)
    for seed in SEEDS:
        plan = experiment({"kind": "feature_noise", "devices": devices, "level": level, "law": law}, seed)
        owned = all_devices(plan, dataset)
        for trained, found in ((True, [each.train for each in owned]), (False, [each.test for each in owned])):
            part = dataset.train if trained else dataset.test
            wanted = of_niid_bench(part, seed, devices, level, law, trained=trained)
            for examples, inputs in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(examples.inputs, inputs)


def deviations(**keys: Any) -> list[float]:
    """The standard deviation of each device's noise, over at least 40,000 values that are 0 without noise."""
    zeros = Examples(inputs=np.zeros((400, 1000), np.float32), labels=np.zeros(400, np.int64))
    plan = experiment({"kind": "feature_noise", **keys}, 5)
    return [
        float(each.train.inputs.std()) for each in all_devices(plan, Dataset(train=zeros, test=zeros, num_classes=1))
    ]


def test_of_ten_devices_at_level_0_1_the_last_has_a_deviation_of_the_root_of_0_1_or_of_0_1() -> None:
    assert deviations(devices=10) == pytest.approx([math.sqrt(0.01 * i) for i in range(1, 11)], rel=0.02)
    assert deviations(devices=10, law="program") == pytest.approx([0.1 * i / 9 for i in range(10)], rel=0.02)
    assert deviations(devices=1, level=0.25) == pytest.approx([0.5], rel=0.02)


def test_an_example_keeps_its_noise_when_others_are_set_aside() -> None:
    """Examples for validation are training examples: with noise of the same address."""
    keys = {"kind": "feature_noise", "devices": 2}
    whole = all_devices(experiment(keys), images(40, 8))
    parted = all_devices(experiment({**keys, "validation_share": 0.25, "tests": "validation"}), images(40, 8))
    for before, after in zip(whole, parted, strict=True):
        rows = {row.tobytes() for row in before.train.inputs}
        assert {row.tobytes() for part in (after.train, after.test) for row in part.inputs} == rows
        assert (len(after.train), len(after.test)) == (15, 5)


def test_tests_alike_have_the_noise_of_their_device() -> None:
    plan = experiment({"kind": "feature_noise", "devices": 2, "tests": "alike", "law": "program", "level": 0.5})
    quiet, noisy = all_devices(plan, images(40, 80))
    clean = {row.tobytes() for row in images(40, 80).test.inputs}
    assert {row.tobytes() for row in quiet.test.inputs} <= clean
    assert not {row.tobytes() for row in noisy.test.inputs} & clean


@pytest.mark.parametrize(
    ("keys", "dataset", "error", "words"),
    [
        ({"devices": 41}, images(40, 8), DataError, "41 devices need an example each, .* has 40; lower"),
        ({"devices": 2, "tests": "global"}, images(40, 8), ExperimentError, "or noise changes the data"),
        ({"devices": 1, "law": "program"}, images(40, 8), ExperimentError, "divides by devices - 1"),
        ({"devices": 2, "level": 0}, images(40, 8), ExperimentError, "level"),
    ],
)
def test_what_has_no_noise_is_refused(
    keys: dict[str, Any], dataset: Dataset, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        all_devices(experiment({"kind": "feature_noise", **keys}, method="fedavg"), dataset)


def test_whole_numbers_get_no_noise() -> None:
    tokens = Examples(inputs=np.zeros((9, 2), np.int64), labels=np.zeros(9, np.int64))
    dataset = Dataset(train=tokens, test=tokens, num_classes=1)
    with pytest.raises(DataError, match="whole numbers; choose another partition"):
        all_devices(experiment({"kind": "feature_noise", "devices": 2}), dataset)


def test_tests_that_are_read_item_by_item_get_no_noise() -> None:
    train = Examples(inputs=np.zeros((20, 784), np.float32), labels=np.arange(20) % 10)
    dataset = Dataset(train=train, test=Examples.of_items(Items(10)), num_classes=10)
    with pytest.raises(DataError, match="these are of a map-style data set; add noise there"):
        all_devices(experiment({"kind": "feature_noise", "devices": 2}), dataset)


def test_inputs_of_the_data_set_do_not_change() -> None:
    dataset = numbered([20, 20], [4, 4])
    all_devices(experiment({"kind": "feature_noise", "devices": 2}), dataset)
    assert dataset.train.inputs[:, 0].tolist() == list(range(40))
