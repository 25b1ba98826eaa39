"""links.csv: configured beside achieved, and what is marked as outside."""

import pytest

from fedstrata.errors import PayloadError
from fedstrata.record.links import Real, link_rows, links_csv, real_summary
from fedstrata.rounds.parent.report_checks import check_lps_rounds, check_notes
from fedstrata.tasks import CLASSIFICATION
from fedstrata.v1 import rounds_pb2 as pb

MS, S = 10**6, 10**9
IDS = ["device-000", "device-001"]


def carried(**changed: object) -> pb.Carried:
    """125,000 bytes at 1 Mbit/s with a latency of 100 ms, as they should be."""
    as_it_should_be = {
        "link": "device-lps", "direction": "up", "child": 1, "bytes": 125_000, "link_ns": S, "achieved_link_ns": S,
        "latency_ns": 100 * MS, "achieved_latency_ns": 100 * MS,
    }  # fmt: skip
    return pb.Carried(**{**as_it_should_be, **changed})  # type: ignore[arg-type]


def row_of(*each: pb.Carried) -> str:
    header, *rows = "".join(links_csv(link_rows([each], IDS))).splitlines()
    assert header == (
        "link,direction,child,transfers,bytes,bits_per_s,achieved_bits_per_s,latency_s,achieved_latency_s,outside"
    )
    [row] = rows
    return row


def test_a_row_has_sums_and_means() -> None:
    assert row_of(carried(), carried()) == "device-lps,up,device-001,2,250000,1000000,1000000,0.100000,0.100000,"


@pytest.mark.parametrize(
    ("changes", "outside"),
    [
        ({"achieved_link_ns": S + 20 * MS}, ""),
        ({"achieved_link_ns": S + 21 * MS}, "rate"),
        ({"achieved_latency_ns": 102 * MS}, ""),
        ({"achieved_latency_ns": 103 * MS}, "latency"),
        ({"latency_ns": 0, "achieved_latency_ns": MS}, ""),  # a timer's millisecond
        ({"latency_ns": 0, "achieved_latency_ns": MS + 1, "achieved_link_ns": 2 * S}, "rate latency"),
        ({"link_ns": 0, "achieved_link_ns": S}, ""),  # nothing limits its rate
        ({"link_ns": 0, "achieved_link_ns": S, "achieved_latency_ns": 103 * MS}, "latency"),
        ({"link_ns": 0, "achieved_link_ns": S, "latency_ns": 0, "achieved_latency_ns": S}, ""),  # nothing limits it
        ({"direction": "compute", "achieved_link_ns": 2 * S}, "compute"),
        ({"direction": "compute", "link_ns": 0}, ""),  # no computing is modelled
    ],
)
def test_what_is_off_by_more_than_two_percent_is_marked(changes: dict[str, object], outside: str) -> None:
    assert row_of(carried(**changes)).rpartition(",")[2] == outside


def test_a_link_without_a_rate_and_computing_have_none_in_the_row() -> None:
    assert row_of(carried(link_ns=0, child=0)).split(",")[2:7] == ["device-000", "1", "125000", "", ""]
    computing = row_of(carried(direction="compute", bytes=0, link_ns=3 * S, achieved_link_ns=3 * S))
    assert computing == "device-lps,compute,device-001,1,0,,,3.000000,3.000000,"


def test_the_summary_counts_rows_by_child_and_direction() -> None:
    rows = link_rows([[carried(), carried(child=0, achieved_link_ns=2 * S)], [carried(link="lps-gps", child=4)]], IDS)
    assert real_summary(rows) == Real(links=3, outside=1)
    assert list(links_csv(rows))[-1].startswith("lps-gps,up,lps-4,1,")


@pytest.mark.parametrize(
    "changes",
    [
        {"link": "lps-gps"},
        {"direction": "sideways"},
        {"bytes": -1},
        {"link_ns": -1},
        {"examples": 1 << 40},
        {"achieved_latency_ns": 1 << 60},
    ],
)
def test_transfers_that_cannot_be_are_refused_of_an_lps(changes: dict[str, object]) -> None:
    row = pb.LpsRound(times=pb.RoundTimes(carried=[carried(), carried(**changes)]))
    with pytest.raises(PayloadError, match="impossible transfers"):
        check_lps_rounds([row], rounds_per_global=1, held_out=0, task=CLASSIFICATION)


def test_a_device_cannot_have_computed_for_less_than_no_time() -> None:
    for computed_ns in (-1, 1 << 61):
        header = pb.UpdateHeader(child_id="a", work=pb.Work(computed_ns=computed_ns))
        with pytest.raises(PayloadError, match="a reports impossible work: 0 examples"):
            check_notes(header, has_work=True)
