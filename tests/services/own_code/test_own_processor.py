"""A processor of one's own: its start, and its kind in the record."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.results.read_record import RunRecord
from fedstrata.errors import PluginError
from fedstrata.processors import lacking
from tests.support import apart
from tests.support.programs import REPOSITORY
from tests.support.tiers import SMALL, run_in_process, small

ABACUS = '''
"""The CPU under another name."""

from fedstrata.processors import Processor


class Abacus(Processor):
    begun = 0
    may_stack = True  # as on the CPU, for the same bits

    def __init__(self):
        super().__init__("cpu")

    def start(self):
        Abacus.begun += 1

    def kind(self):
        return "Abacus 3"


class Broken(Processor):
    def __init__(self):
        super().__init__("cpu")

    def missing(self):
        raise KeyError("beads")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "abacus.py").write_text(ABACUS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_run_on_an_own_processor_starts_it_and_records_its_kind(folder: Path) -> None:
    record: RunRecord = run_in_process(small("devices.processor='abacus:Abacus'"), folder / "own")
    plain = run_in_process(small(), folder / "plain")
    assert sys.modules["abacus"].Abacus.begun == 1
    (kernel,) = plain.summary.kernels
    assert record.summary.kernels == {f"{kernel} on Abacus 3": 5}
    assert record.summary.model_sha256 == plain.summary.model_sha256


def test_an_own_processor_that_fails_is_named(folder: Path) -> None:
    experiment = small("devices.processor='abacus:Broken'")
    with pytest.raises(PluginError, match=r"^processor abacus:Broken failed in missing: KeyError: 'beads' \(.*abacus"):
        lacking(experiment)


FULL = (
    r"has no memory left; compare its memory with the estimate of `fedstrata check`, .* \(OutOfMemoryError: tried to "
    r"allocate 40 beads\)$"
)


@pytest.mark.runs
@pytest.mark.parametrize(
    ("processor", "code", "said"),
    [
        ("Shared", 2, r"devices\.processor apart:Shared: 0\.5 of the beads are too few$"),
        ("Narrow", 4, rf"device-00[0-4]: devices\.processor apart:Narrow {FULL}"),
        ("Tight", 4, rf"the first try of a model: devices\.processor apart:Tight {FULL}"),
        (
            "Taken",
            2,
            r"devices\.processor apart:Taken has no memory left for a process, which takes 3 MB before it holds data; "
            r"end other programs on it, or use fewer device processes$",
        ),
    ],
)
def test_a_processor_without_memory_left_ends_the_run_in_one_line(
    tmp_path: Path, processor: str, code: int, said: str
) -> None:
    shutil.copy(apart.__file__, tmp_path / "apart.py")
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("run", "small.yaml", "--out", "out", "--quiet", "--set", f"devices.processor=apart:{processor}")
    done = subprocess.run(
        [sys.executable, "-m", "emulator", *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert re.search(rf"^error: devices-\S+: {said}", " ".join(done.stderr.split())), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.runs
def test_the_runs_of_a_sweep_share_a_processor_too(tmp_path: Path) -> None:
    """Two runs at once, with two device processes each: a quarter for each process."""
    shutil.copy(apart.__file__, tmp_path / "apart.py")
    (tmp_path / "small.yaml").write_text(SMALL)
    sweep = "base: small.yaml\nseeds: [1, 2]\ncells: {all: {devices.processor: apart:Shared}}\n"
    (tmp_path / "both.yaml").write_text(sweep)
    done = subprocess.run(
        [sys.executable, "-m", "emulator", "sweep", "both.yaml", "--out", "out", "--jobs", "2", "--json"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert said.count("devices.processor apart:Shared: 0.25 of the beads are too few") >= 2, said
