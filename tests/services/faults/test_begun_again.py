"""A run that begins again, because the GPS's state is gone or the run failed, uses nothing of an earlier attempt."""

import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedstrata.errors import EXIT_INTERRUPTED
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support.hand_started import Processes
from tests.support.programs import Program
from tests.support.records import summary_of

pytestmark = pytest.mark.kills

EXPERIMENT = """
name: begun-again
partition: {kind: iid, devices: 3, examples_per_device: 40}
model: {name: mlp, hidden: [16]}
method: {name: ditto}
training: {global_rounds: 60, lps_rounds_per_global_round: 2, local_steps: 1, batch_size: 16}
"""

SECRETS = """
privacy: {noise: protection, updates: {epsilon: 8, clip: 1, covers: sum}}
secure_aggregation: {min_devices: 3}
"""


def start_children(processes: Processes) -> list[Program]:
    """Start the LPS and the devices, which keep their state in the same folders in every life."""
    return [processes.lps(0), processes.devices("0-2", keeps_state=True)]


def kill(*programs: Program) -> None:
    for program in programs:
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()


def result(processes: Processes) -> dict[str, Any]:
    summary = summary_of(processes.record())
    assert summary["status"] == "completed"
    return {key: summary[key] for key in ("model_sha256", "personal_sha256", "lost_state", "excluded")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with Processes(tmp_path_factory.mktemp("begun-again") / "undisturbed", EXPERIMENT) as processes:
        start_children(processes)
        return result(processes)


def test_a_completed_run_whose_gps_lost_its_state_can_be_repeated(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with Processes(tmp_path / "run", EXPERIMENT) as processes:
        children = start_children(processes)
        assert result(processes) == undisturbed
        kill(processes.first_gps, *children)
        shutil.rmtree(tmp_path / "run" / "gps")
        processes.gps_again()
        start_children(processes)
        assert result(processes) == undisturbed


def test_devices_give_no_other_noise_and_no_other_sums_in_another_attempt(tmp_path: Path) -> None:
    experiment = EXPERIMENT.replace("ditto", "fedavg").replace("global_rounds: 60", "global_rounds: 3") + SECRETS
    with Processes(tmp_path / "run", experiment) as processes:
        children = start_children(processes)
        first = result(processes)
        kill(processes.first_gps, *children)
        shutil.rmtree(tmp_path / "run" / "gps")
        processes.gps_again()
        start_children(processes)
        assert result(processes) == first  # with other noise, the models would differ


@pytest.mark.parametrize("are_alive", [False, True])
def test_a_run_whose_gps_loses_its_state_begins_again(
    tmp_path: Path, undisturbed: dict[str, Any], are_alive: bool
) -> None:
    with Processes(tmp_path / "run", EXPERIMENT) as processes:
        children = start_children(processes)
        processes.until_round(5)
        kill(processes.first_gps, *([] if are_alive else children))
        shutil.rmtree(tmp_path / "run" / "gps")
        processes.gps_again()
        if are_alive:  # what restarts them is Kubernetes, systemd or the local launcher
            for child in children:
                assert child.end() == EXIT_INTERRUPTED, child.log_path.read_text()
                assert "begins again" in child.errors()[-1]
        start_children(processes)
        assert result(processes) == undisturbed


def test_a_repeated_run_goes_on_without_its_word_and_with_another(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with Processes(tmp_path / "run", EXPERIMENT) as processes:
        children = start_children(processes)
        processes.until_round(5)
        with grpc.insecure_channel(processes.gps) as channel:
            RunServiceStub(channel).StopRun(pb.StopRunRequest(reason="to repeat it"), timeout=30)
        processes.until(lambda status: status.has_record)
        kill(processes.first_gps, *children)
        for done, words in ((4, ("--again", "T1")), (9, ()), (14, ("--again", "T2"))):
            programs = [processes.gps_again(*words), *start_children(processes)]
            processes.until_round(done)
            kill(*programs)
        processes.gps_again()
        start_children(processes)
        assert result(processes) == undisturbed
    assert len(list((tmp_path / "run" / "gps").iterdir())) == 2  # the failed run's folder, and the repeated run's
