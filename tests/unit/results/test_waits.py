"""waits.csv and the picture of a round: who waited for whom, worked out by hand."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from emulator.results.read_record import load_record
from emulator.results.report import write_report
from emulator.results.report.run_page import document_of
from emulator.results.waits_chart import MOST_LANES, parts_by_tier, picture
from fedstrata.errors import DataError
from fedstrata.record.timeline import RunTimes
from fedstrata.record.waits import waits_csv
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.record_files import write_record

S = 10**9
IDS = [f"device-00{index}" for index in range(5)]
NAUGHTY = "</script><b>device"


def flow(child: int, *seconds: int) -> pb.Flow:
    down, compute, up = seconds
    return pb.Flow(child=child, down_ns=down * S, compute_ns=compute * S, up_ns=up * S, examples=40 + child)


def lps_row(lps_id: str, begins_s: int, ends_s: int, *flows: pb.Flow) -> pb.LpsRound:
    times = pb.RoundTimes(begins_ns=begins_s * S, ends_ns=ends_s * S, flows=flows)
    return pb.LpsRound(home_id=lps_id, times=times)


def written(folder: Path, text: str) -> Path:
    write_record(folder)
    (folder / "waits.csv").write_text(text)
    return folder


def table(rows: Iterable[pb.LpsRound], times: RunTimes, ids: Sequence[str]) -> str:
    return "".join(waits_csv(rows, times, ids))


# two LPSs have the model after one and two seconds; the second ends first and waits
VIRTUAL = table(
    [lps_row("lps-0", 1, 9, flow(0, 1, 5, 2), flow(1, 1, 1, 1)), lps_row("lps-1", 2, 6, flow(2, 0, 3, 1))],
    RunTimes(global_rounds={0: pb.RoundTimes(ends_ns=10 * S, flows=[flow(0, 1, 8, 1), flow(1, 2, 4, 1)])}),
    IDS,
)


def test_what_a_child_is_not_about_it_waits() -> None:
    assert VIRTUAL.splitlines()[1:3] == [
        "lps,1,1,lps-0,device-000,1.000000000,5.000000000,2.000000000,0.000000000,40",
        "lps,1,1,lps-0,device-001,1.000000000,1.000000000,1.000000000,5.000000000,41",
    ]
    assert VIRTUAL.splitlines()[-1] == "gps,1,,,lps-1,2.000000000,4.000000000,1.000000000,3.000000000,"


def test_on_the_real_clock_a_round_lasts_as_long_as_it_did_and_an_lps_computes_meanwhile() -> None:
    def carried(link: str, direction: str, link_s: int, latency_s: int = 0) -> pb.Carried:
        latency_ns = latency_s * S
        times = {"latency_ns": latency_ns, "achieved_latency_ns": latency_ns}
        return pb.Carried(link=link, direction=direction, achieved_link_ns=link_s * S, **times)

    device = [carried("device-lps", "down", 1, 1), carried("device-lps", "compute", 3), carried("device-lps", "up", 2)]
    row = pb.LpsRound(home_id="lps-0", seconds=9.5, times=pb.RoundTimes(carried=device))
    closed = pb.RoundTimes(carried=[carried("lps-gps", "up", 1)])
    text = table([row, row], RunTimes(global_rounds={0: closed}), IDS)
    assert text.splitlines()[1] == "lps,1,1,lps-0,device-000,2.000000000,3.000000000,2.000000000,2.500000000,0"
    assert text.splitlines()[3] == "gps,1,,,lps-0,0.000000000,19.000000000,1.000000000,0.000000000,"


def test_on_the_real_clock_the_excess_of_a_transfer_is_in_its_time_once() -> None:
    late = pb.Carried(link="device-lps", direction="down", link_ns=2 * S, latency_ns=S)
    late.achieved_link_ns, late.achieved_latency_ns = 3 * S, 2 * S  # 4 s in place of 3 s
    unlimited = pb.Carried(link="device-lps", direction="up", achieved_link_ns=S, achieved_latency_ns=S)  # 1 s, not 0
    computed = pb.Carried(link="device-lps", direction="compute", achieved_link_ns=S, examples=80)
    row = pb.LpsRound(home_id="lps-0", seconds=6, times=pb.RoundTimes(carried=[late, unlimited, computed]))
    text = table([row], RunTimes(), IDS)
    assert text.splitlines()[1] == "lps,1,1,lps-0,device-000,4.000000000,1.000000000,1.000000000,0.000000000,80"


def test_on_the_real_clock_a_device_that_misses_its_round_is_not_shown_as_waiting() -> None:
    def carried(child: int, direction: str, *, is_answer: bool = False) -> pb.Carried:
        return pb.Carried(link="device-lps", child=child, direction=direction, achieved_link_ns=S, is_answer=is_answer)

    late = [carried(1, "down"), carried(1, "up", is_answer=True), carried(1, "up")]
    times = pb.RoundTimes(carried=[*(carried(0, way) for way in ("down", "compute", "up")), *late])
    rows = table([pb.LpsRound(home_id="lps-0", seconds=4, times=times)], RunTimes(), IDS).splitlines()[1:]
    assert rows == ["lps,1,1,lps-0,device-000,1.000000000,1.000000000,1.000000000,1.000000000,0"]


def test_a_round_is_drawn_from_its_beginning_each_lps_before_its_devices(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", VIRTUAL)
    (folder / "rounds.csv").write_text((folder / "rounds.csv").read_text().replace(",0.25,", ",4,"))
    drawn = picture(load_record(folder), load_record(folder).waits)
    assert drawn is not None
    assert (drawn["global_round"], drawn["seconds"], drawn["devices"]) == (1, 10.0, 3)
    lanes = list(dict.fromkeys(bar["lane"] for bar in drawn["lanes"]))
    assert lanes == ["GPS", "lps-0", "device-000", "device-001", "lps-1", "device-002"]
    second = [(b["part"], b["begins_s"], b["ends_s"]) for b in drawn["lanes"] if b["lane"] == "lps-1"]
    assert sorted(second, key=lambda bar: bar[1]) == [
        ("down", 0.0, 2.0), ("compute", 2.0, 6.0), ("up", 6.0, 7.0), ("waiting", 7.0, 10.0),
    ]  # fmt: skip
    third = [(b["part"], b["begins_s"], b["ends_s"]) for b in drawn["lanes"] if b["lane"] == "device-002"]
    assert third == [("compute", 2.0, 5.0), ("up", 5.0, 6.0)]


def test_time_by_part_is_the_mean_child_summed_over_rounds(tmp_path: Path) -> None:
    parts = parts_by_tier(load_record(written(tmp_path / "run", VIRTUAL)).waits)
    assert parts["gps"] == {"down": 1.5, "compute": 6.0, "up": 1.0, "waiting": 1.5}
    assert parts["lps"] == {"down": 0.5, "compute": 3.0, "up": 1.25, "waiting": 1.25}


def test_of_many_devices_those_are_drawn_that_are_waited_for(tmp_path: Path) -> None:
    many = [f"device-{index:03d}" for index in range(200)]
    row = lps_row("lps-0", 0, 300, *(flow(index, 0, index + 1, 0) for index in range(200)))
    closed = {0: pb.RoundTimes(ends_ns=300 * S, flows=[flow(0, 0, 300, 0)])}
    folder = written(tmp_path / "run", table([row], RunTimes(global_rounds=closed), many))
    drawn = picture(load_record(folder), load_record(folder).waits)
    assert drawn is not None
    shown = {bar["lane"] for bar in drawn["lanes"] if bar["tier"] == "device"}
    assert shown == set(many[-len(shown) :])
    assert len(shown) == MOST_LANES - 1
    assert drawn["devices"] == 200


def test_names_are_text_in_the_report_whatever_they_are(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", VIRTUAL.replace("device-000", NAUGHTY))
    assert NAUGHTY in {bar["lane"] for bar in document_of(load_record(folder))["parts"]["round_picture"]["lanes"]}
    assert NAUGHTY not in write_report(folder).read_text()


def test_a_round_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", VIRTUAL)
    with pytest.raises(DataError, match=r"waits\.csv has no global round 7; it has 1 to 1"):
        write_report(folder, 7)
    plain = write_record(tmp_path / "plain")
    with pytest.raises(DataError, match=r"no global round 1; it has none. Only runs with a clock"):
        write_report(plain, 1)
    assert document_of(load_record(plain))["parts"]["round_picture"] is None


@pytest.mark.parametrize("damage", ["-1", "nan", "x"])
def test_a_damaged_table_is_refused_in_one_line_that_names_it(tmp_path: Path, damage: str) -> None:
    folder = written(tmp_path / "run", VIRTUAL.replace("5.000000000", damage, 1))
    with pytest.raises(DataError, match=r"waits\.csv row 2: compute_s: [^\n]*$"):
        write_report(folder)


def test_rows_of_a_long_run_are_gone_through_once() -> None:
    started = []

    class Rows:
        def __iter__(self) -> Iterator[pb.LpsRound]:
            started.append(1)
            for number in range(100):
                yield pb.LpsRound(home_id="lps-0", global_round=number, lps_round=number, seconds=number)

    carried = [pb.Carried(link="lps-gps", direction="up", achieved_link_ns=S)]
    closed = {number: pb.RoundTimes(carried=carried) for number in range(100)}
    lines = table(Rows(), RunTimes(global_rounds=closed), IDS).splitlines()
    assert len(started) == 1
    assert lines[-1] == "gps,100,,,lps-0,0.000000000,99.000000000,1.000000000,0.000000000,"
