"""Partitions: who owns what, that nobody owns it twice, and when there is too little."""

import gc
import hashlib
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedstrata.errors import DataError, ExperimentError
from fedstrata.partitions import check_partition, device_data, label_drift
from tests.support.splits import (
    all_devices,
    experiment,
    fashion_mnist,
    identities,
    label_counts,
    needs_fashion_mnist,
    numbered,
)


def tasks(*rows: tuple[list[int], int, int], minority_ratio: float = 0.0) -> dict[str, Any]:
    """A partition from rows of labels, devices and examples per device."""
    listed = [
        {"name": f"task{i}", "labels": labels, "devices": devices, "examples_per_device": number}
        for i, (labels, devices, number) in enumerate(rows)
    ]
    return {"kind": "tasks", "tasks": listed, "minority_ratio": minority_ratio}


# --- tasks -------------------------------------------------------------------------------------------------

TWO_TASKS = tasks(([0, 1], 3, 20), ([2], 2, 10), minority_ratio=0.1)


def test_a_device_has_nine_tenths_of_its_own_task_and_a_tenth_of_the_others() -> None:
    devices = all_devices(experiment(TWO_TASKS), numbered([40, 40, 40], [9, 9, 9]))
    assert [label_counts(device.train, 3).tolist() for device in devices[:3]] == [[9, 9, 2]] * 3
    assert [label_counts(device.train, 3)[2] for device in devices[3:]] == [9, 9]
    assert [len(device.train) for device in devices] == [20, 20, 20, 10, 10]


def test_a_single_task_has_no_minority() -> None:
    plan = experiment(tasks(([1], 2, 10), minority_ratio=0.4))
    devices = all_devices(plan, numbered([50, 50], [5, 5]))
    assert [label_counts(device.train, 2).tolist() for device in devices] == [[0, 10], [0, 10]]


def test_labels_that_no_task_is_about_are_not_used() -> None:
    plan = experiment(tasks(([0], 1, 10), ([1], 1, 10), minority_ratio=0.2))
    devices = all_devices(plan, numbered([20, 20, 20], [5, 5, 5]))
    assert [label_counts(device.train, 3).tolist() for device in devices] == [[8, 2, 0], [2, 8, 0]]


def test_a_scarce_label_is_made_up_for_by_the_others_of_its_task() -> None:
    plan = experiment(tasks(([0, 1, 2], 2, 15)))
    devices = all_devices(plan, numbered([4, 40, 40], [5, 5, 5]))
    assert [label_counts(device.train, 3)[0] for device in devices] == [2, 2]
    total = label_counts(devices[0].train, 3) + label_counts(devices[1].train, 3)
    assert total.tolist() == [4, 13, 13]


def test_the_test_examples_of_a_task_are_shared_out_evenly_among_its_devices() -> None:
    dataset = numbered([40, 40, 40], [5, 6, 4])
    devices = all_devices(experiment(TWO_TASKS), dataset)
    assert sorted(len(device.test) for device in devices[:3]) == [3, 4, 4]
    assert [len(device.test) for device in devices[3:]] == [2, 2]
    assert {int(label) for device in devices[:3] for label in device.test.labels} == {0, 1}
    assert sorted(identities([device.test for device in devices])) == list(range(15))


def test_the_device_index_follows_the_order_of_the_tasks() -> None:
    plan = experiment(tasks(([0], 1, 4), ([1], 2, 4)))
    owned = [set(d.train.labels.tolist()) for d in all_devices(plan, numbered([9, 9], [3, 3]))]
    assert owned == [{0}, {1}, {1}]


def test_another_seed_gives_other_examples() -> None:
    dataset = numbered([40, 40, 40], [9, 9, 9])
    first, second = (device_data(experiment(TWO_TASKS, seed), dataset, 0).train for seed in (0, 1))
    assert identities([first]) != identities([second])


def test_what_a_device_owns_depends_on_no_other_call() -> None:
    plan = experiment(TWO_TASKS)
    in_turn = all_devices(plan, numbered([40, 40, 40], [9, 9, 9]))
    alone = device_data(plan, numbered([40, 40, 40], [9, 9, 9]), 4)
    assert np.array_equal(alone.train.inputs, in_turn[4].train.inputs)
    assert np.array_equal(alone.test.inputs, in_turn[4].test.inputs)


sizes = st.lists(st.integers(min_value=0, max_value=12), min_size=4, max_size=4)


@given(
    train=sizes,
    devices=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    numbers=st.lists(st.integers(1, 8), min_size=3, max_size=3),
    minority_ratio=st.sampled_from([0.0, 0.1, 0.25, 0.49]),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_task_partition_is_served_exactly_when_the_data_suffice(
    train: list[int], devices: list[int], numbers: list[int], minority_ratio: float, seed: int
) -> None:
    """Own parts come first; then every task can be served iff each has enough in the others, and all in all."""
    assume(sum(train) > 0)
    labels = [[0], [1], [2, 3]]
    dataset = numbered(train, [3, 3, 3, 3])
    plan = experiment(tasks(*zip(labels, devices, numbers, strict=True), minority_ratio=minority_ratio), seed)
    minority = [round(number * minority_ratio) for number in numbers]
    left = [sum(train[label] for label in labels[i]) - devices[i] * (numbers[i] - minority[i]) for i in range(3)]
    demands = [devices[i] * minority[i] for i in range(3)]
    enough = all(rest >= 0 for rest in left) and sum(demands) <= sum(left)
    if not (enough and all(demands[i] <= sum(left) - left[i] for i in range(3))):
        with pytest.raises(DataError):
            check_partition(plan, dataset)
        return
    owned = all_devices(plan, dataset)
    everything = identities([device.train for device in owned])
    assert len(everything) == len(set(everything))
    task_of_device = [i for i in range(3) for _ in range(devices[i])]
    for device, i in zip(owned, task_of_device, strict=True):
        assert len(device.train) == numbers[i]
        assert np.isin(device.train.labels, labels[i]).sum() == numbers[i] - minority[i]


@given(number=st.integers(1, 40), devices=st.integers(1, 5))
def test_own_labels_are_level_to_within_two_examples(number: int, devices: int) -> None:
    plan = experiment(tasks(([0, 1, 2], devices, number)))
    for device in all_devices(plan, numbered([70, 70, 70], [5, 5, 5])):
        counts = label_counts(device.train, 3)
        assert counts.max() - counts.min() <= 2


# --- Dirichlet ---------------------------------------------------------------------------------------------


def dirichlet(devices: int, number: int, concentration: float = 0.5) -> dict[str, Any]:
    return {"kind": "dirichlet", "devices": devices, "examples_per_device": number, "concentration": concentration}


@given(
    train=st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(any),
    devices=st.integers(1, 6),
    concentration=st.sampled_from([1e-300, 1e-3, 0.1, 0.5, 10.0, 1e6]),
    seed=st.integers(0, 2**63 - 1),
)
def test_dirichlet_devices_own_disjoint_examples_of_the_size_asked_for(
    train: list[int], devices: int, concentration: float, seed: int
) -> None:
    number = sum(train) // devices
    assume(number)
    plan = experiment(dirichlet(devices, number, concentration), seed)
    owned = all_devices(plan, numbered(train, [3] * len(train)))
    everything = identities([device.train for device in owned])
    assert [len(device.train) for device in owned] == [number] * devices
    assert len(everything) == len(set(everything))


def test_label_shares_are_those_of_the_devices_own_dirichlet_draw() -> None:
    plan = experiment(dirichlet(3, 3000, 0.5))
    dataset = numbered([9000] * 4, [10] * 4)
    for index, device in enumerate(all_devices(plan, dataset)):
        shares = np.random.default_rng([plan.seed, 103, index]).dirichlet([0.5] * 4)
        assert np.abs(label_counts(device.train, 4) / 3000 - shares).max() < 0.04  # 4 standard deviations


@pytest.mark.parametrize(("number", "last"), [(60, 0.06), (300, 0.05), (600, 0.60)])
def test_the_distance_of_label_shares_from_the_drawn_ones_shows_devices_that_get_leftovers(
    number: int, last: float
) -> None:
    """100 devices and 6,000 examples of each of ten labels. With 600 examples a device, all are taken."""
    plan, dataset = experiment(dirichlet(100, number, 0.1)), numbered([6000] * 10, [10] * 10)
    drift = label_drift(plan, dataset)
    for index in (0, 50, 95):
        shares = np.random.default_rng([plan.seed, 103, index]).dirichlet([0.1] * 10)
        own = label_counts(device_data(plan, dataset, index).train, 10) / number
        assert drift[index] == pytest.approx(np.abs(own - shares).sum() / 2)
    assert np.mean(drift[-10:]) == pytest.approx(last, abs=0.1)
    assert np.median(drift) < 0.1


def test_a_group_whose_labels_run_out_is_far_from_the_shares_that_it_should_have() -> None:
    """The second device wants half of its ten examples with label 0, and two of these are left."""
    groups = [{"name": "a", "devices": 2, "examples_per_device": 10, "labels": [0, 1]}]
    plan = experiment({"kind": "groups", "groups": groups})
    assert label_drift(plan, numbered([7, 20], [1, 1])) == pytest.approx((0.0, 0.3))
    assert label_drift(experiment(iid(2, 10)), numbered([10, 10], [1, 1])) == ()


def test_a_small_concentration_gives_devices_of_one_label() -> None:
    owned = all_devices(experiment(dirichlet(4, 10, 1e-6)), numbered([40] * 5, [5] * 5))
    assert [len(set(device.train.labels.tolist())) for device in owned] == [1, 1, 1, 1]


def test_a_dirichlet_device_is_tested_in_the_proportions_it_trains_on() -> None:
    owned = all_devices(experiment(dirichlet(5, 100)), numbered([500] * 4, [50] * 4))
    for device in owned:
        expected = label_counts(device.train, 4) * 40 / 100
        assert len(device.test) == 40
        assert np.abs(label_counts(device.test, 4) - expected).max() < 1
        assert len(set(identities([device.test]))) == 40


def test_dirichlet_devices_share_test_examples_only_of_labels_that_run_out() -> None:
    owned = all_devices(experiment(dirichlet(5, 100)), numbered([500] * 4, [50] * 4))
    used = np.sum([label_counts(device.test, 4) for device in owned], axis=0)
    different = [len({int(x) for d in owned for x in d.test.inputs[d.test.labels == label, 0]}) for label in range(4)]
    assert different == np.minimum(used, 50).tolist()
    assert max(used) > 50


def test_a_device_whose_labels_have_no_test_examples_has_none() -> None:
    owned = all_devices(experiment(dirichlet(1, 6)), numbered([6, 0], [0, 4]))
    assert len(owned[0].test) == 0


# --- IID and local -----------------------------------------------------------------------------------------


def iid(devices: int, number: int) -> dict[str, Any]:
    return {"kind": "iid", "devices": devices, "examples_per_device": number}


@given(devices=st.integers(1, 9), number=st.integers(1, 9), seed=st.integers(0, 2**63 - 1))
def test_iid_devices_own_disjoint_examples_and_share_the_test_examples_out(
    devices: int, number: int, seed: int
) -> None:
    owned = all_devices(experiment(iid(devices, number), seed), numbered([40, 41], [7, 8]))
    everything = identities([device.train for device in owned])
    assert [len(device.train) for device in owned] == [number] * devices
    assert len(everything) == len(set(everything))
    assert sorted(identities([device.test for device in owned])) == list(range(15))
    numbers = sorted((len(device.test) for device in owned), reverse=True)
    assert all(more - fewer <= 1 for more, fewer in pairwise(numbers))
    assert numbers[0] - numbers[-1] <= 1


def test_a_local_device_owns_all_its_folder_holds_whatever_its_index() -> None:
    plan = experiment({"kind": "local", "names": ["pi-1", "pi-2"]})
    owned = all_devices(plan, numbered([4, 5], [2, 1]))
    assert [identities([device.train]) for device in owned] == [list(range(9))] * 2
    assert [identities([device.test]) for device in owned] == [list(range(3))] * 2


# --- too little, and the cache -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            tasks(([0], 1, 5), ([1, 2], 3, 9)),
            r"task task1 needs 3 x 9 examples of labels \[1, 2\], but the training data has 20; "
            r"lower partition\.tasks\.1\.examples_per_device",
        ),
        (
            tasks(([0], 1, 20), ([1], 1, 2), minority_ratio=0.49),
            "task task0 needs 1 x 10 minority examples, but the other tasks leave 9",
        ),
        (
            tasks(([0], 1, 20), ([1], 1, 10), ([2], 1, 10), minority_ratio=0.49),
            "the tasks need 20 minority examples, but devices' examples of their own tasks leave 10",
        ),
        (dirichlet(4, 10), r"needs 4 x 10 examples, but the training data has 30; lower partition\.devices"),
        (iid(31, 1), r"needs 31 x 1 examples, but the training data has 30; lower partition\.devices"),
    ],
)
def test_too_little_data_is_told_with_the_key_to_lower(partition: dict[str, Any], message: str) -> None:
    dataset = numbered([10, 10, 10], [3, 3, 3])
    with pytest.raises(DataError, match=message) as raised:
        check_partition(experiment(partition), dataset)
    assert "\n" not in str(raised.value)


def test_a_label_that_the_data_set_does_not_have_is_told_with_its_key() -> None:
    plan = experiment(tasks(([0], 1, 5), ([1, 3], 1, 5)))
    with pytest.raises(ExperimentError, match=r"partition\.tasks\.1\.labels: the data set has no label 3"):
        check_partition(plan, numbered([10, 10, 10], [3, 3, 3]))


@pytest.mark.parametrize("index", [-1, 5])
def test_a_device_that_the_partition_does_not_have_is_refused(index: int) -> None:
    with pytest.raises(ExperimentError, match=f"device {index} is not one of 0 to 4"):
        device_data(experiment(TWO_TASKS), numbered([40, 40, 40], [9, 9, 9]), index)


def test_the_split_is_forgotten_with_the_data_set() -> None:
    dataset = numbered([40, 40, 40], [9, 9, 9])
    check_partition(experiment(TWO_TASKS), dataset)
    gone = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert gone() is None


@needs_fashion_mnist
def test_fashion_mnist_is_split_into_clothes_shoes_and_bags() -> None:
    partition = tasks(([0, 1, 2, 3, 4, 6], 5, 1000), ([5, 7, 9], 3, 800), ([8], 2, 600), minority_ratio=0.1)
    shoes = device_data(experiment(partition), fashion_mnist(), 6)
    assert np.isin(shoes.train.labels, [5, 7, 9]).sum() == 720
    assert label_counts(shoes.train, 10)[[5, 7, 9]].tolist() == [240, 240, 240]
    assert (len(shoes.train), len(shoes.test)) == (800, 1000)
    assert shoes.train.inputs.dtype == np.float32


# --- what must not change ----------------------------------------------------------------------------------


def fingerprint(partition: dict[str, Any]) -> str:
    """A hash of every device's examples in their order, training and test."""
    devices = all_devices(experiment(partition), numbered([40, 50, 60], [9, 10, 11]))
    owned = [identities([part]) for device in devices for part in (device.train, device.test)]
    return hashlib.sha256(repr(owned).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("partition", "expected"),
    [(TWO_TASKS, "d8e546c914e128e8"), (dirichlet(5, 20, 0.3), "c768f4e0ad04486d"), (iid(7, 11), "e9411fcdf0f1354c")],
    ids=["tasks", "dirichlet", "iid"],
)
def test_a_seed_gives_the_examples_that_it_gave_in_every_earlier_version(
    partition: dict[str, Any], expected: str
) -> None:
    assert fingerprint(partition) == expected
