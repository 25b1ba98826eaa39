"""The picture of devices' labels: true to what devices own, and left out where it cannot be known here."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from emulator.results.compare import compare
from emulator.results.labels import MOST_ROWS, label_counts, label_picture
from emulator.results.read_record import load_record
from emulator.results.report import write_report
from emulator.results.report.run_page import document_of
from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import device_data
from tests.support.record_files import write_record

GROUPS = """
name: turned
partition:
  kind: groups
  groups:
    - {name: a, devices: 2, examples_per_device: 30, labels: [0, 1, 2]}
    - {name: b, devices: 2, examples_per_device: 40, labels: [3, 4], label_permutation: [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]}
"""


def test_counts_are_of_the_examples_that_devices_train_on_by_the_labels_that_these_have_there() -> None:
    experiment = parse_experiment(GROUPS)
    counts = label_counts(experiment)
    assert counts is not None
    dataset = load_dataset(experiment.data, experiment.seed)
    for index in range(experiment.device_count):
        labels = device_data(experiment, dataset, index).train.labels.tolist()
        assert counts[index].tolist() == [labels.count(label) for label in range(10)]
    assert np.flatnonzero(counts[0]).tolist() == [0, 1, 2]
    assert np.flatnonzero(counts[2]).tolist() == [5, 6]  # 4 and 3 renamed


@pytest.mark.parametrize("named", ["folder", "module"])
def test_of_own_data_nothing_is_said_and_nothing_executed(tmp_path: Path, named: str) -> None:
    local = "{name: folder, input_shape: [4], num_classes: 2}", "{kind: local, names: [one, two]}"
    own = "{name: 'nowhere:load', input_shape: [4], num_classes: 2}", "{kind: iid, devices: 2, examples_per_device: 5}"
    data, partition = local if named == "folder" else own
    assert label_counts(parse_experiment(f"{{name: x, data: {data}, partition: {partition}}}")) is None


SECTIONS = ("data", "partition", "model", "task", "method", "aggregation", "attacks", "architectures")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_page_and_a_comparison_import_no_code_that_the_record_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    own = {"data": "{name: 'foreign:E', input_shape: [1], num_classes: 2}", "partition": "{kind: 'foreign:E'}"}
    own |= {"aggregation": "{lps: {name: 'foreign:E'}}", "attacks": "[{name: 'foreign:E', devices: [0]}]"}
    own |= {"architectures": "[{devices: [0], model: {name: 'foreign:E'}}]"}
    folder = record_of(tmp_path, parse_experiment(GROUPS))
    document = yaml.safe_load(parse_experiment(GROUPS).to_yaml())
    document |= {section: yaml.safe_load(own.get(section, "{name: 'foreign:E'}"))}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (folder / "foreign.py").write_text("open('imported', 'w').close()\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    write_report(Path())
    compare([Path(), Path()])
    assert not Path("imported").exists()
    assert (label_picture(load_record(folder)) is not None) == (section not in {"data", "partition"})


def test_where_the_data_is_not_at_hand_the_report_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "nothing"))
    text = GROUPS.replace("name: turned", "name: turned\ndata: {name: svhn}")
    assert label_picture(load_record(record_of(tmp_path, parse_experiment(text)))) is None


def record_of(folder: Path, experiment: Experiment) -> Path:
    """A record of an experiment, all devices in two clusters."""
    ids = experiment.device_ids()
    half = len(ids) // 2
    written = write_record(
        folder / "run", devices=len(ids), clusters={"lps-1": ids[half:], "lps-0": ids[:half]},
        accuracy={"lps-0": 0.5, "lps-1": 0.5, "mean": 0.5},
    )  # fmt: skip
    (written / "experiment.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    return written


def test_rows_stand_cluster_by_cluster(tmp_path: Path) -> None:
    folder = record_of(tmp_path, parse_experiment(GROUPS))
    picture = document_of(load_record(folder))["parts"]["label_picture"]
    assert picture["labels"] == 10
    assert [(row["name"], row["cluster"]) for row in picture["rows"]] == [
        ("device-002", "lps-1"),
        ("device-003", "lps-1"),
        ("device-000", "lps-0"),
        ("device-001", "lps-0"),
    ]
    assert sum(picture["rows"][0]["counts"]) == 40


def test_where_there_are_many_a_row_is_a_cluster(tmp_path: Path) -> None:
    many = MOST_ROWS + 1
    text = f"{{name: many, partition: {{kind: iid, devices: {many}, examples_per_device: 5}}}}"
    picture = label_picture(load_record(record_of(tmp_path, parse_experiment(text))))
    assert picture is not None
    assert [row["name"] for row in picture["rows"]] == ["lps-1", "lps-0"]
    assert sum(sum(row["counts"]) for row in picture["rows"]) == 5 * many


def test_an_experiment_that_cannot_be_read_is_no_matter(tmp_path: Path) -> None:
    folder = record_of(tmp_path, parse_experiment(GROUPS))
    (folder / "experiment.yaml").write_text("partition: {kind: nonsense}\n", encoding="utf-8")
    assert label_picture(load_record(folder)) is None
