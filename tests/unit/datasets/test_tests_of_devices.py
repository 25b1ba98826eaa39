"""Test sets: on which examples devices measure models, and that the choice changes nothing that they train on."""

from typing import Any

import numpy as np
import pytest

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import check_partition, public_data
from tests.support.splits import all_devices, experiment, identities, label_counts, numbered

KINDS: dict[str, dict[str, Any]] = {
    "label_dirichlet": {"devices": 3, "concentration": 0.3, "minimum": 2},
    "dirichlet": {"devices": 3, "concentration": 0.3, "examples_per_device": 10},
    "iid": {"devices": 3, "examples_per_device": 10},
    "shards": {"devices": 3},
    "given": {"examples": [["0-9"], ["10-14"], ["15-39"]]},
}


def plan(kind: str = "iid", **keys: object) -> Experiment:
    return experiment({"kind": kind, **KINDS[kind], **keys}, method="fedavg")


def data() -> Dataset:
    return numbered([20, 20, 20], [4, 5, 7])


@pytest.mark.parametrize("kind", KINDS)
def test_with_global_each_test_of_the_data_set_has_one_device_and_parts_are_equal(kind: str) -> None:
    devices = all_devices(plan(kind, tests="global"), data())
    assert sorted(identities([device.test for device in devices])) == list(range(16))
    assert sorted(len(device.test) for device in devices) == [5, 5, 6]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tests", ["global", "alike"])
def test_the_choice_of_tests_changes_no_training_example(kind: str, tests: str) -> None:
    own, other = (all_devices(plan(kind, tests=each), data()) for each in ("own", tests))
    assert [identities([device.train]) for device in own] == [identities([device.train]) for device in other]


def test_with_alike_the_tests_of_a_label_go_where_its_training_examples_are() -> None:
    """Of label 0 device 0 has 3 of 4 examples, of label 1 device 1 has all, and nobody has label 2."""
    examples = Examples(inputs=np.arange(8, dtype=np.float32)[:, None], labels=np.array([0, 0, 0, 0, 1, 1, 2, 2]))
    tests = Examples(inputs=np.arange(20, dtype=np.float32)[:, None], labels=np.repeat([0, 1, 2], [8, 4, 8]))
    dataset = Dataset(train=examples, test=tests, num_classes=3)
    owned = experiment({"kind": "given", "examples": [[0, 1, 2], [3, 4, 5]], "tests": "alike"})
    devices = all_devices(owned, dataset)
    assert [label_counts(device.test, 3).tolist() for device in devices] == [[6, 0, 0], [2, 4, 0]]
    assert sorted(identities([device.test for device in devices])) == list(range(12))


@pytest.mark.parametrize("kind", KINDS)
def test_examples_for_validation_are_trained_on_by_nobody_whatever_is_measured(kind: str) -> None:
    whole = all_devices(plan(kind), data())
    tuned, final = (
        all_devices(plan(kind, validation_share=0.2, tests=each), data()) for each in ("validation", "global")
    )
    for before, while_tuned, after in zip(whole, tuned, final, strict=True):
        assert identities([while_tuned.train]) == identities([after.train])
        assert sorted(identities([while_tuned.train, while_tuned.test])) == identities([before.train])
        assert len(while_tuned.test) == round(0.2 * len(before.train))
    assert sorted(identities([device.test for device in final])) == list(range(16))


def test_a_device_can_have_tests_and_examples_for_validation_of_its_own() -> None:
    """Of ten examples two are tests; a quarter of the other eight is for validation."""
    parted = all_devices(plan(test_share=0.2), data())
    tested, validated = (
        all_devices(plan(test_share=0.2, validation_share=0.25, tests=each), data()) for each in ("own", "validation")
    )
    for before, test, validation in zip(parted, tested, validated, strict=True):
        assert identities([test.test]) == identities([before.test])
        assert identities([test.train]) == identities([validation.train])
        assert sorted(identities([test.train, validation.test])) == identities([before.train])
        assert (len(test.train), len(validation.test)) == (6, 2)


def test_the_last_rows_in_time_are_tests_and_those_before_them_for_validation() -> None:
    partition = {"kind": "given", "examples": [["0-9"]], "test_share": 0.2, "test_from": "end"}
    (device,) = all_devices(experiment({**partition, "validation_share": 0.25, "tests": "validation"}), data())
    assert (identities([device.train]), identities([device.test])) == (list(range(6)), [6, 7])


def test_public_examples_are_the_same_whatever_is_measured() -> None:
    public = {"examples": 6}
    plans = [plan(public=public), plan(public=public, tests="global"), plan(public=public, validation_share=0.2)]
    found = [public_data(each, data()).inputs[:, 0].tolist() for each in plans]
    assert found[0] == found[1] == found[2]
    for each in plans:
        assert not set(found[0]) & set(identities([device.train for device in all_devices(each, data())]))


REFUSED = {
    "tests: global takes the data set's tests, so test_share is unused; remove one": {
        "tests": "global", "test_share": 0.2
    },
    "tests: alike takes the data set's tests, so test_share is unused; remove one": {
        "tests": "alike", "test_share": 0.2
    },
    "tests: global and public.tests both choose the examples for tests; remove one": {
        "tests": "global", "public": {"examples": 3, "tests": True}
    },
    "tests: alike leaves no tests for public.source test; take them from train": {
        "tests": "alike", "public": {"examples": 3, "source": "test"}
    },
    "tests: validation needs examples for validation; set validation_share, such as 0.1": {"tests": "validation"},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_contradicting_keys_are_refused(message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        plan(**REFUSED[message])
    assert message in str(raised.value)


def test_a_share_that_leaves_nothing_to_validate_on_is_refused() -> None:
    with pytest.raises(DataError) as raised:
        check_partition(plan(validation_share=0.04), data())
    assert str(raised.value) == (
        "partition.validation_share 0.04 of the 10 examples of device 0 leaves 10 to train on and 0 to validate on; "
        "change validation_share, or give it more"
    )


def test_turned_images_are_not_the_tests_of_the_data_set() -> None:
    images = Examples(inputs=np.tile(np.array([[0, 1], [2, 3]], np.uint8), (30, 1, 1)), labels=np.arange(30) % 2)
    group = {"name": "a", "devices": 1, "examples_per_device": 10, "rotation": 90}
    turned = experiment({"kind": "groups", "groups": [group], "tests": "global"}, method="fedavg")
    with pytest.raises(ExperimentError, match=r"partition.tests global needs unchanged data"):
        all_devices(turned, Dataset(train=images, test=images, num_classes=2))


CLUSTERED = """
name: clustered
partition: {kind: iid, devices: 4, examples_per_device: 10, tests: global}
"""


def test_a_method_with_several_clusters_has_no_model_that_is_measured_on_all_tests() -> None:
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(CLUSTERED, overrides=["method={name: ifca, clusters: 2}"])
    assert str(raised.value).endswith(
        "partition.tests global does not go with method ifca: the devices of one cluster have only a part of the test "
        "set, so no cluster's model is measured on all of it; set partition.tests: own, or choose a method with a "
        "single cluster, such as fedavg"
    )
    assert parse_experiment(CLUSTERED, overrides=["method=fedavg"]).partition.test_set == "global"


def test_the_id_of_a_run_depends_on_its_tests_only_if_they_are_chosen() -> None:
    plain, said, other = (plan(**keys) for keys in ({}, {"tests": "own"}, {"tests": "global"}))
    assert plain.digest == said.digest != other.digest
    assert "tests" not in plain.partition.of_digest() and "validation_share" not in plain.partition.of_digest()


def test_devices_measure_on_the_public_examples_also_beside_examples_for_validation() -> None:
    public = {"examples": 6, "source": "train", "tests": True}
    owned = plan(validation_share=0.5, public=public)
    shared = set(identities([Examples(inputs=public_data(owned, data()).inputs, labels=np.zeros(6, np.int64))]))
    devices = all_devices(owned, data())
    assert len(shared) == 6
    assert set(identities([device.test for device in devices])) <= shared
