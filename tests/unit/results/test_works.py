"""Asynchronous rounds on the page of a run: whose work is drawn when, and how many updates each device has sent."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from emulator.results.read_record import RunRecord, load_record
from emulator.results.report.run_page import document_of
from emulator.results.waits_chart import MOST_LANES
from emulator.results.works_chart import picture_of_works, updates_by_device
from fedstrata.errors import DataError
from fedstrata.record.contributions import asynchronous_summary, contributions_csv
from fedstrata.record.timeline import RunTimes, timeline_csv
from fedstrata.record.waits import waits_csv
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.record_files import write_record

S = 10**9
IDS = [f"device-{index:03d}" for index in range(5)]


def taken(child: int, from_round: int, asked_s: int, arrives_s: int) -> tuple[pb.Contribution, pb.Flow]:
    """An update whose model takes a second down. The update takes a second up."""
    contribution = pb.Contribution(
        child=child, from_round=from_round, factor=1, asked_ns=asked_s * S, arrives_ns=arrives_s * S
    )
    return contribution, pb.Flow(child=child, down_ns=S, compute_ns=(arrives_s - asked_s - 2) * S, up_ns=S)


def lps_row(number: int, begins_s: int, ends_s: int, *updates: tuple[pb.Contribution, pb.Flow]) -> pb.LpsRound:
    times = pb.RoundTimes(
        begins_ns=begins_s * S, ends_ns=ends_s * S, ready_ns=ends_s * S, children=len(updates),
        contributions=[each for each, _ in updates], flows=[each for _, each in updates],
    )  # fmt: skip
    return pb.LpsRound(home_id="lps-0", lps_round=number, global_round=number, times=times)


def written(folder: Path, rows: list[pb.LpsRound], ids: Sequence[str] = IDS) -> RunRecord:
    closed = {row.global_round: pb.RoundTimes(begins_ns=row.times.begins_ns, ends_ns=row.times.ends_ns) for row in rows}
    times = RunTimes(global_rounds=closed)
    write_record(folder, asynchronous=asdict(asynchronous_summary(rows, ids)))
    (folder / "waits.csv").write_text("".join(waits_csv(rows, times, ids)))
    (folder / "timeline.csv").write_text("".join(timeline_csv(rows, times)))
    (folder / "contributions.csv").write_text("".join(contributions_csv(rows, ids)))
    return load_record(folder)


# device-000 works for 3 s each time, device-001 for 8 s; rounds are 4 s long
ROWS = [
    lps_row(0, 0, 4, taken(0, 0, 0, 3)),
    lps_row(1, 4, 8, taken(0, 1, 4, 7), taken(1, 0, 0, 8)),
    lps_row(2, 8, 12, taken(0, 2, 8, 11)),
]


def drawn(record: RunRecord, global_round: int | None = None) -> dict[str, list[tuple[str, float, float]]]:
    """By lane: parts with their beginnings and ends."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    picture = picture_of_works(record, global_round)
    assert picture is not None
    for bar in picture["lanes"]:
        found.setdefault(bar["lane"], []).append((bar["part"], bar["begins_s"], bar["ends_s"]))
    return found


def test_the_picture_lasts_as_many_rounds_as_the_longest_work(tmp_path: Path) -> None:
    record = written(tmp_path / "run", ROWS)
    document = document_of(record)["parts"]["round_picture"]
    assert (document["global_round"], document["until"], document["seconds"]) == (1, 2, 8.0)
    assert document["devices"] == 2
    assert drawn(record) == {
        "GPS": [("waiting", 0, 4), ("waiting", 4, 8)],
        "lps-0": [("compute", 0, 4), ("compute", 4, 8)],
        "device-000": [
            ("down", 0, 1), ("compute", 1, 2), ("up", 2, 3), ("down", 4, 5), ("compute", 5, 6), ("up", 6, 7),
        ],
        "device-001": [("down", 0, 1), ("compute", 1, 7), ("up", 7, 8)],
    }  # fmt: skip


def test_a_work_that_began_before_the_picture_is_cut(tmp_path: Path) -> None:
    found = drawn(written(tmp_path / "run", ROWS), 2)
    assert found["device-001"] == [("compute", 0, 3), ("up", 3, 4)]
    assert found["device-000"][-1] == ("up", 6, 7)


def test_a_round_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no global round 4; it has 1 to 3"):
        picture_of_works(written(tmp_path / "run", ROWS), 4)


def test_without_the_virtual_clock_there_is_no_picture(tmp_path: Path) -> None:
    record = written(tmp_path / "run", ROWS)
    (record.folder / "timeline.csv").unlink()
    assert document_of(load_record(record.folder))["parts"]["round_picture"] is None


def test_devices_without_an_update_are_counted_too(tmp_path: Path) -> None:
    record = written(tmp_path / "run", ROWS)
    assert updates_by_device(record) == {
        "device-000": 3, "device-001": 1, "device-003": 0, "device-002": 0, "device-004": 0,
    }  # fmt: skip
    assert document_of(record)["parts"]["updates_by_device"] == updates_by_device(record)
    plain = load_record(write_record(tmp_path / "plain"))
    assert document_of(plain)["parts"]["updates_by_device"] is None


def test_of_many_devices_those_are_drawn_that_are_equally_distant_by_their_works(tmp_path: Path) -> None:
    many = [f"device-{index:03d}" for index in range(200)]
    row = lps_row(0, 0, 300, *(taken(index, 0, 0, index + 3) for index in range(200)))
    record = written(tmp_path / "run", [row], many)
    shown = [lane for lane in drawn(record) if lane.startswith("device")]
    assert len(shown) <= MOST_LANES
    assert shown[-1] == "device-199"  # the longest work
    lengths = [int(lane[-3:]) for lane in shown]
    assert {after - before for before, after in pairwise(lengths)} == {7, 8}  # 28 lanes for 200 devices
