"""The start of an LPS round: at once of a small model, and on disk before anything counts on it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import StateError
from fedstrata.process.logs import EventLog
from fedstrata.store import ModelFile, ModelInMemory
from fedstrata.tensors import SMALL_BYTES, Layout
from fedstrata.v1.gps_service_pb2 import ReportHeader
from lps.kept.state import Writing
from tests.support.cluster_states import state_in

SMALL = Layout.of({"w": (5,)})
LARGE = Layout.of({"w": (SMALL_BYTES // 4 + 1,)})
LOG = EventLog("test_writing")


def pieces(layout: Layout, value: float) -> Any:
    return iter([np.full(layout.size, value, np.float32)])


async def test_a_small_model_is_there_at_once_and_the_same_when_it_is_on_disk(tmp_path: Path) -> None:
    state = state_in(tmp_path, SMALL)
    writing = Writing(state)
    for number in range(4):
        standing = await writing.save(number, pieces(SMALL, number), ReportHeader(run_id="run-1"))
        assert isinstance(standing.model, ModelInMemory)
        await writing.done()
        found = state_in(tmp_path, SMALL).newest(LOG)
        assert found is not None
        assert found.lps_round == number
        assert found.report == standing.report
        assert (found.model.digest, found.model.scales()) == (standing.model.digest, standing.model.scales())
        assert found.base.read_all().tolist() == standing.base.read_all().tolist() == [number - number % 2] * 5
        found.close()
        standing.close()


async def test_a_large_model_is_on_disk_before_it_is_opened(tmp_path: Path) -> None:
    state = state_in(tmp_path, LARGE)
    standing = await Writing(state).save(0, pieces(LARGE, 1), ReportHeader(run_id="run-1"))
    assert isinstance(standing.model, ModelFile)
    standing.close()


async def test_one_round_is_written_before_the_next_is_begun(tmp_path: Path) -> None:
    state = state_in(tmp_path, SMALL)
    writing = Writing(state)
    await writing.save(0, pieces(SMALL, 0), ReportHeader(run_id="run-1"))
    await writing.save(1, pieces(SMALL, 1), ReportHeader(run_id="run-1"))
    assert state.newest_named >= 0  # round 0 is there, whether round 1 is or not
    await writing.done()
    assert state.newest_named == 1


async def test_a_disk_that_refuses_is_told_by_name_and_once(tmp_path: Path) -> None:
    state = state_in(tmp_path / "state", SMALL)
    (tmp_path / "state").write_text("a file where the folder should be")
    writing = Writing(state)
    await writing.save(0, pieces(SMALL, 0), ReportHeader(run_id="run-1"))
    with pytest.raises(StateError, match=r"round-000000\.pb"):
        await writing.done()
    await writing.done()
