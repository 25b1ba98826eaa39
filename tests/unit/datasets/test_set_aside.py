"""What is set aside of a split: tests out of a device's own examples, and examples that nobody owns."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.partitions import check_partition, public_data
from tests.support.splits import all_devices, experiment, identities, label_counts, numbered

KINDS: dict[str, dict[str, Any]] = {
    "tasks": {
        "tasks": [
            {"name": "a", "labels": [0, 1], "devices": 2, "examples_per_device": 10},
            {"name": "b", "labels": [2], "devices": 1, "examples_per_device": 10},
        ]
    },
    "groups": {"groups": [{"name": "a", "devices": 3, "examples_per_device": 10}]},
    "dirichlet": {"devices": 3, "examples_per_device": 10},
    "iid": {"devices": 3, "examples_per_device": 10},
}


def plan(kind: str, **keys: object) -> Experiment:
    return experiment({"kind": kind, **KINDS[kind], **keys})


def data() -> Dataset:
    return numbered([20, 21, 22], [4, 5, 6])


# --- tests out of a device's own data ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_fifth_of_a_devices_own_examples_is_held_out(kind: str) -> None:
    whole, parted = (all_devices(plan(kind, test_share=share), data()) for share in (None, 0.2))
    for before, after in zip(whole, parted, strict=True):
        assert (len(after.train), len(after.test)) == (8, 2)
        assert sorted(identities([after.train, after.test])) == identities([before.train])


def test_each_device_holds_out_by_a_draw_of_its_own() -> None:
    devices = all_devices(plan("iid", test_share=0.5), data())
    places = []
    for device in devices:
        everything = sorted(identities([device.train, device.test]))
        places.append([everything.index(identity) for identity in identities([device.test])])
    assert len({tuple(place) for place in places}) == 3


def test_held_out_examples_are_shifted_as_those_to_train_on() -> None:
    examples = Examples(inputs=np.tile(np.array([[0, 1], [2, 3]], np.uint8), (30, 1, 1)), labels=np.arange(30) % 2)
    dataset = Dataset(train=examples, test=examples, num_classes=2)
    group = {"name": "a", "devices": 1, "examples_per_device": 10, "labels": [0], "rotation": 90}
    turned = experiment({"kind": "groups", "groups": [{**group, "label_permutation": [1, 0]}], "test_share": 0.3})
    (device,) = all_devices(turned, dataset)
    assert device.test.scale == 255
    assert device.test.stored.tolist() == [[[1, 3], [0, 2]]] * 3
    assert device.test.labels.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("share", "train", "test"), [(0.04, 10, 0), (0.96, 0, 10)])
def test_a_share_that_leaves_nothing_is_refused(share: float, train: int, test: int) -> None:
    with pytest.raises(DataError) as raised:
        check_partition(plan("iid", test_share=share), data())
    assert str(raised.value) == (
        f"partition.test_share {share} of the 10 examples of device 0 leaves {train} to train on and {test} to test "
        "on; change test_share, or give it more"
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            [5, 1],
            r"0.2 of the only example of device hospital-b leaves 1 to train on and 0 .*; give the device at least 2",
        ),
        (
            [2, 5],
            r"0.2 of the 2 examples of device a leaves 2 to train on and 0 to test on; change test_share, or give it",
        ),
    ],
)
def test_a_device_with_too_few_rows_is_named(sizes: list[int], message: str) -> None:
    owners = np.repeat([0, 1], sizes)
    rows = Examples(inputs=np.ones((len(owners), 1), np.float32), labels=owners % 2, columns={"site": owners})
    dataset = Dataset(train=rows, test=rows, num_classes=2, names={"site": ["a", "Hospital B"]})
    named = experiment({"kind": "natural", "by": "site", "names": ["a", "Hospital B"], "test_share": 0.2})
    with pytest.raises(DataError, match=message):
        check_partition(named, dataset)


# --- public examples ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(number=st.integers(1, 33), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=20, deadline=None)
def test_public_examples_belong_to_nobody_and_change_nothing_of_what_devices_own(
    kind: str, number: int, seed: int
) -> None:
    plain = experiment({"kind": kind, **KINDS[kind]}, seed)
    public = experiment({"kind": kind, **KINDS[kind], "public": {"examples": number}}, seed)
    dataset = data()
    owned = [identities([d.train, d.test]) for d in all_devices(public, dataset)]
    assert owned == [identities([d.train, d.test]) for d in all_devices(plain, dataset)]
    shared = public_data(public, dataset).inputs[:, 0].tolist()
    assert len(set(shared)) == number
    assert not set(shared) & set(identities([d.train for d in all_devices(plain, dataset)]))


def test_public_examples_are_even_over_the_labels_asked_for_and_labelled_where_asked_for() -> None:
    keys = {"examples": 8, "labels": [0, 2]}
    hidden, told = (
        public_data(plan("iid", public={**keys, "labelled": labelled}), data()) for labelled in (False, True)
    )
    assert hidden.labels is None
    assert told.labels is not None
    assert np.bincount(told.labels).tolist() == [4, 0, 4]
    assert np.array_equal(hidden.inputs, told.inputs)
    assert np.array_equal(told.labels, data().train.labels[told.inputs[:, 0].astype(int)])


def test_all_test_data_are_nobodys_where_devices_hold_out_their_own() -> None:
    public = {"examples": 15, "source": "test", "labelled": True}
    shared = public_data(plan("iid", public=public, test_share=0.5), data())
    assert shared.inputs[:, 0].tolist() == list(range(15))
    assert shared.labels is not None
    assert np.array_equal(shared.labels, data().test.labels)


def test_public_test_data_are_what_no_device_is_tested_on() -> None:
    keys = {"tasks": [{"name": "a", "labels": [0], "devices": 2, "examples_per_device": 5}]}
    split = experiment({"kind": "tasks", **keys, "public": {"examples": 11, "source": "test"}})
    assert set(public_data(split, data()).inputs[:, 0]) == set(np.flatnonzero(data().test.labels > 0))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"examples": 34},
            "partition.public needs 34 examples, but devices leave 33 of the train data; lower "
            "partition.public.examples or examples_per_device",
        ),
        (
            {"examples": 1, "source": "test"},
            "partition.public needs 1 examples, but devices leave 0 of the test data; lower "
            "partition.public.examples or let devices test on their own data with partition.test_share",
        ),
    ],
)
def test_more_than_devices_leave_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as raised:
        check_partition(plan("iid", public=keys), data())
    assert str(raised.value) == message


@pytest.mark.parametrize("source", ["train", "test"])
def test_devices_are_tested_on_the_public_examples_of_their_labels(source: str) -> None:
    public = {"examples": 9, "source": source, "tests": True, "labelled": True}
    found = plan("tasks", public=public, minority_ratio=0)
    before = all_devices(plan("tasks", minority_ratio=0), data())
    shared = public_data(found, data())
    assert shared.labels is not None
    for device, own, was in zip(all_devices(found, data()), ([0, 1], [0, 1], [2]), before, strict=True):
        assert identities([device.train]) == identities([was.train])
        rows = np.isin(shared.labels, own)
        assert device.test.labels.tolist() == shared.labels[rows].tolist()
        assert device.test.inputs.tobytes() == shared.inputs[rows].tobytes()
    assert len(shared.labels) == 9  # of fifteen test examples: none is a device's


def test_public_tests_go_with_data_as_they_are_and_no_other_tests() -> None:
    public = {"examples": 6, "tests": True}
    with pytest.raises(ExperimentError, match=r"test_share and public\.tests both choose the examples for tests"):
        plan("iid", public=public, test_share=0.5)
    turned = {"groups": [{"name": "a", "devices": 1, "examples_per_device": 10, "label_permutation": [1, 0, 2]}]}
    with pytest.raises(ExperimentError, match=r"public\.tests needs unchanged data"):
        check_partition(experiment({"kind": "groups", **turned, "public": public}), data())


def test_a_public_label_that_is_not_there_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"public\.labels: the data set has no label 3; its labels go from 0"):
        check_partition(plan("iid", public={"examples": 1, "labels": [0, 3]}), data())


def test_who_asks_for_public_examples_where_there_are_none_is_told_the_key() -> None:
    with pytest.raises(ExperimentError, match=r"set their number in partition\.public\.examples"):
        public_data(plan("iid"), data())


def test_label_counts_of_public_examples_differ_by_one_at_most() -> None:
    shared = public_data(plan("iid", public={"examples": 10, "labelled": True}), data())
    assert shared.labels is not None
    assert sorted(np.bincount(shared.labels).tolist()) == [3, 3, 4]
    assert label_counts(data().train, 3).min() > 3
