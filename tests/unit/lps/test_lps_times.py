"""The virtual clock at an LPS: what its report says between rounds, and what it cannot go on without."""

from pathlib import Path

import numpy as np
import pytest

from fedstrata.clock.clocks import clock_of
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.lps_side import LpsClock
from fedstrata.errors import StateError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.waiting import since_ns, wall_time
from fedstrata.rounds import ReceivedModel
from fedstrata.rounds.parent.report_checks import check_lps_rounds
from fedstrata.tasks import CLASSIFICATION
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.gps_service_pb2 import Cluster, Member, ReportHeader
from lps.members import Members
from tests.support.lps_rounds import LpsRounds, header_of
from tests.support.lps_session import session_of

S = 10**9
TEXT = """
name: times
partition: {kind: iid, devices: 2, examples_per_device: 10}
method: fedavg
"""
TIMED = ("clock=virtual", "links={device-lps: {up_rate: 8kbit/s}, lps-gps: {down_rate: 16kbit/s, latency: 1s}}")


ONE = Exchanged(up_bytes=1_000)


def sent() -> dict[str, Exchanged]:
    """What two devices send each round."""
    return {"device-000": ONE, "device-001": ONE}


def clock_at(experiment: Experiment, **cluster: int) -> LpsClock:
    return clock_of(experiment).lps(Cluster(home_id="lps-0", **cluster))


def members_of(experiment: Experiment) -> Members:
    members = [Member(device_id=f"device-00{index}", device_index=index) for index in (0, 1)]
    return Members(experiment, Cluster(home_id="lps-0", members=members), clock_at(experiment).presence)


def test_lps_rounds_follow_each_other_and_the_next_model_is_there_a_link_later() -> None:
    experiment = parse_experiment(TEXT, overrides=TIMED)
    times, members, report = clock_at(experiment), members_of(experiment), ReportHeader()
    for number in (0, 1):
        report.lps_rounds.add(lps_round=number, global_round=0)
        times.opens(report, 0, number, members)
        times.of_round(report, sent(), members)
    assert [(row.times.begins_ns, row.times.ends_ns) for row in report.lps_rounds] == [(0, S), (S, 2 * S)]
    assert times.work(report, 0) == pb.Work(busy_ns=2 * S)
    for _ in range(2):  # heard again after a restart it changes nothing
        times.received(report, 1, begins_ns=5 * S, whole_bytes=4_000)
        assert report.now_ns == 5 * S + 2 * S + S
        assert [row.times.ready_ns for row in report.lps_rounds] == [S, 8 * S]
    report.lps_rounds.add(lps_round=2, global_round=1)
    times.opens(report, 1, 2, members)
    times.of_round(report, sent(), members)
    assert times.work(report, 1) == pb.Work(busy_ns=S)


def test_without_a_clock_nothing_is_noted() -> None:
    experiment = parse_experiment(TEXT)
    times, report = clock_at(experiment), ReportHeader()
    report.lps_rounds.add()
    before = report.SerializeToString()
    times.of_round(report, sent(), members_of(experiment))
    assert times.work(report, 0) is None
    assert report.SerializeToString() == before


async def test_a_lost_state_is_lost_where_devices_cannot_tell_the_time(tmp_path: Path) -> None:
    experiment = parse_experiment(TEXT, overrides=TIMED)
    session = session_of(experiment, tmp_path, Cluster(home_id="lps-0", global_round=3))
    with pytest.raises(StateError, match="devices do not have the times of clock: virtual; put the files back"):
        await session.holding.recover(lambda search: None)


@pytest.mark.parametrize("term", [0, 1])  # 1: of one that another LPS takes over
async def test_so_it_is_where_clusters_span_lpss(tmp_path: Path, term: int) -> None:
    experiment = parse_experiment(TEXT, overrides=[*TIMED, "topology={lps: 1}"])
    third = ReceivedModel(round=2, global_round=2, evaluate_only=False, plan_version=1, flat=np.zeros(1, np.float32))
    session = session_of(experiment, tmp_path, Cluster(home_id="lps-0", term=term), third)
    with pytest.raises(StateError, match="no report of lps-0 at the start of global round 3, and only this report"):
        await session.run()


# --- deadlines ----------------------------------------------------------------------------------------------

LATE = (
    "clock=virtual", "deadlines.lps={deadline_s: 2, quorum_ratio: 0.5}", "partition.devices=3",
    "links={device-lps: {up_rate: 8kbit/s}, overrides: [{devices: [1], up_rate: 2kbit/s}]}",
)  # fmt: skip


class LateRounds(LpsRounds):
    """LPS rounds of devices whose updates have so many bytes."""

    def __init__(self) -> None:
        super().__init__(parse_experiment(TEXT, overrides=LATE))

    def round(self, number: int, size: int, drawn: tuple[int, ...] = (0, 1, 2)) -> tuple[list[str], list[str]]:
        """Who has reported in a round, and who has been late; the rest was not asked."""
        self.open(number, drawn=drawn)
        asked = self.opened.intake.missing
        for name in asked:
            self.take(header_of(name, size))
        self.close()
        return list(self.taken), [name for name in asked if name not in self.taken]


def test_who_is_late_is_left_out_and_busy_until_its_update_is_over() -> None:
    rounds = LateRounds()
    # 1,000 bytes: one second at 8 kbit/s, four at 2 kbit/s: late, and busy until the second round is over
    assert rounds.round(0, 1_000) == (["device-000", "device-002"], ["device-001"])
    assert dict(rounds.report.busy_ns) == {1: 4 * S}
    first = rounds.report.lps_rounds[-1].times
    assert (first.begins_ns, first.ends_ns, first.waiting_ns, first.slowest) == (0, 2 * S, 2 * S, "device-000")
    assert list(first.late) == [pb.Flow(child=1, up_bytes=1_000, up_ns=4 * S)]  # what it did in vain
    assert rounds.round(1, 1_000) == (["device-000", "device-002"], [])
    assert rounds.report.now_ns == 4 * S
    # 250 bytes: it is free as the third round begins, and takes one second
    assert rounds.round(2, 250) == (["device-000", "device-001", "device-002"], [])
    assert (rounds.report.now_ns, dict(rounds.report.busy_ns)) == (5 * S, {})


def test_a_busy_device_that_is_not_drawn_meanwhile_stays_busy() -> None:
    rounds = LateRounds()
    assert rounds.round(0, 1_500) == (["device-000", "device-002"], ["device-001"])  # until 6 s
    assert rounds.round(1, 500, drawn=(0, 2)) == (["device-000", "device-002"], [])
    assert dict(rounds.report.busy_ns) == {1: 6 * S}
    assert rounds.round(2, 500) == (["device-000", "device-002"], [])  # it is busy longer than the round may last
    assert rounds.round(3, 250, drawn=(0, 2))[0] == ["device-000", "device-002"]
    assert dict(rounds.report.busy_ns) == ({1: 6 * S} if rounds.report.now_ns < 6 * S else {})


def test_a_device_that_is_free_in_the_middle_of_a_round_begins_then() -> None:
    rounds = LateRounds()
    assert rounds.round(0, 750) == (["device-000", "device-002"], ["device-001"])  # until 3 s
    assert rounds.round(1, 250) == (["device-000", "device-001", "device-002"], [])  # from 3 s to 4 s, just in time
    assert rounds.report.now_ns == 4 * S
    times = rounds.report.lps_rounds[-1].times
    assert (times.slowest, list(times.late)) == ("device-001", [])
    assert [(flow.child, flow.down_ns, flow.away_ns) for flow in times.flows] == [(0, 0, 0), (1, S, S), (2, 0, 0)]


def test_what_is_known_of_late_devices_survives_the_lps() -> None:
    one, other = LateRounds(), LateRounds()
    one.round(0, 1_000)
    other.report.CopyFrom(one.report)
    assert one.round(1, 1_000) == other.round(1, 1_000)
    assert one.report == other.report


def test_a_device_that_moves_away_and_comes_back_is_free() -> None:
    rounds = LateRounds()
    assert rounds.round(0, 1_500) == (["device-000", "device-002"], ["device-001"])  # until 6 s
    rounds.members.take(Cluster(home_id="lps-0", members=rounds.devices[::2]))  # moved as a global round begins
    assert rounds.round(1, 500, drawn=(0, 2)) == (["device-000", "device-002"], [])  # until 2.5 s
    rounds.members.take(Cluster(home_id="lps-0", members=rounds.devices))
    assert rounds.round(2, 250) == (["device-000", "device-001", "device-002"], [])
    assert [flow.away_ns for flow in rounds.report.lps_rounds[-1].times.flows] == [0, 0, 0]


# --- by real time -------------------------------------------------------------------------------------------


async def test_on_the_real_clock_a_round_without_devices_waits_for_whoever_is_back_first() -> None:
    away = "schedule=[{at: 0s, leave: {devices: [0], for: 3s}}, {at: 0s, leave: {devices: [1], for: 9s}}]"
    experiment = parse_experiment(TEXT, overrides=["clock=real", away])
    members = [Member(device_id=f"device-00{index}", device_index=index) for index in range(2)]
    began = round((wall_time() - 2.99) * 1e9)
    cluster = Cluster(home_id="lps-0", members=members, began_unix_ns=began)
    clock = clock_of(experiment).lps(cluster)
    here = Members(experiment, cluster, clock.presence)
    begins_ns = await clock.begins_ns(ReportHeader(), 0, here)
    assert begins_ns >= 3 * 10**9
    assert list(here.in_round(0, 0, begins_ns)) == ["device-000"]
    assert since_ns(began) >= 3 * 10**9


def test_a_number_of_examples_that_no_device_has_makes_no_report_that_the_gps_refuses() -> None:
    experiment = parse_experiment(TEXT, overrides=["clock=real", "compute.per_example=10ms"])
    report = ReportHeader(lps_rounds=[pb.LpsRound(lps_round=0)])
    said = {"device-000": Exchanged(work=pb.Work(examples=2**40 - 1, computed_ns=S))}
    clock_at(experiment).of_round(report, said, members_of(experiment))
    (computed,) = report.lps_rounds[0].times.carried
    assert (computed.link_ns, computed.achieved_link_ns) == (2**53 - 1, S)
    check_lps_rounds(report.lps_rounds, rounds_per_global=1, held_out=0, task=CLASSIFICATION)


async def test_without_a_schedule_a_round_begins_at_the_reports_time() -> None:
    experiment = parse_experiment(TEXT, overrides=TIMED)
    cluster = Cluster(home_id="lps-0", members=[Member(device_id="device-000")])
    clock = clock_of(experiment).lps(cluster)
    assert await clock.begins_ns(ReportHeader(now_ns=7), 0, Members(experiment, cluster, clock.presence)) == 7
