"""Who owns what if the data or the experiment say it: by a column, by a list, by a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.partitions import check_partition, device_data, public_data
from tests.support.splits import all_devices, experiment, identities

FOLDER = {"name": "folder", "folder": "here", "input_shape": [1], "num_classes": 2}


def data(train: list[int], test: list[int], **arrays: Any) -> Dataset:
    """Return a data set without targets, with a column `user`, in which the input of an example is its index."""

    def part(users: list[int]) -> Examples:
        return Examples(
            inputs=np.arange(len(users), dtype=np.float32)[:, None], columns={"user": np.array(users, np.int64)}
        )

    return Dataset(train=part(train), test=part(test), **arrays)


def natural(**said: Any) -> dict[str, Any]:
    return {"kind": "natural", "by": "user", **said}


@given(users=st.lists(st.integers(0, 6), min_size=1, max_size=40), tests=st.lists(st.integers(0, 6), max_size=20))
def test_each_device_owns_what_its_value_of_the_column_says_and_no_other_does(
    users: list[int], tests: list[int]
) -> None:
    tests = [user for user in tests if user in users] or users[:1]
    values = sorted(set(users))
    dataset = data(users, tests)
    devices = all_devices(experiment(natural(devices=len(values))), dataset)
    for value, device in zip(values, devices, strict=True):
        assert identities([device.train]) == [place for place, user in enumerate(users) if user == value]
        assert identities([device.test]) == [place for place, user in enumerate(tests) if user == value]
    assert sorted(identities([device.train for device in devices])) == list(range(len(users)))


def test_names_choose_the_devices_and_their_order() -> None:
    dataset = data([0, 1, 2, 1], [0, 1, 2], names={"user": ["ann", "bob", "eve"]})
    plan = experiment(natural(names=["eve", "bob"]))
    assert plan.device_ids() == ["eve", "bob"]
    assert [identities([device.train]) for device in all_devices(plan, dataset)] == [[2], [1, 3]]


@pytest.mark.parametrize(
    ("value", "device_id"),
    [
        ("Hospital A", "hospital-a"), ("Site_1", "site-1"), ("Zürich/Süd", "z-rich-s-d"),
        ("ann", "ann"),
        ("a.b", "a.b"), ("A--B", "a--b"), (" x ", "x"), ("(3)", "3"),
        ("Ward #7, north", "ward-7-north"), ("1.1", "1.1"),
    ],
)  # fmt: skip
def test_a_device_is_called_like_its_value_in_small_letters(value: str, device_id: str) -> None:
    plan = experiment(natural(names=[value]))
    assert plan.device_ids() == [device_id]
    dataset = data([0, 1, 1], [0, 1], names={"user": ["other", value]})
    assert identities([device_data(plan, dataset, 0).train]) == [1, 2]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["東京"], "partition.names: '東京' gives no device id, which needs 1 to 63 letters"),
        (["a", ""], "'' gives no device id"),
        (["a" * 64], "gives no device id, which needs 1 to 63 letters .a to z. or digits; rename it"),
        (["Site 1", "site-1"], "'Site 1' and 'site-1' give the same device id, site-1; rename one"),
        (["A", "A"], "a name is listed twice"),
        (["GPS"], "gps is the name of a server"),
        (["LPS 0"], "lps-0 is the name of a server"),
    ],
)
def test_a_value_that_gives_no_device_id_of_its_own_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        experiment(natural(names=names))


def test_the_id_of_a_board_is_said_in_words() -> None:
    with pytest.raises(ExperimentError, match=r"names.0: takes small letters, digits and, .* 63 in all \(got 'B"):
        experiment({"kind": "local", "names": ["Board_1"]})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"devices": 2},
            r"column user has 3 values \(ann, bob, eve\), but partition.devices is 2; set it to 3, or list",
        ),
        ({"names": ["ann", "tom"]}, "column user has no value tom of partition.names; its values are ann, bob, eve"),
        ({"devices": 3, "by": "place"}, "the data have no column place; they have user: name it"),
        (
            {"names": ["eve"]},
            "device eve has no training examples: column user does not contain eve; add examples, or remove",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_refused(said: dict[str, Any], message: str) -> None:
    dataset = data([0, 1, 1], [0, 2], names={"user": ["ann", "bob", "eve"]})
    with pytest.raises(DataError, match=message):
        device_data(experiment(natural(**said)), dataset, 0)


@pytest.mark.parametrize("names", [["ann", "bob"], ["ann", "bob", "ann"]])
def test_each_value_of_a_column_needs_a_name_of_its_own(names: list[str]) -> None:
    with pytest.raises(DataError, match=r"for column user; give each value from 0 to 2 a name of its own"):
        device_data(experiment(natural(devices=3)), data([0, 1, 2], [0], names={"user": names}), 0)


def test_data_without_tests_need_a_share_of_each_devices_own() -> None:
    dataset = data([0] * 10 + [1] * 5, [])
    with pytest.raises(DataError, match=r"the data have no test examples; set partition\.test_share"):
        device_data(experiment(natural(devices=2)), dataset, 0)
    last = all_devices(experiment(natural(devices=2, test_share=0.2, test_from="end")), dataset)
    assert [identities([device.test]) for device in last] == [[8, 9], [14]]
    drawn = all_devices(experiment(natural(devices=2, test_share=0.2)), dataset)
    assert [len(device.test) for device in drawn] == [2, 1]
    assert sorted(identities([part for device in drawn for part in (device.train, device.test)])) == list(range(15))


@given(owners=st.lists(st.integers(-1, 3), min_size=4, max_size=30))
def test_given_examples_belong_to_the_devices_that_are_said(owners: list[int]) -> None:
    owners = [*range(4), *owners]
    lists = [[place for place, owner in enumerate(owners) if owner == device] for device in range(4)]
    devices = all_devices(experiment({"kind": "given", "examples": lists}), data([0] * len(owners), [0] * 9))
    assert [identities([device.train]) for device in devices] == lists
    assert [len(device.test) for device in devices] == [2] * 4
    tests = identities([device.test for device in devices])
    assert len(set(tests)) == len(tests)


@pytest.mark.parametrize("index", [6, 10**23])
def test_given_examples_that_the_data_do_not_have_are_refused(index: int) -> None:
    plan = experiment({"kind": "given", "examples": [[index], [1]]})
    with pytest.raises(DataError, match=f"names example {index}; the training data have examples 0 to 5"):
        device_data(plan, data([0] * 6, [0]), 0)


def test_a_file_says_the_owner_of_each_example(tmp_path: Path) -> None:
    path = tmp_path / "owners.txt"
    said = {"kind": "given", "file": str(path), "devices": 2, "test_share": 0.5}
    path.write_text("1\n0\n-1\n1\n0\n")
    plan = experiment(said)
    devices = all_devices(plan, data([0] * 5, []))
    assert [sorted(identities([device.train, device.test])) for device in devices] == [[1, 4], [0, 3]]
    for text, message in (
        ("1\n0\n", "has 2 lines, but there are 5 training examples; write one line"),
        ("1\n0\n1\n2\n0\n", "names device 2; devices are 0 to 1, and -1 means no device"),
        ("1\nx\n", "it must have the index of a device on each line"),
        ("1\n1\n1\n1\n1\n", "gives device 0 no example; give it at least one"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            device_data(experiment(said), data([0] * 5, []), 0)


def test_the_content_of_the_file_is_part_of_a_runs_id_and_its_place_is_not(tmp_path: Path) -> None:
    places = [tmp_path / name / "owners.txt" for name in ("here", "there")]
    for place in places:
        place.parent.mkdir()
        place.write_text("0\n1\n")
    text = yaml.safe_dump({"name": "split", "partition": {"kind": "given", "file": "owners.txt", "devices": 2}})
    (tmp_path / "here" / "plan.yaml").write_text(text)
    plans = [load_experiment(tmp_path / "here" / "plan.yaml"), parse_experiment(text, where=str(places[1]))]
    assert plans[0].run_id == plans[1].run_id == parse_experiment(plans[0].to_yaml()).run_id
    places[0].write_text("1\n0\n")
    assert load_experiment(tmp_path / "here" / "plan.yaml").run_id != plans[0].run_id
    with pytest.raises(ExperimentError, match=r"partition.file: the SHA-256 of .*here/owners.txt begins with"):
        device_data(plans[0], data([0] * 2, []), 0)
    places[0].unlink()
    with pytest.raises(ExperimentError, match=r"partition.file: cannot read .*here/owners.txt: No such file"):
        load_experiment(tmp_path / "here" / "plan.yaml")
    places[0].symlink_to("owners.txt")
    with pytest.raises(ExperimentError, match=r"partition.file: cannot read .*owners.txt"):
        load_experiment(tmp_path / "here" / "plan.yaml")


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"kind": "given", "examples": [[0, 1], [1]]}, "the index of an example is listed twice"),
        (
            {"kind": "given", "file": __file__},
            r"given: give either examples \(a list for each device\), or file and devices",
        ),
        ({"kind": "natural"}, r"natural: give exactly one of devices \(their number\) and names"),
        ({"kind": "natural", "names": ["a", "a"]}, "a name is listed twice; give each device a different name"),
        ({"kind": "natural", "names": ["a", "lps-0"]}, "lps-0 is the name of a server"),
        ({"kind": "natural", "names": ["gps"]}, "gps is the name of a server"),
    ],
)
def test_a_partition_that_says_too_little_or_too_much_is_refused(partition: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        experiment(partition)


def test_skew_may_be_by_any_column() -> None:
    dataset = data([0, 1, 2, 3] * 10, [0, 1, 2, 3] * 2)
    tasks = [{"name": name, "labels": labels, "devices": 2, "examples_per_device": 10}
             for name, labels in (("low", [0, 1]), ("high", [2, 3]))]  # fmt: skip
    devices = all_devices(experiment({"kind": "tasks", "tasks": tasks, "minority_ratio": 0, "by": "user"}), dataset)
    assert [sorted(set(device.train.columns["user"].tolist())) for device in devices] == [[0, 1]] * 2 + [[2, 3]] * 2
    assert [sorted(set(device.test.columns["user"].tolist())) for device in devices] == [[0, 1]] * 2 + [[2, 3]] * 2
    group = {"name": "one", "devices": 2, "examples_per_device": 5, "labels": [3]}
    groups = all_devices(experiment({"kind": "groups", "groups": [group], "by": "user"}), dataset)
    assert {user for device in groups for user in device.train.columns["user"].tolist()} == {3}
    drawn = all_devices(
        experiment({"kind": "dirichlet", "devices": 4, "examples_per_device": 10, "by": "user", "concentration": 0.1}),
        dataset,
    )
    assert sorted(identities([device.train for device in drawn])) == list(range(40))
    with pytest.raises(
        DataError, match="the method or the partition needs labels, and these examples have no targets; choose a method"
    ):
        device_data(experiment({"kind": "dirichlet", "devices": 4, "examples_per_device": 10}), dataset, 0)


def test_public_examples_of_data_without_labels_are_any() -> None:
    partition = {"kind": "iid", "devices": 2, "examples_per_device": 10, "public": {"examples": 5}}
    dataset = data([0] * 25, [0] * 4)
    plan = experiment(partition)
    owned = identities([device.train for device in all_devices(plan, dataset)])
    public = public_data(plan, dataset).inputs[:, 0].astype(int).tolist()
    assert not set(public) & set(owned)
    assert len(set(public)) == 5


def test_a_device_with_more_examples_than_bounds_allow_is_found_before_the_run() -> None:
    said = {"name": "split", "partition": natural(devices=2), "bounds": {"max_examples": 3}, "data": FOLDER}
    plan = parse_experiment(yaml.safe_dump(said))
    check_partition(plan, data([0, 0, 0, 1], [0, 1]))
    with pytest.raises(DataError, match=r"device device-000 has 4 training examples, more than bounds.max_examples"):
        check_partition(plan, data([0, 0, 0, 0, 1], [0, 1]))
