"""Processes that stand still for longer than a deadline: left out, named, not counted twice, and welcome back."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import events, run_to_the_end
from tests.support.records import rows_of, summary_of

pytestmark = pytest.mark.kills

# more rounds than go by until a fault has come about on a busy machine
EXPERIMENT = """
name: deadlines
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 40}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 40}
model: {name: mlp, hidden: [16]}
method: {name: oracle}
training: {global_rounds: 60, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 16}
deadlines:
  lps: {deadline_s: 1.5, quorum_ratio: 0.5}
  gps: {deadline_s: 4, quorum_ratio: 0.5}
faults:
  - {do: pause, process: device-003, for_s: 4, at: {global_round: 2}}
  - {do: pause, process: lps-0, for_s: 7, at: {global_round: 6}}
"""

PARENTS_PAUSED = """
  - {do: pause, process: lps-0, for_s: 4, at: {global_round: 2}}
  - {do: pause, process: gps, for_s: 12, at: {global_round: 6}}
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which a device's process and an LPS each stood still for a while."""
    folder = tmp_path_factory.mktemp("deadlines")
    (folder / "deadlines.yaml").write_text(EXPERIMENT)
    run_to_the_end(folder / "deadlines.yaml", folder / "run", processes=4)
    return folder / "run"


def excluded(record: Path, name: str) -> list[str]:
    summary = summary_of(record)
    return [gone["from"] for gone in summary["excluded"] if gone["device"] == name]


def rows(record: Path) -> list[dict[str, Any]]:
    return rows_of(record, "rounds.csv")


def test_a_device_that_stood_still_is_excluded_from_those_rounds_by_name(record: Path) -> None:
    assert excluded(record, "device-003")
    assert all(stage.startswith("round ") for stage in excluded(record, "device-003"))


def test_an_lps_that_stood_still_is_excluded_from_those_global_rounds_by_name(record: Path) -> None:
    assert excluded(record, "lps-0")
    assert all(stage.startswith("global round ") for stage in excluded(record, "lps-0"))


def test_both_are_there_again_at_the_end(record: Path) -> None:
    assert "round 60" not in excluded(record, "device-003")
    assert "global round 60" not in excluded(record, "lps-0")
    assert set(summary_of(record)["model_sha256"]) == {"lps-0", "lps-1"}


def test_nobody_counts_twice(record: Path) -> None:
    assert len({(row["lps_id"], row["lps_round"]) for row in rows(record)}) == len(rows(record))
    for row in rows(record):
        assert int(row["devices"]) in {1, 2}
        assert int(row["num_examples"]) == 40 * int(row["devices"])


def test_the_rounds_without_it_have_one_device_less(record: Path) -> None:
    missed = {stage.removeprefix("round ") for stage in excluded(record, "device-003")}
    assert {row["devices"] for row in rows(record) if row["lps_id"] == "lps-1" and row["lps_round"] in missed} == {"1"}


def test_what_it_sent_too_late_was_answered_and_it_went_on(record: Path) -> None:
    log = events(next((record / "logs").glob("devices-3-*.log")))
    assert not [event for event in log if event["level"] == "error" or event["event"] == "device_stopped"]
    assert any(event["event"] == "finished" for event in log)


def test_the_missing_are_named_once_a_round_in_the_log_of_who_waited(record: Path) -> None:
    reached = [event for event in events(record / "logs" / "lps-1.log") if event["event"] == "deadline_reached"]
    assert reached
    assert all("device-003" in event["missing"] for event in reached)
    assert len({event["round"] for event in reached}) == len(reached)


def test_the_devices_of_the_lps_that_stood_still_trained_on_at_the_other(record: Path) -> None:
    adoptions = summary_of(record)["adoptions"]
    assert (adoptions[0]["cluster"], adoptions[0]["by"]) == ("lps-0", "lps-1")


def test_a_parent_that_stood_still_leaves_nobody_out(tmp_path: Path) -> None:
    """The LPS stands still for longer than its own deadline, and then the GPS, even until connections break."""
    text = EXPERIMENT.partition("faults:")[0].replace("deadline_s: 4", "deadline_s: 7") + "faults:" + PARENTS_PAUSED
    (tmp_path / "paused.yaml").write_text(text)
    run_to_the_end(tmp_path / "paused.yaml", tmp_path / "run", processes=4)
    summary = summary_of(tmp_path / "run")
    assert "did not happen" not in (tmp_path / "run" / "logs" / "faults.log").read_text()
    assert (summary["excluded"], summary["adoptions"]) == ([], [])
