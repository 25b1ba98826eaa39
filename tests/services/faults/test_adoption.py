"""An LPS that stays away beyond the deadline: another adopts its devices, and they go back when it is there again."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hand_started import Processes
from tests.support.programs import events
from tests.support.records import rows_of, summary_of

pytestmark = pytest.mark.kills

EXPERIMENT = """
name: adoption
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 40}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 40}
model: {name: mlp, hidden: [16]}
method: {name: oracle}
training: {global_rounds: ROUNDS, lps_rounds_per_global_round: 2, local_steps: 1, batch_size: 16}
deadlines:
  lps: {deadline_s: 5, quorum_ratio: 0.5}
  gps: {deadline_s: 3, quorum_ratio: 0.5}
"""
LONG = 300  # more rounds than go by while an LPS comes back


def experiment(rounds: int) -> str:
    return EXPERIMENT.replace("ROUNDS", str(rounds))


def handovers(record: Path) -> list[tuple[str, str]]:
    return [(told["cluster"], told["by"]) for told in summary_of(record)["adoptions"]]


def rows(record: Path) -> list[dict[str, str]]:
    return rows_of(record, "rounds.csv")


def assert_whole(record: Path) -> None:
    """Both clusters are in the record with their models, and nobody counts twice in any round."""
    summary = summary_of(record)
    assert set(summary["model_sha256"]) == set(summary["clusters"]) == {"lps-0", "lps-1"}
    assert {path.name for path in (record / "models").iterdir()} == {"lps-0.safetensors", "lps-1.safetensors"}
    assert None not in summary["accuracy"].values()
    counts = Counter((row["lps_id"], row["lps_round"]) for row in rows(record))
    assert set(counts.values()) == {1}
    assert all(int(row["num_examples"]) == 40 * int(row["devices"]) <= 80 for row in rows(record))
    last = {row["lps_id"]: int(row["devices"]) for row in rows(record)}
    assert last == {"lps-0": 2, "lps-1": 2}


def assert_nobody_stopped(processes: Processes) -> None:
    for log in processes.folder.glob("*.log"):
        told = [event for event in events(log) if event["level"] == "error"]
        assert not told, f"{log.name}: {told}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The models of a short run in which nobody was away."""
    with Processes(tmp_path_factory.mktemp("adoption") / "undisturbed", experiment(3)) as processes:
        processes.lps(0)
        processes.lps(1)
        processes.devices("0-3")
        record = processes.record()
    assert handovers(record) == []
    return dict(summary_of(record)["model_sha256"])


def test_the_devices_of_an_lps_that_never_comes_train_at_another_with_the_same_result(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    with Processes(tmp_path / "run", experiment(3)) as processes:
        processes.lps(1)
        processes.devices("0-3")
        record = processes.record()
    assert handovers(record) == [("lps-0", "lps-1")]
    assert summary_of(record)["excluded"] == []
    assert summary_of(record)["model_sha256"] == undisturbed
    assert_whole(record)
    assert_nobody_stopped(processes)


@pytest.fixture(scope="module", params=["killed", "stopped"])
def away_and_back(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A finished run whose lps-0 was killed, or stood still, until lps-1 had adopted its devices, and came back."""
    with Processes(tmp_path_factory.mktemp(request.param) / "run", experiment(LONG)) as processes:
        first = processes.lps(0)
        processes.lps(1)
        processes.devices("0-3")
        processes.until_round(5)
        first.process.send_signal(signal.SIGKILL if request.param == "killed" else signal.SIGSTOP)
        try:
            processes.until_said("lps-1.1.log", "taken_over")
        finally:
            if request.param == "stopped":
                first.process.send_signal(signal.SIGCONT)
        if request.param == "killed":
            processes.lps(0)
        processes.record()
        yield processes


def back(processes: Processes) -> Path:
    """The log of lps-0 after it has come back."""
    return max(processes.folder.glob("lps-0.*.log"))


def test_an_lps_that_was_away_gets_its_devices_back(away_and_back: Processes) -> None:
    record = away_and_back.record()
    assert handovers(record) == [("lps-0", "lps-1"), ("lps-0", "lps-0")]
    assert [
        event["event"] for event in events(back(away_and_back)) if event["event"] in {"taken_over", "reported"}
    ] == [
        "taken_over",
        "reported",
    ]
    dropped = [event for event in events(away_and_back.folder / "lps-1.1.log") if event["event"] == "cluster_dropped"]
    assert [event["cluster"] for event in dropped] == ["lps-0"]


def test_both_clusters_have_their_models_and_nobody_counted_twice(away_and_back: Processes) -> None:
    assert_whole(away_and_back.record())


def test_the_clusters_own_layers_came_from_a_device_both_times(away_and_back: Processes) -> None:
    told = [*events(away_and_back.folder / "lps-1.1.log"), *events(back(away_and_back))]
    assert [event["event"] for event in told].count("model_taken_over") == 2
    assert "model_held_by_no_device" not in [event["event"] for event in told]


def test_the_rounds_it_missed_are_named_and_no_process_stopped_for_it(away_and_back: Processes) -> None:
    gone = summary_of(away_and_back.record())["excluded"]
    assert {entry["device"] for entry in gone if entry["from"].startswith("global round")} == {"lps-0"}
    assert 1 <= sum(entry["device"] == "lps-0" for entry in gone) <= 8
    assert_nobody_stopped(away_and_back)
