"""`fedstrata partition`: the numbers, the table and the picture of how data are divided."""

import csv
from pathlib import Path

import numpy as np
import pytest

from emulator.commands import main as cli
from emulator.estimates.partition_picture import numbers

FILE = """
name: shares
partition: {kind: PARTITION}
method: fedavg
"""
TWO = "groups, groups: [{name: low, devices: 1, examples_per_device: 40, labels: [0, 1]}, " \
    "{name: rest, devices: 2, examples_per_device: 30, labels: [2]}]"  # fmt: skip

BOARD = ("--set", "data={name: folder, input_shape: [4], num_classes: 2}")


def shown(tmp_path: Path, partition: str, *options: str) -> int:
    path = tmp_path / "shares.yaml"
    path.write_text(FILE.replace("PARTITION", partition), encoding="utf-8")
    return cli.execute(["partition", str(path), *options])


def test_the_distance_of_a_device_is_that_of_its_label_shares_from_all() -> None:
    found = numbers(np.array([[40, 0], [10, 10]]), [4, 2])
    assert found == {
        "training examples": [40, 20], "test examples": [4, 2], "labels": [1, 2],
        "distance from all": pytest.approx([1 / 6, 1 / 3]),
    }  # fmt: skip


def test_numbers_table_and_picture_are_of_the_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert shown(tmp_path, TWO, "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert said.startswith("3 devices, 10 labels, partition groups\n")
    assert "training examples     30      30    40" in said
    rows = list(csv.reader((out / "partition.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["device", *map(str, range(10))]
    assert rows[1:] == [
        ["device-000", "20", "20", *["0"] * 8],
        ["device-001", "0", "0", "30", *["0"] * 7],
        ["device-002", "0", "0", "30", *["0"] * 7],
    ]
    assert (out / "partition.svg").read_text(encoding="utf-8").count("<use") > 4
    assert (out / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_many_devices_become_a_map(tmp_path: Path) -> None:
    assert shown(tmp_path, "iid, devices: 100, examples_per_device: 10", "--out", str(tmp_path / "out")) == 0
    assert "<image" in (tmp_path / "out/partition.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("partition", "options", "message"),
    [
        ("local, names: [a]", BOARD, "only the devices have the data"),
        ("iid, devices: 1000, examples_per_device: 10", (), "lower partition.devices"),
        (TWO, ("--out", "."), "is not empty"),
    ],
)
def test_a_partition_that_cannot_be_shown_is_told_in_a_line(
    tmp_path: Path, partition: str, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(tmp_path, partition, *options) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
