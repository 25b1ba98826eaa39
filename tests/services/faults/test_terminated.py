"""SIGTERM and SIGINT from outside: exit code 0 after the run; before its end that of the signal, and a new life."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support.programs import Program, events, http_get, processes_of, wait_for_record
from tests.support.records import summary_of
from tests.support.tiers import SMALL, run_in_process, small

MANY_ROUNDS = "training.global_rounds=20"


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    path = folder / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def gps(file: Path, tmp_path: Path) -> Iterator[Program]:
    words = ("--experiment", str(file), "--state", str(tmp_path / "gps"))
    with Program("gps", *words, log=tmp_path / "gps.log") as program:
        yield program


@pytest.mark.runs
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_who_is_stopped_before_the_run_is_over_ends_as_if_the_signal_had_killed_it(
    file: Path, gps: Program, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    to_gps = ("--experiment", str(file), "--gps", gps.addresses()["grpc"])
    with ExitStack() as stack:
        words = ("--lps-id", "lps-0", "--state", str(tmp_path / "lps"))
        lps = stack.enter_context(Program("lps", *to_gps, *words, log=tmp_path / "lps.log"))
        device = stack.enter_context(Program("device", *to_gps, "--devices", "0", log=tmp_path / "device.log"))
        for program in (lps, device):
            program.addresses()
        for program in (lps, device, gps):
            program.process.send_signal(number)
            assert program.end() == code, program.log_path.read_text()


@pytest.mark.runs
def test_who_is_stopped_after_the_run_ends_with_exit_code_0(file: Path, gps: Program, tmp_path: Path) -> None:
    address = gps.addresses()["grpc"]
    to_gps = ("--experiment", str(file), "--gps", address)
    with ExitStack() as stack:
        for name in ("lps-0", "lps-1"):
            words = ("--lps-id", name, "--state", str(tmp_path / name))
            stack.enter_context(Program("lps", *to_gps, *words, log=tmp_path / f"{name}.log"))
        device = stack.enter_context(Program("device", *to_gps, "--devices", "0-4", log=tmp_path / "device.log"))
        assert device.end() == 0
        wait_for_record(address)
        gps.process.terminate()
        assert gps.end() == 0


@pytest.mark.runs
@pytest.mark.parametrize("stays", [True, False])
def test_a_device_of_a_stopped_run_idles_where_it_is_told_to_stay_and_ends_elsewhere(
    file: Path, gps: Program, tmp_path: Path, stays: bool
) -> None:
    address = gps.addresses()["grpc"]
    words = ("--experiment", str(file), "--gps", address, "--devices", "0-4", *["--stay"] * stays)
    with Program("device", *words, log=tmp_path / "device.log") as device:
        http = device.addresses()["http"]
        with grpc.insecure_channel(address) as channel:
            RunServiceStub(channel).StopRun(pb.StopRunRequest(reason="the disk is full"), timeout=30)
        if stays:
            has_heard = lambda: "run_stopped" in [event["event"] for event in events(tmp_path / "device.log")]  # noqa: E731
            wait_until(has_heard, lambda: device.process.poll() is None)
            assert http_get(http, "/readyz")[0] == 200
            device.process.terminate()
        assert device.end() == 4


def wait_until(holds: Callable[[], bool], may: Callable[[], bool]) -> None:
    """Look until something holds; it fails where that may not be any more, or takes a minute."""
    deadline = time.monotonic() + 60
    while not holds():
        assert may()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.kills
def test_a_device_process_stopped_from_outside_is_started_again_and_no_bit_changes(file: Path, tmp_path: Path) -> None:
    words = ("run", str(file), "--out", str(tmp_path / "run"), "--json", "--set", MANY_ROUNDS)
    with Program("emulator", *words, "--device-processes", "2", log=tmp_path / "log") as run:
        lines = run.lines()
        next(said for said in lines if said["event"] == "status" and said["phase"] in {"relevance", "training"})
        os.kill(processes_of(run.mark, "device", "0-2")[0], signal.SIGTERM)
        restarts = [(said["process"], said["cause"]) for said in lines if said["event"] == "restart"]
        assert run.end() == 0, run.log_path.read_text()
    assert restarts == [("devices-0-2", "exit code 143")]
    summary = summary_of(tmp_path / "run")
    undisturbed = run_in_process(small(MANY_ROUNDS), tmp_path / "undisturbed").summary
    assert summary["model_sha256"] == undisturbed.model_sha256
    assert summary["excluded"] == []


@pytest.mark.kills
@pytest.mark.parametrize(
    ("program", "died"), [("device", {"devices-0-2", "devices-3-4"}), ("lps", {"gps", "lps-0", "lps-1"})]
)
def test_processes_whose_nursery_is_killed_are_started_again_and_no_bit_changes(
    file: Path, tmp_path: Path, program: str, died: set[str]
) -> None:
    words = ("run", str(file), "--out", str(tmp_path / "run"), "--json", "--set", MANY_ROUNDS)
    with Program("emulator", *words, "--device-processes", "2", log=tmp_path / "log") as run:
        lines = run.lines()
        next(said for said in lines if said["event"] == "status" and said["phase"] == "training")
        os.kill(processes_of(run.mark, "fedstrata.process.nursery", program)[0], signal.SIGKILL)
        restarts = [said for said in lines if said["event"] == "restart"]
        assert run.end() == 0, run.log_path.read_text()
    assert {said["process"] for said in restarts} <= died
    assert {said["cause"] for said in restarts} == {"SIGKILL"}
    undisturbed = run_in_process(small(MANY_ROUNDS), tmp_path / "undisturbed").summary
    assert summary_of(tmp_path / "run")["model_sha256"] == undisturbed.model_sha256
