"""A cluster's state on disk: the newest that is whole, and a name for what is not."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstrata.errors import StateError
from fedstrata.process.logs import EventLog
from fedstrata.tensors import Layout
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from lps.kept.state import ClusterState
from lps.report_files import FINAL, newest_reports, write_report
from tests.support.cluster_states import state_in

LAYOUT = Layout.of({"w": (5,)})
LOG = EventLog("test_cluster_state")


def saved(folder: Path, rounds: int) -> ClusterState:
    """State up to the start of a round; the model of round r is all r."""
    state = state_in(folder, LAYOUT)
    for number in range(rounds + 1):
        report = pb.ReportHeader(run_id="run-1")
        report.lps_rounds.add(lps_round=number)
        state.save(number, iter([np.full(5, number, np.float32)]), report).close()
    return state


def newest_round(folder: Path) -> int | None:
    standing = state_in(folder, LAYOUT).newest(LOG)
    if standing is None:
        return None
    assert standing.model.read_all().tolist() == [float(standing.lps_round)] * 5
    assert standing.report.lps_rounds[0].lps_round == standing.lps_round
    assert standing.base.read_all()[0] == standing.lps_round - standing.lps_round % 2
    standing.close()
    return standing.lps_round


def test_a_restarted_lps_goes_on_from_the_newest_round(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert newest_round(tmp_path) == 5


def test_a_new_cluster_has_no_state(tmp_path: Path) -> None:
    assert newest_round(tmp_path) is None


def test_kept_is_what_going_back_one_global_round_needs(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert kept == [f"round-{number:06d}.safetensors" for number in (4, 5, 6, 7)]


@pytest.mark.parametrize("name", ["round-000005.safetensors", "round-000005.pb"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_newest_state_is_passed_over_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, data: st.DataObject
) -> None:
    saved(tmp_path, 5)
    caplog.clear()
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert newest_round(tmp_path) == 4
    assert any(name in str(vars(record).get("fields")) for record in caplog.records)


def test_a_damaged_start_of_the_global_round_goes_back_to_the_one_before(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (tmp_path / "round-000004.safetensors").write_bytes(b"")
    assert newest_round(tmp_path) == 3


def test_a_file_renamed_to_another_round_is_not_believed(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (tmp_path / "round-000004.safetensors").rename(tmp_path / "round-000005.safetensors")
    (tmp_path / "round-000004.pb").rename(tmp_path / "round-000005.pb")
    assert newest_round(tmp_path) == 3


def test_the_state_of_another_run_is_not_believed(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    assert state_in(tmp_path, LAYOUT, run_id="run-2").newest(LOG) is None


def test_a_round_whose_files_are_gone_is_named(tmp_path: Path) -> None:
    state = saved(tmp_path, 5)
    with pytest.raises(StateError, match=r"round-000000\.safetensors"):
        state.open(0)


def test_the_newest_report_of_each_cluster_and_term_is_found_and_a_damaged_one_passed_over(tmp_path: Path) -> None:
    for name, rounds in (("lps-0", 5), ("lps-0.1", 3), ("lps-1", 2)):
        saved(tmp_path / name, rounds)
    (tmp_path / "lps-0" / "round-000005.pb").write_bytes(b"\0" * 50)
    assert [report.lps_rounds[0].lps_round for report in newest_reports(tmp_path)] == [4, 3, 2]
    assert list(newest_reports(tmp_path / "nowhere")) == []
    write_report(tmp_path / "lps-0" / FINAL, pb.ReportHeader(lps_rounds=[rounds_pb2.LpsRound(lps_round=9)]))
    assert next(newest_reports(tmp_path)).lps_rounds[0].lps_round == 9  # its byte counts have the final measurement


def test_files_with_odd_names_are_left_alone_and_stop_nothing(tmp_path: Path) -> None:
    odd = ["round-².pb", "round-x.safetensors", "round-.pb", "round-1e3.safetensors", "round--1.pb"]
    for name in odd:
        (tmp_path / name).write_bytes(b"somebody's")
    (tmp_path / "round-000000.txt").mkdir()
    saved(tmp_path, 8)
    assert newest_round(tmp_path) == 8
    assert {path.name for path in tmp_path.iterdir()} >= {*odd, "round-000000.txt"}
