"""Partition `groups`: what each group's devices have, how it is shifted, and when that cannot be."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import check_partition, device_data
from tests.support.splits import (
    all_devices,
    experiment,
    fashion_mnist,
    identities,
    label_counts,
    needs_fashion_mnist,
    numbered,
)

TURN = np.array([[0, 1], [2, 3]], np.uint8)  # counter-clockwise: 1 3 over 0 2


def groups(*rows: dict[str, Any]) -> dict[str, Any]:
    """A partition of groups; each has two devices with ten examples unless it says otherwise."""
    listed = [
        {"name": f"group{index}", "devices": 2, "examples_per_device": 10, **row} for index, row in enumerate(rows)
    ]
    return {"kind": "groups", "groups": listed}


def images(number: int = 40) -> Dataset:
    """Bytes of 2 × 2, all alike, of two labels in turn."""
    examples = Examples(inputs=np.tile(TURN, (number, 1, 1, 1)), labels=np.arange(number) % 2)
    return Dataset(train=examples, test=examples, num_classes=2)


# --- labels ------------------------------------------------------------------------------------------------


def test_a_group_has_as_many_examples_of_each_of_its_labels_and_is_tested_on_these() -> None:
    plan = experiment(groups({"labels": [2, 0]}, {"labels": [1]}))
    devices = all_devices(plan, numbered([20, 20, 20], [4, 4, 4]))
    assert [label_counts(device.train, 3).tolist() for device in devices] == [[5, 0, 5]] * 2 + [[0, 10, 0]] * 2
    assert {int(label) for device in devices[:2] for label in device.test.labels} == {0, 2}
    assert {int(label) for device in devices[2:] for label in device.test.labels} == {1}


def test_groups_may_have_labels_in_common_and_still_own_different_examples() -> None:
    devices = all_devices(experiment(groups({"labels": [0, 1]}, {"labels": [1, 2]})), numbered([10, 20, 10], [4] * 3))
    owned = identities([device.train for device in devices])
    assert len(owned) == len(set(owned)) == 40


def test_each_device_draws_so_many_of_its_groups_labels() -> None:
    plan = experiment(groups({"devices": 8, "labels": [0, 2, 3, 5], "labels_per_device": 2, "examples_per_device": 6}))
    devices = all_devices(plan, numbered([100] * 6, [9] * 6))
    drawn = [tuple(np.flatnonzero(label_counts(device.train, 6))) for device in devices]
    assert {len(labels) for labels in drawn} == {2}
    assert {int(label) for labels in drawn for label in labels} == {0, 2, 3, 5}
    assert len(set(drawn)) > 1
    assert all(set(device.test.labels.tolist()) == set(device.train.labels.tolist()) for device in devices)


@given(seed=st.integers(0, 2**63 - 1))
def test_disjoint_labels_go_to_one_device_of_the_group_each(seed: int) -> None:
    plan = experiment(groups({"devices": 3, "labels_per_device": 2, "disjoint_labels": True}), seed)
    devices = all_devices(plan, numbered([10] * 6, [2] * 6))
    assert sorted(label for device in devices for label in set(device.train.labels.tolist())) == list(range(6))


def test_a_range_gives_every_device_its_own_number_of_examples() -> None:
    plan = experiment(groups({"devices": 40, "examples_per_device": [3, 5]}))
    numbers = [len(device.train) for device in all_devices(plan, numbered([100, 100], [9, 9]))]
    assert set(numbers) == {3, 4, 5}
    assert numbers == [
        int(np.random.default_rng([3, 0x67726F00, index]).integers(3, 5, endpoint=True)) for index in range(40)
    ]


def test_one_group_with_a_concentration_is_the_dirichlet_partition() -> None:
    dataset = numbered([500] * 4, [50] * 4)
    plain = {"kind": "dirichlet", "devices": 5, "examples_per_device": 100, "concentration": 0.3}
    grouped = groups({"devices": 5, "examples_per_device": 100, "concentration": 0.3})
    one, other = (all_devices(experiment(partition), dataset) for partition in (plain, grouped))
    for mine, theirs in zip(one, other, strict=True):
        assert identities([mine.train, mine.test]) == identities([theirs.train, theirs.test])


def test_dirichlet_shares_are_of_the_groups_labels_only() -> None:
    plan = experiment(groups({"labels": [1, 3], "concentration": 1.0}, {"labels": [0]}))
    for device in all_devices(plan, numbered([90] * 4, [9] * 4))[:2]:
        assert label_counts(device.train, 4)[[0, 2]].tolist() == [0, 0]


def test_devices_of_a_group_can_have_one_dirichlet_law() -> None:
    plan = experiment(groups({"examples_per_device": 3000, "concentration": 0.5, "same_shares": True}, {}))
    first, second = all_devices(plan, numbered([9000] * 4, [9] * 4))[:2]
    shares = np.random.default_rng([3, 0x67726F03, 0]).dirichlet([0.5] * 4)
    for device in (first, second):
        assert np.abs(label_counts(device.train, 4) / 3000 - shares).max() < 0.04  # 4 standard deviations
    assert not set(identities([first.train])) & set(identities([second.train]))


# --- shifts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rotation", "expected"),
    [(0, [[0, 1], [2, 3]]), (90, [[1, 3], [0, 2]]), (180, [[3, 2], [1, 0]]), (270, [[2, 0], [3, 1]])],
)
def test_a_rotation_turns_training_and_test_images_counter_clockwise(rotation: int, expected: list[list[int]]) -> None:
    device = device_data(experiment(groups({"rotation": rotation})), images(), 1)
    assert device.train.scale == 255
    assert device.test.scale == 255
    assert device.train.stored.tolist() == [[expected]] * 10
    assert device.test.stored.tolist() == [[expected]] * len(device.test)
    assert device.train.stored.flags.c_contiguous


def test_channels_stay_where_they_are_and_floating_point_turns_alike() -> None:
    grey = np.stack([TURN, TURN + 10])[None].astype(np.float32)
    examples = Examples(inputs=np.tile(grey, (20, 1, 1, 1)), labels=np.arange(20) % 2)
    dataset = Dataset(train=examples, test=examples, num_classes=2)
    device = device_data(experiment(groups({"rotation": 90})), dataset, 0)
    assert device.train.inputs[0].tolist() == [[[1, 3], [0, 2]], [[11, 13], [10, 12]]]


def test_a_permutation_renames_training_and_test_labels_of_its_group_only() -> None:
    dataset = numbered([20, 20, 20], [6, 6, 6])
    plain, renamed = (
        all_devices(experiment(groups({}, {"label_permutation": new})), dataset) for new in (None, [2, 0, 1])
    )
    for index, (before, after) in enumerate(zip(plain, renamed, strict=True)):
        new = np.array([2, 0, 1] if index >= 2 else [0, 1, 2])
        assert identities([before.train, before.test]) == identities([after.train, after.test])
        assert after.train.labels.tolist() == new[before.train.labels].tolist()
        assert after.test.labels.tolist() == new[before.test.labels].tolist()


def test_a_numbered_permutation_is_drawn_from_the_seed_and_shared_by_groups_with_that_number() -> None:
    dataset = numbered([60] * 10, [9] * 10)
    plan = groups(*({"labels": [0], "label_permutation": number} for number in (1, 2, 1)))
    renamed = [int(device.train.labels[0]) for device in all_devices(experiment(plan), dataset)]
    drawn = {n: int(np.random.default_rng([3, 0x67726F04, n]).permutation(10)[0]) for n in (1, 2)}
    assert renamed == [drawn[1], drawn[1], drawn[2], drawn[2], drawn[1], drawn[1]]


def test_labels_are_those_before_the_permutation() -> None:
    device = device_data(
        experiment(groups({"labels": [0], "label_permutation": [1, 2, 0]})), numbered([20, 9, 9], [3] * 3), 0
    )
    assert set(device.train.labels.tolist()) == {1}


def test_two_shifts_go_together() -> None:
    plan = groups({}, {"rotation": 180, "label_permutation": [1, 0], "labels": [0], "examples_per_device": [2, 4]})
    device = device_data(experiment(plan), images(100), 3)
    assert device.train.scale == 255
    assert device.train.stored[0, 0].tolist() == [[3, 2], [1, 0]]
    assert set(device.train.labels.tolist()) == {1}
    assert 2 <= len(device.train) <= 4


# --- the truth ---------------------------------------------------------------------------------------------


def test_groups_are_the_truth_that_clusters_are_compared_with() -> None:
    assert experiment(groups({}, {"devices": 1})).task_of_devices() == ["group0", "group0", "group1"]


def test_one_group_is_no_truth() -> None:
    assert experiment(groups({})).task_of_devices() is None


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"labels": [0, 3]}, r"partition\.groups\.0\.labels: the data set has no label 3; its labels go from 0 to 2"),
        ({"labels_per_device": 4}, r"groups\.0\.labels_per_device is 4, but there are 3 labels; lower it"),
        (
            {"labels_per_device": 2, "disjoint_labels": True},
            r"groups\.0\.disjoint_labels: 2 devices with 2 labels each need 4 labels, but there are 3; lower",
        ),
        (
            {"label_permutation": [1, 0]},
            r"label_permutation lists 2 labels, but the data set has 3; list each of 0 to 2 once",
        ),
        ({"rotation": 90}, r"groups\.0\.rotation: only images of shape .*examples have shape \(1,\); remove"),
    ],
)
def test_what_the_data_set_does_not_have_is_told_with_its_key(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message) as raised:
        check_partition(experiment(groups(row)), numbered([30, 30, 30], [3, 3, 3]))
    assert "\n" not in str(raised.value)


def test_an_oblong_image_can_be_turned_upside_down_only() -> None:
    examples = Examples(inputs=np.zeros((40, 2, 3), np.uint8), labels=np.arange(40) % 2)
    dataset = Dataset(train=examples, test=examples, num_classes=2)
    check_partition(experiment(groups({"rotation": 180})), dataset)
    with pytest.raises(ExperimentError, match="images of 2 x 3 rotated by 90 degrees have another shape; choose 180"):
        check_partition(experiment(groups({"rotation": 90})), dataset)


def test_too_little_data_is_told_with_the_device_that_goes_short() -> None:
    plan = experiment(groups({"labels": [1]}, {"labels": [1, 0], "examples_per_device": 8}))
    with pytest.raises(
        DataError, match=r"device 3 of group group1 needs 8 examples of labels \[0, 1\], but .* has 2 left"
    ):
        check_partition(plan, numbered([5, 25, 90], [3, 3, 3]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("name: A", "partition.groups.0.name: takes small letters, digits, - and _"),
        ("rotation: 45", "partition.groups.0.rotation: must be 0, 90, 180 or 270, not 45"),
        ("labels: []", "partition.groups.0.labels: List should have at least 1 item"),
        ("labels: [1, 1]", "partition.groups.0.labels: labels must be different numbers of 0 or more, not [1, 1]"),
        (
            "label_permutation: [0, 2]",
            "partition.groups.0.label_permutation: a permutation must have each label from 0 on",
        ),
        ("label_permutation: -1", "partition.groups.0.label_permutation: must be at least 0"),
        ("examples_per_device: [5, 4]", "partition.groups.0.examples_per_device: a range must have the smaller number"),
        ("examples_per_device: [5]", "partition.groups.0.examples_per_device: give a number or a range"),
        ("examples_per_device: 0", "partition.groups.0.examples_per_device: must be at least"),
        ("disjoint_labels: true", "partition.groups.0: disjoint_labels needs labels_per_device, which is missing"),
        ("same_shares: true", "partition.groups.0: same_shares needs concentration, which is missing"),
        ("same_shares: true, concentration: 1, labels_per_device: 1", "same_shares needs devices with the same"),
        ("turn: 90", "partition.groups.0.turn: unknown key"),
    ],
)
def test_nonsense_is_refused_with_its_key(row: str, message: str) -> None:
    given_row = {"name": "a", "devices": "1", "examples_per_device": "1"}
    kept = ", ".join(f"{key}: {value}" for key, value in given_row.items() if key not in row)
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(f"{{name: x, partition: {{kind: groups, groups: [{{{row}, {kept}}}]}}}}")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_groups_have_names_of_their_own() -> None:
    with pytest.raises(ExperimentError, match="each group needs a different name"):
        experiment(groups({"name": "same"}, {"name": "same"}))


# --- the papers' settings ----------------------------------------------------------------------------------

PAIRS = ([2, 4], [0, 6], [5, 7], [1, 3])
PAPERS = {
    "concept": ([{"label_permutation": number} for number in range(4)], 5, 500),
    "covariate": ([{"rotation": turn} for turn in (0, 90, 180, 270)], 5, 500),
    "both": ([{"rotation": turn, "labels": pair} for pair in PAIRS for turn in (0, 90)], 2, 80),
}


@needs_fashion_mnist
@pytest.mark.parametrize("name", PAPERS)
def test_fashion_mnist_serves_the_shifts_of_the_papers(name: str) -> None:
    rows, devices, number = PAPERS[name]
    plan = experiment(groups(*({**row, "devices": devices, "examples_per_device": number} for row in rows)))
    owned = [device_data(plan, fashion_mnist(), index) for index in range(plan.device_count)]
    assert [len(device.train) for device in owned] == [number] * plan.device_count
    assert len(set(plan.task_of_devices() or [])) == len(rows)
    assert all(len(device.test) == 10_000 // plan.device_count for device in owned)
