"""A processor of one's own: its start, and its kind in the record."""

import sys
from pathlib import Path

import pytest

from emulator.results.read_record import RunRecord
from fedstrata.errors import PluginError
from fedstrata.processors import lacking
from tests.support.tiers import run_in_process, small

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
