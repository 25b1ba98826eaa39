"""An LPS that comes back without its files, as a pod without a volume does, or with old ones: its devices help."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.support.hand_started import Processes
from tests.support.programs import events, http_get
from tests.support.records import summary_of

pytestmark = pytest.mark.kills

EXPERIMENT = """
name: lost-state
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 40}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 40}
model: {name: mlp, hidden: [16]}
method: {name: oracle}
training: {global_rounds: 60, lps_rounds_per_global_round: 3, local_steps: 1, batch_size: 16}
"""


def models(processes: Processes) -> dict[str, str]:
    summary = summary_of(processes.record())
    assert summary["status"] == "completed"
    return dict(summary["model_sha256"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    with Processes(tmp_path_factory.mktemp("lost-state") / "undisturbed", EXPERIMENT) as processes:
        processes.lps(0)
        processes.lps(1)
        processes.devices("0-3")
        return models(processes)


@pytest.mark.parametrize("hosts", [("0-3",), ("0,2", "1,3")])
def test_an_lps_without_its_files_goes_on_with_the_model_of_its_devices(
    tmp_path: Path, undisturbed: dict[str, str], hosts: tuple[str, ...]
) -> None:
    state = tmp_path / "run" / "lps-0"
    with Processes(tmp_path / "run", EXPERIMENT) as processes:
        first = processes.lps(0)
        processes.lps(1)
        for indexes in hosts:
            processes.devices(indexes)
        for done in (4, 10, 17):
            processes.until_round(done)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
            if done == 4:
                shutil.copytree(state, tmp_path / "old")
            shutil.rmtree(state)
            if done == 17:
                shutil.copytree(tmp_path / "old", state)
            first = processes.lps(0)
            processes.until_said(max((tmp_path / "run").glob("lps-0.*.log")).name, "taken_over")
        assert models(processes) == undisturbed


def test_an_lps_without_its_files_is_ready_once_its_devices_are_not_alone_with_its_model(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", EXPERIMENT) as processes:
        first = processes.lps(0)
        processes.lps(1)
        devices = processes.devices("0-3")
        processes.until_round(4)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        devices.process.send_signal(signal.SIGSTOP)
        shutil.rmtree(tmp_path / "run" / "lps-0")
        first = processes.lps(0)
        http = first.addresses()["http"]
        processes.until_said("lps-0.2.log", "cluster_served")
        assert http_get(http, "/readyz")[0] == 503
        devices.process.send_signal(signal.SIGCONT)
        processes.until_said("lps-0.2.log", "taken_over")
        processes.until_round(6)
        assert http_get(http, "/readyz")[0] == 200


def test_a_run_whose_cluster_is_nowhere_any_more_stops_and_says_so(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", EXPERIMENT) as processes:
        first = processes.lps(0)
        processes.lps(1)
        devices = processes.devices("0-3")
        processes.until_round(4)
        for program in (first, devices):
            program.process.send_signal(signal.SIGKILL)
            program.process.wait()
        shutil.rmtree(tmp_path / "run" / "lps-0")
        processes.lps(0)
        processes.devices("0-3")
        processes.until(lambda status: status.has_record)
    (record,) = (tmp_path / "run" / "gps").glob("*/record")
    summary = summary_of(record)
    assert summary["status"] == "failed"
    assert "none of its devices holds a model" in summary["reason"]
    told = [event["event"] for event in events(tmp_path / "run" / "lps-0.2.log")]
    assert "taken_over" not in told
