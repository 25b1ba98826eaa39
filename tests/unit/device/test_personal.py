"""What a device keeps of its own comes back to the bit, or not at all."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device.personal import Arrays, KeptInMemory, PersonalStore
from fedstrata.errors import PluginError, StateError
from fedstrata.process.fault_points import VARIABLE
from fedstrata.store import read_sealed, write_sealed

RUN, DEVICE = "run-1", "device-007"


def store(folder: Path, run_id: str = RUN, device_id: str = DEVICE) -> PersonalStore:
    kept = PersonalStore(folder, run_id, device_id)
    kept.enter("")
    return kept


def with_rounds(folder: Path, *lps_rounds: int) -> PersonalStore:
    """A store with a state of each of these rounds."""
    kept = store(folder)
    for lps_round in lps_rounds:
        kept.save(lps_round, arrays(lps_round))
    return kept


def arrays(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "model": rng.standard_normal(1001, dtype=np.float32),
        "losses": rng.standard_normal((3, 2)),
        "counts": rng.integers(-(2**62), 2**62, 5),
        "rounds": np.array(seed),
        "nothing": np.empty(0, np.float32),
    }


def as_bytes(found: tuple[int, Arrays] | None) -> object:
    """The round, and everything about the arrays."""
    assert found is not None
    return found[0], {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in found[1].items()}


def test_a_state_comes_back_to_the_bit_in_another_process_and_can_be_changed(tmp_path: Path) -> None:
    store(tmp_path / "new").save(4, arrays(1))
    found = store(tmp_path / "new").at(4)
    assert as_bytes(found) == as_bytes((4, arrays(1)))
    assert found is not None
    found[1]["model"] += 1


def test_a_state_in_memory_stays_as_it_was_kept_whatever_a_method_does_with_it() -> None:
    kept, state = KeptInMemory(), arrays(1)
    kept.save(4, state)
    state["model"] += 1
    for _ in range(2):  # the round, and the same round again
        found = kept.at(4)
        assert as_bytes(found) == as_bytes((4, arrays(1)))
        assert found is not None
        found[1]["model"] += 1


def test_the_newest_state_that_is_not_newer_than_a_round_is_given(tmp_path: Path) -> None:
    kept = with_rounds(tmp_path, 2, 5, 9)
    assert [found and found[0] for found in map(kept.at, (1, 2, 4, 5, 8, 9, 100))] == [None, 2, 2, 5, 5, 9, 9]
    assert as_bytes(kept.at(8)) == as_bytes((5, arrays(5)))


def test_a_round_that_is_done_again_replaces_its_state_and_forgets_later_ones(tmp_path: Path) -> None:
    kept = with_rounds(tmp_path, 2, 5, 9)
    kept.save(5, arrays(50))
    assert as_bytes(store(tmp_path).at(100)) == as_bytes((5, arrays(50)))


def test_who_never_kept_anything_has_nothing(tmp_path: Path) -> None:
    kept = store(tmp_path / "never")
    assert kept.at(3) is None
    kept.prune(3)
    assert not kept.was_born()
    assert not (tmp_path / "never").exists()


def test_pruning_keeps_the_newest_state_older_than_a_round(tmp_path: Path) -> None:
    kept = with_rounds(tmp_path, *range(7))
    kept.prune(5)
    assert [found and found[0] for found in map(kept.at, range(7))] == [None, None, None, None, 4, 5, 6]
    kept.prune(5)
    assert kept.at(4) is not None


def test_pruning_never_removes_the_last_whole_state(tmp_path: Path) -> None:
    with_rounds(tmp_path, *range(4))
    damage(tmp_path, 3)
    store(tmp_path).prune(4)
    assert as_bytes(store(tmp_path).at(4)) == as_bytes((2, arrays(2)))
    assert store(tmp_path).at(1) is None


def path_of(folder: Path, lps_round: int) -> Path:
    (path,) = (each for each in folder.glob("*.personal") if int(each.stem) == lps_round)
    return path


def damage(folder: Path, lps_round: int) -> None:
    content = bytearray(path_of(folder, lps_round).read_bytes())
    content[len(content) // 2] ^= 1
    path_of(folder, lps_round).write_bytes(content)


@pytest.mark.parametrize("place", [0, 31, 32, 39, 40, 60, 400, -1])
def test_one_altered_bit_anywhere_is_seen_named_and_passed_over(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    kept = with_rounds(tmp_path, 1, 2)
    content = bytearray(path_of(tmp_path, 2).read_bytes())
    content[place] ^= 4
    path_of(tmp_path, 2).write_bytes(content)
    assert as_bytes(kept.at(2)) == as_bytes((1, arrays(1)))
    (said,) = caplog.records
    assert (said.levelno, said.message) == (logging.WARNING, "personal_state_damaged")
    assert (
        "000002.personal is truncated or altered: its content does not match its checksum"
        in getattr(said, "fields", {})["reason"]
    )


@pytest.mark.parametrize("left", [0, 1, 31, 32, 40, 200, 1000])
def test_a_truncated_file_is_passed_over(tmp_path: Path, left: int) -> None:
    with_rounds(tmp_path, 1, 2)
    path_of(tmp_path, 2).write_bytes(path_of(tmp_path, 2).read_bytes()[:left])
    assert as_bytes(store(tmp_path).at(2)) == as_bytes((1, arrays(1)))


def test_a_state_of_another_run_device_or_round_is_passed_over(tmp_path: Path) -> None:
    store(tmp_path).save(2, arrays(1))
    assert store(tmp_path, run_id="run-2").at(2) is None
    assert store(tmp_path, device_id="device-008").at(2) is None
    path_of(tmp_path, 2).rename(tmp_path / "000003.personal")
    assert store(tmp_path).at(3) is None


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ([["model", "<f4", [1000]]], "4004 bytes of arrays, but its header says 4000"),
        ([["model", "<f4", [-1001]]], "header says -4004"),
        ([["model", "|O", [1001]]], "does not have the header of a personal state"),
        ([["model", "<f4"]], "does not have the header of a personal state"),
        (7, "does not have the header of a personal state"),
    ],
)
def test_a_sealed_file_whose_header_is_wrong_is_passed_over(
    tmp_path: Path, described: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    header = json.dumps({"run_id": RUN, "device_id": DEVICE, "lps_round": 0, "arrays": described}).encode()
    content = arrays(0)["model"].tobytes()
    write_sealed(tmp_path / "000000.personal", len(header).to_bytes(8, "little") + header + content)
    assert store(tmp_path).at(0) is None
    assert reason in getattr(caplog.records[0], "fields", {})["reason"]


def test_only_numbers_are_kept(tmp_path: Path) -> None:
    for wrong in (np.zeros(3, np.float16), np.array(["a"]), np.array([object()])):
        with pytest.raises(PluginError, match=r"'mine' has type .*; give float32, float64 or int64"):
            store(tmp_path).save(0, {"mine": wrong})
        with pytest.raises(PluginError, match=r"'mine' has type"):
            KeptInMemory().save(0, {"mine": wrong})
    assert store(tmp_path).at(0) is None


def test_birth_is_remembered_by_run_and_device_also_where_the_marker_is_damaged(tmp_path: Path) -> None:
    store(tmp_path).mark_born()
    store(tmp_path).mark_born()
    assert store(tmp_path).was_born()
    assert not store(tmp_path, run_id="run-2").was_born()
    assert not store(tmp_path, device_id="device-008").was_born()
    (marker,) = tmp_path.iterdir()
    marker.write_bytes(b"")
    assert store(tmp_path).was_born()


def test_attempts_share_the_marker_but_no_state(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.mark_born()
    first.enter("5f3a9c01")
    first.save(3, arrays(3))
    second = store(tmp_path)
    second.enter("07b1d2e3")
    assert second.at(9) is None
    assert second.was_born()
    second.save(1, arrays(1))
    first.enter("5f3a9c01")
    assert as_bytes(first.at(9)) == as_bytes((3, arrays(3)))


def test_no_device_waits_for_the_disk_to_enrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    store(tmp_path / "new").mark_born()
    assert flushed == []
    assert store(tmp_path / "new").was_born()


def test_a_device_killed_while_it_keeps_a_state_has_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with_rounds(folder, 0, 1)
    before = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()}
    order = [{"point": "state_write", "marker": str(tmp_path / "died")}]  # written and flushed, not yet renamed
    code = (
        "import sys, pathlib, numpy\n"
        "from device.personal import PersonalStore\n"
        f"kept = PersonalStore(pathlib.Path(sys.argv[1]), {RUN!r}, {DEVICE!r})\n"
        "kept.enter('')\n"
        "kept.save(2, {'model': numpy.ones(9, numpy.float32)})\n"
    )
    environment = {**os.environ, VARIABLE: json.dumps(order), "PYTHONPATH": str(Path(__file__).parents[3])}
    killed = subprocess.run([sys.executable, "-c", code, folder], env=environment, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert {path.name: hashlib.sha256(path.read_bytes()).digest() for path in folder.glob("0*")} == before
    assert list(folder.glob(".*.aside"))
    assert as_bytes(store(folder).at(2)) == as_bytes((1, arrays(1)))
    assert not list(folder.glob(".*.aside"))  # what was half-way is cleared


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path) -> None:
    kept = with_rounds(tmp_path, 1)
    (tmp_path / ".000002.personal.aside").mkdir()  # what no user's rights can write
    with pytest.raises(StateError, match=r"cannot write .*000002\.personal"):
        kept.save(2, arrays(2))
    assert as_bytes(kept.at(2)) == as_bytes((1, arrays(1)))
    assert read_sealed(path_of(tmp_path, 1))
