"""gps and lps run where torch is not installed, and are small."""

import re
from pathlib import Path

import pytest

from tests.support.programs import BigRun, Program


def test_a_whole_run_needs_no_torch_at_the_gps_and_the_lps(big_run: BigRun) -> None:
    assert big_run.summary["status"] == "completed"
    assert big_run.summary["devices"] == 2
    for tier in ("gps", "lps"):
        assert "libtorch" not in Path(f"/proc/{big_run.pids[tier]}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{big_run.pids['device']}/maps").read_text()


def test_an_idle_lps_takes_less_than_100_mb(big_run: BigRun) -> None:
    resident = re.search(r"VmRSS:\s+(\d+) kB", big_run.idle_status)
    assert resident
    assert int(resident[1]) * 1024 < 100e6


@pytest.mark.parametrize("module", ["gps", "lps"])
def test_without_torch_they_start_as_far_as_their_own_errors(module: str, tmp_path: Path) -> None:
    with Program(module, log=tmp_path / "log", without=["torch"]) as program:
        assert program.end() == 2
    assert "the following arguments are required" in program.errors()[-1]


def test_the_environment_of_these_tests_does_refuse_torch(tmp_path: Path) -> None:
    with Program("device", "--help", log=tmp_path / "log", without=["torch"]) as program:
        assert program.end() == 1
    assert program.errors()[-1] == "ModuleNotFoundError: No module named 'torch': refused by the test"
