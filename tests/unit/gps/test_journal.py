"""The GPS's journal: what was written is there after any death, and what was altered is refused by name."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from fedstrata.errors import PayloadError, StateError, WrongRunError
from fedstrata.store.attempts import check_attempt
from fedstrata.v1.rounds_pb2 import LpsRound
from gps.journal.answers import BEFORE
from gps.journal.devices import DeviceRow
from gps.journal.journal import Journal
from gps.journal.journal_file import create
from gps.journal.round_tables import LpsRounds
from gps.record_writer import wall_seconds


def opened(folder: Path, run_id: str = "run-1") -> Journal:
    return Journal(folder / "journal.sqlite", run_id=run_id, experiment="name: x")


def device(index: int) -> DeviceRow:
    name = f"device-{index:03d}"
    return DeviceRow(device_index=index, device_id=name, num_examples=10, num_held_out=2, pod_name="", is_late=False)


def filled(folder: Path, devices: int = 3) -> Path:
    """A closed journal with devices, answers, plans, an LPS and a round."""
    journal = opened(folder)
    for index in range(devices):
        journal.devices.enroll(device(index))
        journal.answers.add("profile", index, bytes(range(200)) * 20)
        journal.answers.add("relevance", index, b"row" * 50)
    journal.plans.make(BEFORE, '{"rule": "asked"}', b"affinity")
    journal.answers.add_bundle("losses", 0, "lps-0", dict.fromkeys(range(devices), b"loss"))
    journal.plans.make(0, '{"rule": "again"}', b"")
    journal.plans.place(2, cluster=1, home=0, global_round=3)
    journal.plans.move(1, [(0, 1)])
    journal.hosting.register("lps-0", "127.0.0.1:1")
    journal.rounds.close(0)
    journal.hosting.hand_over("lps-0", "lps-1", 1)
    journal.hosting.hand_over("lps-0", "lps-0", 4)
    journal.rounds.add([("lps-0", 0, b"row")])
    journal.close()
    return folder / "journal.sqlite"


def test_a_new_journal_is_one_transaction_since_each_waits_for_the_disk(tmp_path: Path) -> None:
    create(tmp_path / "journal.sqlite")
    header = (tmp_path / "journal.sqlite").read_bytes()[:100]
    assert int.from_bytes(header[24:28], "big") == 1  # SQLite's file change counter


def test_a_journal_that_cannot_be_opened_for_now_is_not_to_be_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)

    def full(path: Path) -> sqlite3.Connection:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("gps.journal.journal_file.connect", full)
    with pytest.raises(StateError, match="disk is full; free space and start again"):
        opened(tmp_path)


def test_somebody_who_sets_the_clock_changes_no_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    journal.begin_phase("enrolment")
    twenty_years = 20 * 365 * 86400.0
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + twenty_years)
    for phase in ("relevance", "grouping", "training"):
        journal.begin_phase(phase)
    assert wall_seconds(journal.phases())["total"] < 60
    journal.close()


def test_a_journal_keeps_its_attempt_and_a_new_one_has_another(tmp_path: Path) -> None:
    first = opened(tmp_path).attempt_id
    assert opened(tmp_path).attempt_id == first
    check_attempt(first, "run-1")
    (tmp_path / "elsewhere").mkdir()
    assert opened(tmp_path / "elsewhere").attempt_id != first


@pytest.mark.parametrize("said", ["run-1", "run-1/", "run-1/../../x", "run-2/00000000", "run-1/0000000G", "/00000000"])
def test_an_attempt_that_is_no_folder_of_the_run_is_refused(said: str) -> None:
    with pytest.raises(PayloadError, match="expected run-1/ and 8 hex digits"):
        check_attempt(said, "run-1")


def test_all_that_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = opened(tmp_path)
    assert journal.is_resumed
    assert journal.devices.all() == [device(index) for index in range(3)]
    assert sorted(journal.answers.given()) == [(name, index) for name in ("profile", "relevance") for index in range(3)]
    assert journal.answers.one("profile", 1) == bytes(range(200)) * 20
    assert journal.answers.all("losses", 0) == {0: b"loss", 1: b"loss", 2: b"loss"}
    assert journal.plans.made() == {BEFORE: ('{"rule": "asked"}', b"affinity"), 0: ('{"rule": "again"}', b"")}
    assert (journal.plans.placed(), journal.plans.moves()) == ([(2, 1, 0, 3)], [(1, 0, 1)])
    assert journal.plans.version() == 6  # two plans, a placement, a move, and two handovers
    assert journal.hosting.addresses() == {"lps-0": "127.0.0.1:1"}
    assert journal.rounds.closed() == 1
    assert journal.hosting.handovers() == [("lps-0", "lps-1", 1), ("lps-0", "lps-0", 4)]
    journal.close()


def test_what_two_threads_write_at_once_is_written_one_after_the_other(tmp_path: Path) -> None:
    journal, is_under_way, may_end = opened(tmp_path), threading.Event(), threading.Event()

    def rows() -> Iterator[tuple[str, int, bytes]]:
        is_under_way.set()
        may_end.wait(0.1)
        yield "lps-0", 0, b"row"

    writing = threading.Thread(target=journal.rounds.add, args=(rows(),))
    writing.start()
    is_under_way.wait(60)
    journal.hosting.register("lps-0", "127.0.0.1:1")  # as while the thread that groups is half-way
    may_end.set()
    writing.join()
    assert (list(journal.rounds.rows()), journal.hosting.addresses()) == ([b"row"], {"lps-0": "127.0.0.1:1"})
    journal.close()


def test_rows_are_read_as_they_are_asked_for_in_the_order_of_rounds(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for lps_round in (1, 0):
        for cluster in ("lps-10", "lps-2"):
            journal.rounds.add([(cluster, lps_round, f"{cluster} {lps_round}".encode())])
    found = journal.rounds.rows()
    assert next(found) == b"lps-2 0"
    journal.rounds.add([("lps-10", 1, b"told again")])
    assert list(found) == [b"lps-10 0", b"lps-2 1", b"told again"]
    journal.close()


def test_the_rows_of_a_record_are_those_that_there_were_as_it_was_begun(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(2):
        journal.rounds.add([("lps-0", number, LpsRound(lps_round=number).SerializeToString())])
    rows = LpsRounds(journal.rounds)
    journal.rounds.add([("lps-0", 2, LpsRound(lps_round=2).SerializeToString())])
    assert [[row.lps_round for row in rows] for _ in range(2)] == [[0, 1], [0, 1]]
    journal.close()


def test_the_same_thing_written_twice_is_there_once(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for row in (b"first", b"second"):
        journal.rounds.add([("lps-0", 3, row)])
        is_new = journal.exclude("device-000", "round 2", "missed the deadline")
        assert is_new == (row == b"first")
        journal.rounds.close(0)
        journal.answers.add("profile", 0, row)
        journal.answers.add_bundle("losses", 2, "lps-0", {0: row})
    assert list(journal.rounds.rows()) == [b"second"]
    assert journal.answers.all("profile") == {0: b"first"}
    assert journal.answers.all("losses", 2) == {0: b"first"}
    assert journal.exclusions() == [("device-000", "round 2", "missed the deadline")]
    assert journal.rounds.closed() == 1
    journal.close()


def test_what_is_written_together_is_written_wholly_or_not_at_all(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(ValueError, match="half-way"), journal.together(durable=True):
        journal.rounds.close(0)
        journal.rounds.set_link_bytes("", b"counts")
        raise ValueError("half-way")
    assert (journal.rounds.closed(), journal.rounds.link_bytes()) == (0, {})
    with journal.together(durable=True):
        journal.rounds.close(0)  # durable by itself, and here with all the rest
        journal.rounds.set_link_bytes("", b"counts")
    assert (journal.rounds.closed(), journal.rounds.link_bytes()) == (1, {"": b"counts"})
    with pytest.raises(RuntimeError, match="not durable"), journal.together():
        journal.rounds.close(1)
    assert journal.rounds.closed() == 1
    journal.close()


def test_exclusions_stand_in_one_order_whenever_they_were_heard_of(tmp_path: Path) -> None:
    expected = [
        ("lps-1", "global round 2", "missed the deadline"),
        ("device-002", "round 9", "missed the deadline"),
        ("device-002", "round 10", "missed the deadline"),
        ("device-010", "enrolment", "refused: too few examples"),
    ]
    for number, heard in enumerate((expected, expected[::-1], expected[2:] + expected[:2])):
        (tmp_path / str(number)).mkdir()
        journal = opened(tmp_path / str(number))
        for who, stage, reason in heard:
            journal.exclude(who, stage, reason)
        assert journal.exclusions() == expected
        journal.close()


def test_a_bundle_is_kept_wholly_or_not_at_all(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(StateError, match="cannot use"):
        journal.answers.add_bundle("losses", 0, "lps-0", {0: b"loss", 1: object()})  # type: ignore[dict-item]
    assert (journal.answers.bundled(0), journal.answers.all("losses", 0)) == (set(), {})
    journal.close()


def test_what_later_rounds_asked_and_planned_is_forgotten_with_them(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = opened(tmp_path)
    journal.answers.add_bundle("losses", 1, "lps-0", {0: b"later"})
    journal.plans.make(1, '{"rule": "later"}', b"")
    version = journal.plans.version()
    journal.plans.forget_after(0)
    journal.close()
    journal = opened(tmp_path)
    assert list(journal.plans.made()) == [BEFORE, 0]
    assert (journal.answers.bundled(0), journal.answers.bundled(1)) == ({"lps-0"}, set())
    assert (journal.answers.all("losses", 1), len(journal.answers.all("losses", 0))) == ({}, 3)
    assert journal.answers.all("profile").keys() == {0, 1, 2}
    assert (journal.plans.placed(), journal.plans.moves()) == ([(2, 1, 0, 3)], [])
    assert journal.plans.version() == version + 1
    journal.close()


def in_a_process_of_its_own(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """What comes of code that gets a journal's path; one that hangs in SQLite could be ended by SIGKILL only."""
    command = [sys.executable, "-c", dedent(code), str(folder / "journal.sqlite")]
    return subprocess.run(
        command, check=False, cwd=Path(__file__).parents[3], timeout=60, capture_output=True, text=True
    )


def test_what_was_written_survives_sigkill(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from gps.journal.journal import Journal
        journal = Journal(Path(sys.argv[1]), run_id="run-1", experiment="name: x")
        journal.hosting.register("lps-0", "127.0.0.1:1")
        journal.rounds.close(0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    died = in_a_process_of_its_own(code, tmp_path)
    assert died.returncode == -signal.SIGKILL
    journal = opened(tmp_path)
    assert (journal.hosting.addresses(), journal.rounds.closed()) == ({"lps-0": "127.0.0.1:1"}, 1)
    journal.close()


def test_a_thread_that_writes_and_one_that_reads_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    code = """
        import sys
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path
        from gps.journal.journal import Journal
        journal = Journal(Path(sys.argv[1]), run_id="run-1", experiment="name: x")
        journal.plans.make(-1, "{}", b"")
        with ThreadPoolExecutor(1) as other:
            for number in range(300):
                writing = other.submit(journal.rounds.close, number)
                while not writing.done():
                    journal.rounds.reported(), journal.plans.made(), journal.rounds.closed()
                writing.result()
        print(journal.rounds.closed())
        journal.close()
    """
    told = in_a_process_of_its_own(code, tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout == "300\n"


def test_a_journal_closed_under_a_writer_is_an_error_of_the_writer(tmp_path: Path) -> None:
    code = """
        import sys, threading
        from itertools import count
        from pathlib import Path
        from fedstrata.errors import StateError
        from gps.journal.journal import Journal

        def write(journal, written):
            try:
                for number in count():
                    journal.rounds.close(number)
                    written.release()
            except StateError as error:
                print(error)

        for life in range(10):
            journal = Journal(Path(sys.argv[1]), run_id="run-1", experiment="name: x")
            written = threading.Semaphore(0)
            writer = threading.Thread(target=write, args=(journal, written))
            writer.start()
            for _ in range(3 + life):
                written.acquire()
            journal.close()
            writer.join()
    """
    told = in_a_process_of_its_own(code, tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("cannot use") == 10


def test_the_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(WrongRunError, match="belongs to run run-1, not to run-2"):
        opened(tmp_path, "run-2")


@pytest.mark.parametrize("length", [0, 1, 99, 4096, 5000])
def test_a_truncated_journal_is_refused_by_name(tmp_path: Path, length: int) -> None:
    path = filled(tmp_path)
    os.truncate(path, length)
    with pytest.raises(StateError, match=r"journal\.sqlite"):
        opened(tmp_path)


def test_an_altered_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    known = contents(tmp_path)
    refused = 0
    for place in range(0, len(whole), 1_009):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            assert contents(tmp_path) == known, f"byte {place} was altered unnoticed"
        except StateError as error:
            assert "journal.sqlite" in str(error)
            refused += 1
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
    assert refused > 0


def contents(folder: Path) -> list[object]:
    journal = opened(folder)
    try:
        devices = journal.devices.all()
        answers = [journal.answers.all("profile"), journal.answers.all("relevance"), journal.answers.all("losses", 0)]
        rounds = [journal.answers.bundled(0), journal.plans.made(), list(journal.rounds.rows())]
        return [devices, answers, rounds, journal.hosting.addresses()]
    finally:
        journal.close()


def test_a_row_altered_with_sqlite_itself_is_refused_with_its_table(tmp_path: Path) -> None:
    path = filled(tmp_path)
    database = sqlite3.connect(path)
    database.execute("UPDATE devices SET num_examples = 1 WHERE device_index = 2")
    database.commit()
    database.close()
    with pytest.raises(StateError, match=r"journal\.sqlite: 1 rows of devices were altered"):
        opened(tmp_path)


def test_a_journal_that_cannot_be_written_says_which(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = opened(tmp_path)
    journal._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StateError, match=r"cannot use .*journal\.sqlite: database or disk is full; free space"):
        journal.rounds.add([("lps-0", number, bytes(9_999)) for number in range(99)])
    journal.close()


@pytest.mark.parametrize(
    ("found", "put"),
    [
        (b"CREATE TABLE phases", b"CREATE TABLE phase("),
        (b"CREATE TABLE bundles", b"CREATr TABLE bundles"),
        (b"device_id TEXT NOT NULL", b"device_ix TEXT NOT NULL"),
        (b"seal BLOB", b"sexl BLOB"),
        (b"CREATE TABLE devices", b"CREATE TABLE \xcbevices"),
        (b"SQLite format 3\0", b"SQLite format 4\0"),
    ],
)
def test_a_damaged_journal_is_to_be_moved_away_and_not_to_get_space(tmp_path: Path, found: bytes, put: bytes) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes().replace(found, put, 1))
    with pytest.raises(StateError, match=r"journal\.sqlite is damaged: .*; move it away to begin the run again"):
        opened(tmp_path)


@pytest.mark.parametrize("version", [3, 255])
def test_a_header_that_forbids_to_write_is_damage(tmp_path: Path, version: int) -> None:
    path = filled(tmp_path)
    content = bytearray(path.read_bytes())
    content[18] = version
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"journal\.sqlite is damaged: .*; move it away"):
        opened(tmp_path).rounds.close(1)


def test_damage_while_the_journal_is_open_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path)
    journal = opened(tmp_path)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    journal._db.execute("PRAGMA shrink_memory")
    with pytest.raises(StateError, match=r"journal\.sqlite is damaged: .*; move it away"):
        journal.devices.all()
