"""Runs whose processes are killed, paused and cut off end with the models of the run that was left alone.

A few moments of each tier at once; `benchmarks/kill_matrix.py` draws many more, one or two a run.
"""

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import Program, events, run_to_the_end, summary_with_restarts

pytestmark = pytest.mark.kills

# two chunks of model and update, so that there is a middle to be killed in
EXPERIMENT = """
name: kills
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 40}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 40}
model: {name: mlp, hidden: [4200]}
method: {name: one_shot, clusters: 2}
training: {global_rounds: 2, lps_rounds_per_global_round: 2, local_steps: 1, batch_size: 16}
"""


def kill(process: str, point: str, **at: int) -> dict[str, Any]:
    return {"do": "kill", "process": process, "at": {"point": point, **at}}


BEFORE_TRAINING = [
    kill("gps", "enrolment", count=2),
    kill("gps", "profile_relay", count=3),
    kill("device-000", "profile_relay", count=2),
    kill("device-003", "relevance", count=2),  # its second answer
    kill("gps", "grouping"),
]
IN_TRAINING = [
    kill("lps-0", "upload", round=1),  # the first chunk of the first update is in the sum
    kill("device-002", "download", round=1),
    kill("lps-1", "state_write", count=7),
    kill("gps", "aggregation", round=1),
    kill("device-001", "upload", round=3),  # the last round
    kill("lps-1", "aggregation", round=4),  # the devices have measured the final model
]
# of a small model an LPS writes the start of a round while the round is open: devices are ahead of what is on disk
AHEAD = {
    "devices have it": kill("lps-0", "download", round=2, count=2),  # the model that global round 1 begins with
    "half a model": kill("lps-0", "state_write", count=14),  # of LPS round 4
    "a report alone": kill("lps-1", "state_write", count=16),  # of LPS round 5, its model is not there
    "shared layers sent": kill("gps", "download", round=2),  # to one LPS, and not to the other
    "half the shared layers": kill("gps", "state_write", count=9),  # of global round 4
}
LINKS = [
    {"do": "cut", "link": "device-lps", "for_s": 0.5, "at": {"global_round": 1}},
    {"do": "cut", "link": "lps-gps", "for_s": 0.5, "at": {"global_round": 2}},
    {"do": "pause", "process": "lps-0", "for_s": 0.5, "at": {"global_round": 2}},
    {"do": "kill", "process": "gps", "at": {"phase": "evaluation"}},
]


# three LPSs with four devices each, and the kills of an LPS and of the GPS at each point of a round
RULED = (
    EXPERIMENT[: EXPERIMENT.index("partition:")]
    + """
partition: {kind: iid, devices: 12, examples_per_device: 40}
model: {name: mlp, hidden: [4200]}
method: fedavg
topology: {lps: 3}
training: {global_rounds: 3, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 16}
"""
)
AT_EACH_POINT = [
    *(kill("lps-1", point, round=1) for point in ("download", "upload", "aggregation")),
    *(kill("gps", point, round=2) for point in ("download", "upload", "aggregation")),
    kill("lps-2", "state_write", count=5),
    kill("gps", "state_write", count=7),
]


SMALL = EXPERIMENT.replace("[4200]", "[16]").replace("global_rounds: 2,", "global_rounds: 5,")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kills") / "kills.yaml"
    path.write_text(EXPERIMENT)
    return path


def start(file: Path, out: Path, *words: str) -> Program:
    return Program("emulator", "run", *words, "--json", log=out.with_suffix(".log"))


def finished(file: Path, out: Path, faults: list[dict[str, Any]], processes: int = 2) -> Mapping[str, Any]:
    """The summary of a run with these faults."""
    given = f"faults={json.dumps(faults)}"
    return summary_with_restarts(run_to_the_end(file, out, "--set", given, processes=processes))


@pytest.fixture(scope="module")
def undisturbed(file: Path) -> Mapping[str, Any]:
    return finished(file, file.parent / "undisturbed", [])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def small_undisturbed(small: Path) -> Mapping[str, Any]:
    return finished(small, small.parent / "undisturbed", [])


@pytest.mark.parametrize(
    ("name", "faults", "restarts"),
    [("before", BEFORE_TRAINING, 5), ("training", IN_TRAINING, 6)],
)
def test_killed_processes_change_no_bit_of_any_model(
    file: Path, undisturbed: Mapping[str, Any], name: str, faults: list[dict[str, Any]], restarts: int
) -> None:
    summary = finished(file, file.parent / name, faults)
    assert len(summary["restarts"]) == restarts
    assert summary["model_sha256"] == undisturbed["model_sha256"]
    assert (summary["run_id"], summary["excluded"]) == (undisturbed["run_id"], [])


@pytest.mark.parametrize(
    ("at_lps", "at_gps"),
    [
        ("median", "trimmed_mean"),
        ("trimmed_mean", "multi_krum"),
        ("multi_krum", "geometric_median"),
        ("geometric_median", "clipped_mean"),
        ("clipped_mean", "median"),
        ("{name: trusted, children: [device-000, device-001, device-002]}", "{name: trusted, children: [lps-0]}"),
    ],
)
def test_parents_with_updates_on_disk_are_killed_at_each_point_in_any_number_of_processes(
    at_lps: str, at_gps: str, tmp_path: Path
) -> None:
    path = tmp_path / "ruled.yaml"
    path.write_text(RULED + f"aggregation: {{lps: {at_lps}, gps: {at_gps}}}\n")
    undisturbed = finished(path, tmp_path / "undisturbed", [], processes=1)
    for processes in (2, 5):
        summary = finished(path, tmp_path / str(processes), AT_EACH_POINT, processes)
        assert len(summary["restarts"]) == len(AT_EACH_POINT)
        assert (summary["model_sha256"], summary["excluded"]) == (undisturbed["model_sha256"], [])
        assert list((tmp_path / str(processes)).rglob("tmp*")) == []


@pytest.mark.parametrize("moment", AHEAD)
def test_a_parent_killed_while_it_writes_the_start_of_an_open_round_changes_no_bit(
    small: Path, small_undisturbed: Mapping[str, Any], moment: str
) -> None:
    summary = finished(small, small.parent / moment.replace(" ", "-"), [AHEAD[moment]])
    assert summary["restarts"] == [AHEAD[moment]["process"]]
    assert summary["model_sha256"] == small_undisturbed["model_sha256"]
    assert (summary["rounds"], summary["excluded"]) == (5, [])


def test_all_of_these_in_one_run_change_no_bit_either(small: Path, small_undisturbed: Mapping[str, Any]) -> None:
    summary = finished(small, small.parent / "all", list(AHEAD.values()))
    assert len(summary["restarts"]) == len(AHEAD)
    assert summary["model_sha256"] == small_undisturbed["model_sha256"]


def test_cut_and_slow_links_and_pauses_change_no_bit_of_any_model(file: Path, undisturbed: Mapping[str, Any]) -> None:
    summary = finished(file, file.parent / "links", LINKS)
    told = (file.parent / "links" / "logs" / "faults.log").read_text()
    assert "cut device-lps" in told
    assert summary["model_sha256"] == undisturbed["model_sha256"]


def statuses(program: Program) -> Iterator[dict[str, Any]]:
    return (line for line in program.lines() if line["event"] == "status")


def test_an_interrupted_run_is_resumed_from_its_folder(file: Path, undisturbed: Mapping[str, Any]) -> None:
    out = file.parent / "resumed"
    with start(file, out, str(file), "--out", str(out)) as program:
        next(status for status in statuses(program) if status["global_round"] >= 1)
        program.process.send_signal(signal.SIGKILL)
    assert not (out / "summary.json").exists()
    with start(file, out, "--resume", str(out)) as program:
        *_, last = program.lines()
        assert program.end() == 0, out.with_suffix(".log").read_text()
    assert last["summary"]["model_sha256"] == undisturbed["model_sha256"]
    assert any(event["event"] == "rounds_resumed" for event in events(out / "logs" / "gps.log"))
