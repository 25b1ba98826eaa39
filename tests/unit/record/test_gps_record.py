"""The run record: numbers that can be added up by hand, and files that the emulator reads back."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.results.read_record import load_record
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.metrics import LinkKey
from fedstrata.record import timing
from fedstrata.record.energy import Spent, spent_by
from fedstrata.record.relevance import relevance_csv
from fedstrata.record.rounds import RoundsTable, rounds_csv
from fedstrata.record.timing import Timing
from fedstrata.tasks import CLASSIFICATION
from fedstrata.v1 import rounds_pb2
from gps import record_writer
from gps.record_writer import RunResult, adjusted_rand_index, wall_seconds, write_record
from tests.support.gps_parts import IDS, TEXT

TASKS = dict(zip(IDS, ["a", "a", "a", "b", "b"], strict=True))
CLUSTERS = {"lps-0": [IDS[0], IDS[1]], "lps-1": [IDS[2], IDS[3], IDS[4]]}


def measured(*hits: tuple[int, int, int]) -> list[rounds_pb2.Evaluation]:
    """Measurements of final models from (device, correct, of how many)."""
    return [
        rounds_pb2.Evaluation(device_id=IDS[device], sums=[correct], num_examples=examples)
        for device, correct, examples in hits
    ]


def row(lps_round: int, home_id: str = "lps-0", evaluated: int = 50) -> rounds_pb2.LpsRound:
    return rounds_pb2.LpsRound(
        home_id=home_id, global_round=lps_round // 2, lps_round=lps_round, devices=2, num_examples=20,
        seconds=0.12345, bytes_up=1000, bytes_down=2000, loss_sum=evaluated * 0.25, sums=[evaluated // 2],
        evaluated_examples=evaluated, **({"lowest": 0.25, "highest": 0.75} if evaluated else {}),
    )  # fmt: skip


def key(link: str, direction: str, kind: str) -> LinkKey:
    return LinkKey(link=link, direction=direction, kind=kind, end="parent")


ROWS = [row(0), row(1, evaluated=0)]


def summary(result: RunResult) -> dict[str, Any]:
    return record_writer.summary(result).document()


def written(folder: Path, result: RunResult, rows: Sequence[rounds_pb2.LpsRound] = ROWS) -> None:
    write_record(folder, result, Timing(experiment=result.experiment, rows=rows))


@pytest.fixture
def result() -> RunResult:
    return RunResult(
        experiment=parse_experiment(TEXT, seed=7),
        status="completed",
        reason=None,
        clusters=CLUSTERS,
        clusters_rule="2 as given",
        evaluations=measured((0, 9, 10), (1, 7, 10), (2, 1, 10), (3, 30, 40)),
        model_sha256={"lps-0": "sha of lps-0", "lps-1": "sha of lps-1"},
        link_bytes={
            key("device-lps", "up", "update"): 500,
            key("device-lps", "up", "control"): 11,
            key("device-lps", "down", "model"): 900,
            key("device-gps", "up", "profile"): 64,
        },
        exclusions=[(IDS[4], "round 3", "missed the deadline")],
        wall_seconds={"enrol": 1.23456, "total": 2.0},
        global_rounds=1,
        relevance=np.full((5, 5), 0.5) + 0.5 * np.eye(5),
        relevance_ids=IDS,
    )


def test_a_record_says_what_made_it(tmp_path: Path, result: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop = {"torch": "2.5.1", "python": "3.12.1", "fedstrata": "0.3.0", "platform": "Linux", "processor": "Abacus"}
    devices = {"device": [(4, laptop), (1, {"fedstrata": "0.2.0"})]}
    began = datetime(2026, 11, 29, 8, 30, tzinfo=UTC).timestamp()
    monkeypatch.setattr(record_writer, "wall_time", lambda: began + 75)
    written(tmp_path, replace(result, began=began, commands=("fedstrata run a.yaml",), software=devices))
    made = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["made_by"]
    assert (made["started"], made["ended"]) == ("2026-11-29T08:30:00Z", "2026-11-29T08:31:15Z")
    assert made["commands"] == ["fedstrata run a.yaml"]
    assert made["software"]["device"] == [
        {"count": 4, "versions": {"fedstrata": "0.3.0", "python": "3.12.1", "torch": "2.5.1"}, "platform": "Linux",
         "processor": "Abacus"},
        {"count": 1, "versions": {"fedstrata": "0.2.0"}, "platform": "", "processor": ""},
    ]  # fmt: skip
    (gps,) = made["software"]["gps"]
    assert gps["versions"]["numpy"] == np.__version__


def test_accuracy_is_hits_over_examples_of_a_clusters_devices(result: RunResult) -> None:
    accuracy = summary(result)["accuracy"]
    assert accuracy == {"lps-0": 16 / 20, "lps-1": 31 / 50, "mean": pytest.approx((0.8 + 0.62) / 2)}


def test_task_accuracy_is_that_of_the_tasks_devices_wherever_they_are(result: RunResult) -> None:
    assert summary(result)["task_accuracy"] == {"a": 17 / 30, "b": 30 / 40}


def test_a_task_without_measurements_has_no_accuracy(result: RunResult) -> None:
    alone = replace(result, evaluations=measured((0, 9, 10)))
    assert summary(alone)["task_accuracy"] == {"a": 0.9, "b": None}
    assert summary(replace(result, evaluations=[]))["accuracy"] == {"mean": None}


def test_each_device_has_an_accuracy_of_its_own(result: RunResult) -> None:
    accuracy = {IDS[0]: 0.9, IDS[1]: 0.7, IDS[2]: 0.1, IDS[3]: 0.75}
    assert summary(result)["device_accuracy"] == accuracy
    nothing = replace(result, evaluations=measured((0, 0, 0)))
    assert summary(nothing)["device_accuracy"] == {IDS[0]: None}


def test_where_devices_use_models_of_their_own_the_received_ones_are_told_of_beside_them(result: RunResult) -> None:
    assert summary(result)["received_accuracy"] is None
    evaluations = measured((0, 9, 10), (1, 7, 10), (2, 1, 10), (3, 30, 40))
    for evaluation, hits in zip(evaluations, (5, 4, 3, 2), strict=True):
        evaluation.has_received = True
        evaluation.received_sums.append(hits)
    told = summary(replace(result, evaluations=evaluations))
    assert told["accuracy"]["lps-0"] == 16 / 20
    assert told["received_accuracy"] == {"lps-0": 9 / 20, "lps-1": 5 / 50, "mean": pytest.approx((0.45 + 0.1) / 2)}
    evaluations[1].ClearField("received_sums")  # an own method need not measure the received model on each device
    without = summary(replace(result, evaluations=evaluations))
    assert without["received_accuracy"]["lps-0"] == 5 / 10


def test_what_devices_keep_for_themselves_is_told_by_its_checksum_and_where_it_was_lost(result: RunResult) -> None:
    assert (summary(result)["personal_sha256"], summary(result)["lost_state"]) == ({}, [])
    evaluations = measured((0, 9, 10), (1, 7, 10))
    evaluations[1].personal_sha256 = "ab" * 32
    told = summary(replace(result, evaluations=evaluations, lost_state=[IDS[1]]))
    assert told["personal_sha256"] == {IDS[1]: "ab" * 32}
    assert told["lost_state"] == [IDS[1]]


def test_where_clusters_span_lpss_the_record_says_which_devices_hang_where(result: RunResult, tmp_path: Path) -> None:
    assert summary(result)["homes"] is None
    clusters = {"cluster-0": CLUSTERS["lps-0"], "cluster-1": CLUSTERS["lps-1"]}
    homes = {"lps-0": IDS[:4], "lps-1": IDS[4:]}
    models = {"cluster-0": "sha of 0", "cluster-1": "sha of 1"}
    spanning = replace(result, clusters=clusters, homes=homes, model_sha256=models)
    told = summary(spanning)
    assert (told["homes"], told["model_sha256"]) == (homes, models)
    assert told["accuracy"] == {"cluster-0": 0.8, "cluster-1": 0.62, "mean": pytest.approx(0.71)}
    written(tmp_path, spanning)
    read = load_record(tmp_path)
    assert read.summary.by_lps == {name: tuple(ids) for name, ids in homes.items()}
    assert [found.lps_id for found in read.rounds] == ["lps-0", "lps-0"]


def test_bytes_are_added_by_link_and_kept_by_kind(result: RunResult) -> None:
    told = summary(result)
    assert told["bytes"] == {
        "device-gps": {"up": 64, "down": 0},
        "device-lps": {"up": 511, "down": 900},
        "lps-gps": {"up": 0, "down": 0},
    }
    assert told["bytes_by_kind"]["device-lps"] == {
        "control": {"up": 11, "down": 0},
        "model": {"up": 0, "down": 900},
        "update": {"up": 500, "down": 0},
    }


def test_bytes_of_training_are_those_of_the_lps_rounds(result: RunResult, tmp_path: Path) -> None:
    """Two rounds of 1,000 bytes up and 2,000 down. The link has more: the final models, which devices only measure."""
    written(tmp_path, result)
    told = json.loads((tmp_path / "summary.json").read_text())
    assert told["training_bytes"] == {"up": 2000, "down": 4000}
    assert load_record(tmp_path).summary.traffic["device-lps, training"].total == 6000


def test_who_was_excluded_is_told_with_stage_and_reason(result: RunResult) -> None:
    assert summary(result)["excluded"] == [{"device": IDS[4], "from": "round 3", "reason": "missed the deadline"}]


def test_the_record_says_what_was_run(result: RunResult) -> None:
    told, experiment = summary(result), result.experiment
    assert (told["run_id"], told["seed"], told["method"], told["devices"]) == (experiment.run_id, 7, "one_shot", 5)
    assert told["device_tasks"] == TASKS
    assert told["experiment_sha256"] == experiment.digest
    assert told["model_sha256"] == {"lps-0": "sha of lps-0", "lps-1": "sha of lps-1"}


# --- the adjusted Rand index --------------------------------------------------------------------------------


def test_clusters_that_are_the_tasks_have_index_1() -> None:
    assert adjusted_rand_index({"lps-0": IDS[3:], "lps-1": IDS[:3]}, TASKS) == 1.0


def test_one_device_misplaced_of_five() -> None:
    # pairs together: 3 + 1 by task, 3 + 1 by cluster, 1 + 1 in both, of 10; expected 4·4/10: (2 − 1.6) / (4 − 1.6)
    assert adjusted_rand_index({"lps-0": IDS[:2], "lps-1": IDS[2:]}, TASKS) == pytest.approx(0.4 / 2.4)


def test_where_no_truth_is_known_there_is_no_index() -> None:
    assert adjusted_rand_index(CLUSTERS, None) is None
    assert adjusted_rand_index({}, TASKS) is None


# --- files --------------------------------------------------------------------------------------------------


def test_the_adjusted_rand_index_is_scikit_learns() -> None:
    from sklearn.metrics import adjusted_rand_score

    rng = np.random.default_rng(0)
    for devices, clusters, tasks in [(2, 1, 1), (3, 3, 3), (7, 1, 3), (9, 4, 1), (20, 3, 4), (200, 10, 12)]:
        found, true = rng.integers(0, clusters, devices).tolist(), rng.integers(0, tasks, devices).tolist()
        members = {f"lps-{c}": [f"d{i}" for i in range(devices) if found[i] == c] for c in set(found)}
        index = adjusted_rand_index(members, {f"d{i}": f"t{task}" for i, task in enumerate(true)})
        assert index == pytest.approx(adjusted_rand_score(true, found), abs=1e-12)


def test_rounds_are_counted_from_one_and_unmeasured_ones_left_empty(result: RunResult) -> None:
    rows = list(csv.DictReader(io.StringIO("".join(rounds_csv(ROWS, CLASSIFICATION)))))
    assert tuple(rows[0]) == RoundsTable(CLASSIFICATION.metrics).columns
    assert list(rows[0].values())[:7] == ["1", "1", "lps-0", "2", "20", "0.250000", "0.500000"]
    assert list(rows[0].values())[7:] == ["0.1235", "1000", "2000", "0.250000", "0.750000", "", "50"]
    assert list(rows[1].values())[:3] == ["1", "2", "lps-0"]
    assert {rows[1][name] for name in ("loss", "accuracy", "lowest_accuracy", "highest_accuracy")} == {""}


def test_a_model_that_only_some_devices_measured_has_its_value_under_a_name_of_its_own() -> None:
    row = rounds_pb2.LpsRound(
        home_id="lps-0", evaluated_examples=4, loss_sum=8, sums=[1], lowest=0, highest=0.5, is_of_cohort=True
    )
    (written,) = csv.DictReader(io.StringIO("".join(rounds_csv([row], CLASSIFICATION))))
    assert {written[name] for name in ("loss", "accuracy", "lowest_accuracy", "highest_accuracy")} == {""}
    assert (written["cohort_accuracy"], written["measured_examples"]) == ("0.250000", "4")


def test_a_small_loss_keeps_six_digits() -> None:
    row = rounds_pb2.LpsRound(home_id="lps-0", evaluated_examples=3, loss_sum=1e-6, sums=[0])
    (written,) = csv.DictReader(io.StringIO("".join(rounds_csv([row], CLASSIFICATION))))
    assert (written["loss"], written["accuracy"]) == ("3.33333e-07", "0.000000")


def test_relevance_is_written_so_that_it_reads_back_to_the_bit() -> None:
    matrix = np.array([[1.0, 1 / 3], [1 / 3, 1.0]])
    rows = list(csv.reader(relevance_csv(matrix, ["x", "y"])))
    assert rows[0] == ["device", "x", "y"]
    assert [row[0] for row in rows[1:]] == ["x", "y"]
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], float), matrix)


def test_the_emulator_reads_what_the_gps_writes(result: RunResult, tmp_path: Path) -> None:
    written(tmp_path, result)
    read = load_record(tmp_path)
    assert read.name == "five"
    assert read.summary.clusters == {name: tuple(ids) for name, ids in CLUSTERS.items()}
    assert [found.lps_round for found in read.rounds] == [1, 2]
    assert read.relevance is not None
    assert read.relevance.ids == tuple(IDS)
    assert parse_experiment(read.experiment_yaml) == result.experiment


def test_energy_is_worked_out_once_for_all_that_say_it(
    result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out: list[list[Spent]] = []

    def once(*given: Any) -> list[Spent]:
        worked_out.append(spent_by(*given))
        return worked_out[-1]

    monkeypatch.setattr(timing, "spent_by", once)
    counting = parse_experiment(TEXT, overrides=["clock=virtual", "energy={radio: lte}"])
    flow = rounds_pb2.Flow(child=1, up_bytes=125_000)
    rows = [rounds_pb2.LpsRound(home_id="lps-0", times=rounds_pb2.RoundTimes(flows=[flow]))]
    written(tmp_path, replace(result, experiment=counting), rows)
    assert len(worked_out) == 1
    said = json.loads((tmp_path / "summary.json").read_text())["energy"]
    assert said["joules"] == said["up"] == pytest.approx(0.43839)  # a megabit
    assert "device-001" in (tmp_path / "energy.csv").read_text()


def test_a_failed_run_leaves_a_record_too(result: RunResult, tmp_path: Path) -> None:
    failed = replace(
        result, status="failed", reason="quorum", clusters={}, evaluations=[], model_sha256={}, relevance=None
    )
    written(tmp_path, failed, [])
    assert not (tmp_path / "relevance.csv").exists()
    told = json.loads((tmp_path / "summary.json").read_text())
    assert (told["status"], told["reason"], told["adjusted_rand_index"]) == ("failed", "quorum", None)
    assert load_record(tmp_path).summary.reason == "quorum"


# --- time ---------------------------------------------------------------------------------------------------


def test_phases_last_until_the_next_begins() -> None:
    seconds = wall_seconds({"enrolment": 100.0, "relevance": 103.0, "grouping": 104.0, "training": 104.5})
    assert (seconds["enrol"], seconds["relevance"], seconds["group"]) == (3.0, 1.0, 0.5)
    assert seconds["total"] == pytest.approx(4.5 + seconds["train"])


def test_a_run_without_profiles_spends_no_time_on_relevance() -> None:
    seconds = wall_seconds({"enrolment": 100.0, "grouping": 104.0, "training": 104.5})
    assert (seconds["enrol"], seconds["relevance"], seconds["group"]) == (4.0, 0.0, 0.5)
