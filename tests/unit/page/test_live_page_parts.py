"""What the live page is told of a run, by numbers to redo by hand."""

import re
import time
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest

from fedstrata.methods import Plan
from fedstrata.record.rounds import RoundRow
from gps.journal.answers import BEFORE
from gps.page_data import seconds_left
from gps.status import seconds_of
from tests.support.gps_parts import IDS, GpsParts


def test_time_left_is_that_of_the_rounds_so_far() -> None:
    # training began at 100; at 120 two of ten rounds and half of the third are done: 8 s a round, 7.5 to go
    assert seconds_left({"training": 100.0}, "training", 2, 10, lambda: 120.0) == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("phase", "done"), [("training", 0), ("enrolment", 0), ("training", 10), ("evaluation", 10), ("completed", 10)]
)
def test_time_left_is_not_guessed_before_a_round_is_done_nor_after_the_last(phase: str, done: int) -> None:
    assert seconds_left({"training": 100.0}, phase, done, 10, lambda: 120.0) is None


def test_a_changed_clock_of_the_machine_changes_no_seconds_of_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = GpsParts(tmp_path).journal
    journal.begin_phase("training")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert seconds_of(journal.phases()) == pytest.approx(0, abs=60)


def test_a_run_that_is_continued_after_a_failure_counts_on_and_may_fail_later(tmp_path: Path) -> None:
    phases = {"enrolment": 100.0, "training": 110.0, "failed": 150.0}
    assert seconds_of(phases) == 50
    journal = GpsParts(tmp_path).journal
    times = []
    for _ in range(2):
        journal.begin_phase("training")
        journal.begin_phase("failed")
        times.append(journal.phases())
        journal.continue_failed()
        assert seconds_of(journal.phases()) == pytest.approx(time.time() - times[0]["training"], abs=5)
        assert "failed" not in journal.phases()
    assert times[0]["training"] == times[1]["training"]
    assert times[0]["failed"] < times[1]["failed"]


def test_rows_are_told_once_and_again_when_they_are_replaced(tmp_path: Path) -> None:
    journal = GpsParts(tmp_path).journal
    journal.rounds.add([("lps-0", 0, b"a"), ("lps-1", 0, b"b")])
    told = journal.rounds.rows_after(0)
    assert [row for _, row in told] == [b"a", b"b"]
    last = told[-1][0]
    assert journal.rounds.rows_after(last) == []
    journal.rounds.add([("lps-1", 0, b"c"), ("lps-0", 1, b"d")])  # one replaces the newest of all
    assert [row for _, row in journal.rounds.rows_after(last)] == [b"c", b"d"]


def test_states_are_told_in_the_order_of_devices(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path)
    gps.enrol(3, 1)
    gps.roster.refuse(gps.roster.by_id(IDS[1]), "speaks nonsense")
    assert gps.roster.state_of_devices() == ["absent", "refused", "absent", "enrolled", "absent"]


def test_plans_made_in_training_say_how_many_devices_they_moved(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path)
    gps.enrol(*range(5))
    for made_in, clusters in ((BEFORE, ((0, 1, 2), (3, 4))), (0, ((0, 1, 2), (3, 4))), (2, ((0,), (3, 4, 1), (2,)))):
        gps.places.make(made_in, Plan(clusters=clusters, rule="a test's"))
    assert gps.plans.history() == [(0, 2, 0), (2, 3, 2)]
    gps.places.go_back_to(1)
    assert gps.plans.history() == [(0, 2, 0)]
    gps.restart()
    assert gps.plans.history() == [(0, 2, 0)]


def test_a_cluster_that_only_gets_another_number_has_moved_no_device(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path)
    gps.enrol(*range(5))
    gps.places.make(BEFORE, Plan(clusters=((0, 1, 2), (3, 4)), rule="a test's"))
    gps.places.make(0, Plan(clusters=((0,), (1, 2), (3, 4)), parents=(0, 0, 1), rule="a test's"))
    assert gps.plans.history() == [(0, 3, 1)]


def test_the_page_reads_rows_of_rounds_by_the_columns_of_the_record() -> None:
    script = (files("fedstrata.page") / "static" / "document.js").read_text(encoding="utf-8")
    said = script.partition("const COLUMNS = [")[2].partition("]")[0]
    assert tuple(re.findall(r'"(\w+)"', said)) == tuple(
        field.name.replace("metrics", "metric") for field in fields(RoundRow)
    )
