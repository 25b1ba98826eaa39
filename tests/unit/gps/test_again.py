"""A failed run is begun anew once for each word, and what was there is kept."""

import json
from pathlib import Path

import pytest

from gps.retry import state_for


def ended(state: Path, status: str) -> None:
    (state / "record").mkdir()
    (state / "record" / "summary.json").write_text(json.dumps({"status": status}))


def test_a_failed_run_is_begun_anew_once_for_each_word(tmp_path: Path) -> None:
    path = tmp_path / "digits-1"
    ended(state_for(path, ""), "failed")
    assert (state_for(path, "") / "record").exists()  # a restart serves the record of the failure
    assert not (state_for(path, "monday") / "record").exists()
    ended(path, "failed")
    assert (state_for(path, "monday") / "record").exists()
    assert not (state_for(path, "tuesday") / "record").exists()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [
        "digits-1",
        "digits-1.failed-1",
        "digits-1.failed-2",
    ]
    assert (tmp_path / "digits-1.failed-2" / "record" / "summary.json").exists()


@pytest.mark.parametrize("status", ["completed", None])
def test_a_run_that_has_not_failed_goes_on_where_it_was(tmp_path: Path, status: str | None) -> None:
    path = tmp_path / "digits-1"
    (state_for(path, "") / "journal.sqlite").write_text("rows")
    if status:
        ended(path, status)
    assert (state_for(path, "monday") / "journal.sqlite").read_text() == "rows"


def test_a_run_that_fails_at_its_first_word_is_not_begun_anew_by_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "digits-1"
    ended(state_for(path, "monday"), "failed")
    assert (state_for(path, "monday") / "record").exists()
