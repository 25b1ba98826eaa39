"""A disk that fills up: the run stops with the file's name, keeps what it had, and goes on when there is room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.faults.test_kills import EXPERIMENT
from tests.support.programs import Program
from tests.support.records import summary_of

pytestmark = pytest.mark.kills

NO_RESULT = 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 7 MB: enough for the first rounds of two LPSs with models of 1.26 MB, and not for the second."""
    if os.geteuid() != 0:
        pytest.skip(
            "only root can mount a small disk; tests/unit/store/test_model_file.py has the limit on files instead"
        )
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.timeout(300)
def test_a_full_disk_stops_the_run_by_name_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    file, out = tmp_path / "kills.yaml", small_disk / "run"
    file.write_text(EXPERIMENT)
    with Program("emulator", "run", str(file), "--out", str(out), "--quiet", log=tmp_path / "full.log") as program:
        assert program.end() == NO_RESULT
    (reason,) = [line for line in (tmp_path / "full.log").read_text().splitlines() if line.startswith("error:")]
    assert "No space left on device" in reason
    assert str(out / "state") in reason

    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    with Program("emulator", "run", "--resume", str(out), "--quiet", log=tmp_path / "resumed.log") as program:
        assert program.end() == 0, (tmp_path / "resumed.log").read_text()
    with Program(
        "emulator", "run", str(file), "--out", str(tmp_path / "roomy"), "--quiet", log=tmp_path / "roomy.log"
    ) as program:
        assert program.end() == 0
    resumed, roomy = (summary_of(f) for f in (out, tmp_path / "roomy"))
    assert resumed["model_sha256"] == roomy["model_sha256"]
