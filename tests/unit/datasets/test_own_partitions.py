"""A partition of the user: it is read, divided and refused like a built-in one."""

from pathlib import Path
from typing import Any

import pytest

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import check_partition, device_data
from fedstrata.store.own_code import with_digests
from tests.support.splits import all_devices, experiment, identities, numbered

OWN = "tests.support.own_partitions:"
DATA = numbered([20, 30], [4, 6])


def own(name: str = "Halves", **keys: Any) -> Experiment:
    return experiment({"kind": OWN + name, **keys})


def test_an_own_partition_divides_the_data_by_its_keys() -> None:
    devices = all_devices(own(share=0.4, devices=4), DATA)
    assert [len(device.train) for device in devices] == [20, 10, 10, 10]
    assert sorted(identities([device.train for device in devices])) == list(range(50))
    assert [len(device.test) for device in devices] == [2] * 4


def test_it_has_the_keys_of_all_partitions_and_survives_the_resolved_file() -> None:
    plan = own(test_share=0.5, public={"examples": 3, "source": "test"})
    assert [len(device.test) for device in all_devices(plan, DATA)] == [12, 6, 6]
    assert parse_experiment(plan.to_yaml()) == plan


def test_its_keys_and_its_code_are_part_of_the_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "from fedstrata.partitions import Partition\n"
        "class Own(Partition):\n    size: int = 3\n    @property\n    def device_count(self): return 2\n"
    )
    (tmp_path / "mine_of_splits.py").write_text(code)
    text = "{name: x, partition: {kind: 'mine_of_splits:Own', size: %s}}"
    found = [with_digests(parse_experiment(text % size)) for size in (3, 4)]
    assert list(found[0].files) == ["mine_of_splits.py"]
    assert len({each.run_id for each in found}) == 2


def test_a_text_that_looks_like_own_code_but_is_a_name_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site_of_data.py").write_text("")
    plan = experiment({"kind": "natural", "by": "site_of_data:number", "devices": 2})
    assert with_digests(plan).files == {}


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("Halves", {"shares": 2}, "shares: unknown key; did you mean partition.test_share or partition.share"),
        ("Halves", {"share": "much"}, "partition.share: must be a number, not 'much'"),
        (
            "Halves",
            {"colour": 1},
            "unknown key; kind tests.support.own_partitions:Halves has the keys kind, test_share",
        ),
    ],
)
def test_a_wrong_key_is_told_like_that_of_a_built_in_partition(name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        own(name, **keys)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoPartition", "must be a subclass of fedstrata.partitions.Partition, not "),
        ("Listed", "failed with TypeError: unhashable type: 'list'"),
        ("Absent", r"failed with KeyError: 'devices' \(.*own_partitions.py, line \d+\)"),
        ("Countless", "device_count must be a number from 1 to 100000, not 0"),
        ("Missing", "cannot use Missing of module"),
    ],
)
def test_a_class_with_a_fault_is_refused_before_the_run(name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        own(name, **({"seats": [1]} if name == "Listed" else {}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Twice", "that gives each of the 3 devices at least one of the training examples 0 to 49"),
        ("Fractions", r"training examples 0 to 49 \(integers\)"),
        ("Nothing", "divide must return an Assignment"),
        ("Broken", r"failed in divide: TypeError: .*\(.*own_partitions.py, line \d+\)"),
    ],
)
def test_a_division_that_fails_or_is_none_is_refused_with_the_class(name: str, message: str) -> None:
    for call in (lambda: check_partition(own(name), DATA), lambda: device_data(own(name), DATA, 0)):
        with pytest.raises(PluginError, match=message):
            call()
