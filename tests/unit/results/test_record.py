"""A record is read as it was written, and a damaged one is refused in one line that names the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from emulator.results.read_record import load_record
from emulator.results.report import write_report
from emulator.results.result_lines import print_result
from fedstrata.errors import DataError
from fedstrata.experiment_file import parse_experiment
from fedstrata.record.relevance import Relevance
from fedstrata.record.timing import Timing
from fedstrata.v1 import rounds_pb2
from gps import record_writer as gps_record
from tests.support.record_files import IDS, SUMMARY, TABLE, relevance_rows, write_csv, write_record


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as refused:
        load_record(folder)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = load_record(write_record(tmp_path / "run"))
    assert record.name == "two-tasks"
    assert record.summary.clusters["lps-1"] == ("device-002", "device-004")
    assert record.summary.cluster_of_device["device-003"] == "lps-0"
    assert record.summary.mean == 0.86
    assert record.summary.link("device-gps").total == 6000
    assert record.summary.total_bytes == 6000 + 2100 + 1000
    assert record.summary.total_seconds == 62.0
    assert [row.loss for row in record.rounds] == [1.5, 1.25, 0.75, 0.5]
    assert record.relevance is not None
    assert record.relevance.ids == IDS
    assert record.relevance.matrix[0].tolist() == [1.0, 0.9, 0.3, 0.9, 0.3]


def test_a_device_that_is_excluded_from_two_rounds_is_one_excluded_device(tmp_path: Path) -> None:
    excluded = [{"device": "device-002", "from": f"round {number}", "reason": "late"} for number in (1, 2)]
    console = Console()
    with console.capture() as printed:
        print_result(load_record(write_record(tmp_path / "run", excluded=excluded)), tmp_path, console)
    assert "excluded: 1; summary.json says which and why" in printed.get()


def test_what_the_gps_writes_is_read_back(tmp_path: Path) -> None:
    experiment = parse_experiment("""{name: two-devices, seed: 3, method: {name: one_shot, clusters: 1},
        partition: {kind: iid, devices: 2, examples_per_device: 10}}""")
    row = rounds_pb2.LpsRound(home_id="lps-0", devices=2, num_examples=20, bytes_up=7, bytes_down=9, seconds=0.5)
    evaluations = [rounds_pb2.Evaluation(device_id="device-000", sums=[3], num_examples=4, loss_sum=2.0)]
    result = gps_record.RunResult(
        experiment=experiment, status="completed", reason=None, clusters={"lps-0": ["device-000", "device-001"]},
        evaluations=evaluations, model_sha256={"lps-0": "ab"},
        clusters_rule="given", link_bytes={},
        exclusions=[("device-001", "round 1", "left")], wall_seconds={"total": 1.5}, global_rounds=1,
        relevance=np.array([[1.0, 0.25], [0.25, 1.0]]), relevance_ids=["device-000", "device-001"],
    )  # fmt: skip
    gps_record.write_record(tmp_path, result, Timing(experiment=experiment, rows=[row]))
    record = load_record(tmp_path)
    assert (record.name, record.summary.run_id) == ("two-devices", experiment.run_id)
    assert record.summary.mean == 0.75
    assert record.summary.excluded[0].stage == "round 1"
    assert (record.rounds[0].lps_round, record.rounds[0].bytes_up, record.rounds[0].metrics) == (
        1,
        7,
        {"accuracy": None},
    )
    assert record.relevance is not None
    assert record.relevance.matrix[0, 1] == 0.25
    assert write_report(tmp_path).exists()


def test_where_clusters_span_lpss_rounds_are_those_of_lpss(tmp_path: Path) -> None:
    clusters = {f"cluster-{number}": SUMMARY["clusters"][f"lps-{number}"] for number in (0, 1)}
    homes = {"lps-0": list(IDS[:3]), "lps-1": list(IDS[3:])}
    accuracy = {"cluster-0": 0.9, "cluster-1": 0.8, "mean": 0.85}
    spanning = {"clusters": clusters, "homes": homes, "accuracy": accuracy, "received_accuracy": accuracy}
    record = load_record(write_record(tmp_path / "run", **spanning))
    assert record.summary.by_lps["lps-0"] == IDS[:3]
    assert record.summary.cluster_of_device["device-003"] == "cluster-0"
    assert {row.lps_id for row in record.rounds} == {"lps-0", "lps-1"}
    assert "'cluster-0'" in refusal(
        write_record(tmp_path / "odd", **spanning, rounds=[(1, 1, "cluster-0", 1, 1, 1, 1, 1, 1, 1)])
    )
    assert write_report(tmp_path / "run").exists()


def test_a_round_without_evaluation_has_no_accuracy(tmp_path: Path) -> None:
    record = load_record(write_record(tmp_path / "run"))
    assert record.rounds[0].metrics == {"accuracy": None}
    assert record.rounds[1].metrics == {"accuracy": 0.5}


def test_a_record_without_relevance_has_none(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "relevance.csv").unlink()
    assert load_record(folder).relevance is None


def test_a_record_with_no_rounds_has_none(tmp_path: Path) -> None:
    assert load_record(write_record(tmp_path / "run", rounds=())).rounds == ()


def test_keys_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    assert load_record(write_record(tmp_path / "run", energy_joules=3)).summary.seed == 0


def test_an_exclusion_says_from_when_and_why(tmp_path: Path) -> None:
    excluded = [{"device": "device-009", "from": "round 3", "reason": "a NaN in fc1"}]
    (exclusion,) = load_record(write_record(tmp_path / "run", excluded=excluded)).summary.excluded
    assert (exclusion.device, exclusion.stage, exclusion.reason) == ("device-009", "round 3", "a NaN in fc1")


def test_a_summary_without_a_key_is_refused(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "summary.json").write_text(json.dumps({key: SUMMARY[key] for key in SUMMARY if key != "kernels"}))
    assert "summary.json: kernels: " in refusal(folder)


@pytest.mark.parametrize("name", ["summary.json", "experiment.yaml", "rounds.csv"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_record(tmp_path / "run")
    (folder / name).unlink()
    assert f"{name} is missing" in refusal(folder)


@pytest.mark.parametrize("text", ['{"run_id": ', "[" * 100_000, "[]", "null", '"text"', "{}"])
def test_a_summary_that_is_not_a_summary_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "summary.json").write_text(text)
    assert "summary.json" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "resting"}, "status"),
        ({"devices": -1}, "devices"),
        ({"accuracy": {"lps-0": 1.5}}, "accuracy.lps-0"),
        ({"accuracy": {"lps-0": float("nan")}}, "accuracy.lps-0"),
        ({"accuracy": {"lps-7": 0.5}}, "'lps-7'"),
        ({"bytes": {"device-gps": {"up": "many"}}}, "bytes.device-gps.up"),
        ({"bytes": {"moon-gps": {"up": 1}}}, "moon-gps"),
        ({"clusters": {"lps-0": ["device-000"], "lps-1": ["device-000"]}}, "a device is in two clusters"),
        ({"clusters": {}}, "a completed run must have clusters"),
        ({"wall_seconds": {"total": float("inf")}}, "wall_seconds.total"),
    ],
)
def test_a_summary_with_a_wrong_value_is_refused_with_its_key(tmp_path: Path, change: Any, said: str) -> None:
    assert said in refusal(write_record(tmp_path / "run", **change))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "rounds.csv").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refusal(folder)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("")
    assert "summary.json" in refusal(path)


def test_an_experiment_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "experiment.yaml").write_text("name: [")
    assert "experiment.yaml is not YAML" in refusal(folder)


def test_a_round_of_an_unknown_cluster_is_refused(tmp_path: Path) -> None:
    assert "'lps-9'" in refusal(write_record(tmp_path / "run", rounds=[(1, 1, "lps-9", 1, 1, 1, 1, 1, 1, 1)]))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "empty"),
        ([TABLE.columns[:-3]], "no column 'highest_accuracy'"),
        ([TABLE.columns, (1, 1, "lps-0")], "row 2: 3 fields"),
        ([TABLE.columns, (1, 0, "lps-0", 3, 300, 1, 1, 1, 1, 1, "", "", "", "")], "row 2: lps_round"),
        ([TABLE.columns, (1, 1, "lps-0", 3, 300, "high", 1, 1, 1, 1, "", "", "", "")], "row 2: loss"),
        ([TABLE.columns, (1, 1, "lps-0", 3, 300, 1, 1, 1, "", 1, "", "", "", "")], "row 2: bytes_up"),
    ],
)
def test_rounds_that_are_malformed_are_refused_with_their_row(tmp_path: Path, rows: Any, said: str) -> None:
    folder = write_record(tmp_path / "run")
    write_csv(folder / "rounds.csv", rows)
    assert said in refusal(folder)


def test_relevance_whose_rows_are_not_in_the_headers_order_is_refused(tmp_path: Path) -> None:
    header, first, second, *rest = relevance_rows()
    assert "first column" in refusal(write_record(tmp_path / "run", relevance=[header, second, first, *rest]))


@pytest.mark.parametrize(
    ("cell", "said"), [("", "could not convert"), ("nan", "0 to 1"), (1.5, "0 to 1"), (0.5, "not symmetric")]
)
def test_relevance_with_a_wrong_number_is_refused(tmp_path: Path, cell: object, said: str) -> None:
    rows = relevance_rows()
    rows[1][2] = cell
    assert said in refusal(write_record(tmp_path / "run", relevance=rows))


def test_relevance_with_a_short_row_is_refused(tmp_path: Path) -> None:
    rows = relevance_rows()
    del rows[3][-1]
    assert "row 4: 4 numbers" in refusal(write_record(tmp_path / "run", relevance=rows))


def test_relevance_needs_as_many_ids_as_rows() -> None:
    with pytest.raises(DataError, match="2 device ids need a matrix of 2 × 2"):
        Relevance(ids=("a", "b"), matrix=np.eye(3))


def test_the_fixture_is_what_the_tests_say() -> None:
    assert sum(len(ids) for ids in SUMMARY["clusters"].values()) == SUMMARY["devices"]
