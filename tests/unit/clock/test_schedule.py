"""The schedule of an experiment: what it changes of links, who is there, where devices hang, and what it cannot say."""

import pytest

from fedstrata.clock.device_times import Homes, Presence
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline, LpsTimeline
from fedstrata.errors import ExperimentError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.experiment.rates import end_of
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.tier_links import ScheduledLinks, device_links
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.gps_service_pb2 import Cluster, Member
from lps.members import Members

S = 10**9
TEXT = """
name: scheduled
partition: {kind: iid, devices: 4, examples_per_device: 10}
method: fedavg
topology: {lps: 2}
clock: virtual
links: {device-lps: {up_rate: 8kbit/s}, lps-gps: {down_rate: 8kbit/s}, shared: {device-lps: {up_rate: 8kbit/s}}}
"""


def scheduled(*entries: str, overrides: tuple[str, ...] = ()) -> Experiment:
    return parse_experiment(TEXT, overrides=[*overrides, f"schedule=[{', '.join(entries)}]"])


# --- links --------------------------------------------------------------------------------------------------


def test_a_link_has_other_values_from_a_time_on() -> None:
    experiment = scheduled(
        "{at: 10s, set: {devices: 1, up_rate: 4kbit/s, latency: 1s}}", "{at: 5s, set: {up_rate: 2kbit/s}}"
    )
    links = device_links(experiment)
    assert [links.link_of(1).at(at * S).rate("up") for at in (0, 5, 10)] == [8_000, 2_000, 4_000]
    assert [links.link_of(0).at(at * S).rate("up") for at in (0, 5, 10)] == [8_000, 2_000, 2_000]
    assert [links.link_of(1).at(at * S).latency for at in (9, 10)] == [0, S]


def test_a_preset_replaces_all_and_a_key_beside_it_that_one() -> None:
    link = device_links(scheduled("{at: 3s, set: {preset: nb-iot, latency: 2s}}")).link_of(0).at(3 * S)
    assert (link.rate("up"), link.rate("down"), link.latency) == (66_000, 26_000, 2 * S)


def test_a_round_goes_on_at_the_rates_of_its_time() -> None:
    experiment = scheduled("{at: 2s, cut: {devices: [0], for: 3s}}", overrides=("links.shared=null",))
    work = {"device-000": Exchanged(down_bytes=0, up_bytes=4_000, work=pb.Work())}
    times = DeviceTimeline(experiment).round(0, S).times(work)
    assert times.ends_ns == 8 * S  # one second before the cut, three after it


def test_the_links_of_named_lpss_alone_are_cut() -> None:
    timeline = LpsTimeline(scheduled("{at: 0s, cut: {link: lps-gps, lps: [1], for: 10s}}"))
    assert [timeline.arrival_ns(f"lps-{number}", 0, 0, 1_000) for number in (0, 1)] == [S, 11 * S]


def test_a_shared_link_changes_too() -> None:
    shared = ScheduledLinks(scheduled("{at: 1s, set: {link: shared, up_rate: 4kbit/s}}")).shared()
    assert end_of(0, 16_000, shared.up) == 3 * S
    assert shared.down is None


# --- who is there -------------------------------------------------------------------------------------------


def members_of(experiment: Experiment) -> Members:
    members = [Member(device_id=f"device-00{i}", device_index=i, num_examples=7) for i in (0, 2)]
    return Members(experiment, Cluster(home_id="lps-0", members=members), Presence(experiment))


def test_who_is_away_as_a_round_begins_takes_no_part() -> None:
    members = members_of(scheduled("{at: 10s, leave: {devices: [0], for: 5s}}"))
    for at_s, there in ((9, (0, 2)), (10, (2,)), (14, (2,)), (15, (0, 2))):
        assert list(members.in_round(0, 0, at_s * S)) == [f"device-00{index}" for index in there]


def test_where_all_are_away_the_round_is_of_whoever_is_back_first() -> None:
    members = members_of(
        scheduled("{at: 1s, leave: {devices: [0], for: 9s}}", "{at: 2s, leave: {devices: [2], for: 3s}}")
    )
    assert members.present_from(0, 3 * S) == {"device-002": 5 * S}
    experiment = scheduled("{at: 1s, leave: {devices: [0, 2], for: 3s}}")
    work = {"device-000": Exchanged(down_bytes=0, up_bytes=1_000, work=pb.Work())}
    back = members_of(experiment).present_from(0, 2 * S)
    times = DeviceTimeline(experiment).round(0, 2 * S, back).times(work)
    assert (times.begins_ns, times.down_ns, times.ends_ns) == (2 * S, 2 * S, 5 * S)


def test_times_away_that_follow_each_other_or_overlap_are_one() -> None:
    presence = Presence(scheduled("{at: 1s, leave: {devices: 0, for: 4s}}", "{at: 3s, leave: {devices: 0, for: 4s}}"))
    assert [presence.back_ns(0, at_s * S) for at_s in (0, 1, 4, 7)] == [0, 7 * S, 7 * S, 7 * S]
    assert presence.back_ns(1, 2 * S) == 2 * S


def test_a_run_whose_lps_has_lost_all_devices_for_good_ends_with_a_line() -> None:
    members = members_of(scheduled("{at: 10s, leave: {devices: [0, 2]}}"))
    with pytest.raises(
        RunStoppedError, match=r"at 12 s all devices of lps-0 have left for good; let one of them come back"
    ):
        members.in_round(0, 0, 12 * S)


def test_devices_hang_where_they_were_moved_last() -> None:
    homes = Homes(scheduled("{at: 9s, move: {devices: 0, to: lps-0}}", "{at: 3s, move: {devices: 0, to: lps-1}}"))
    assert [dict(homes.at(at_s * S)) for at_s in (2, 3, 9)] == [{}, {0: 1}, {0: 0}]


# --- what it cannot say -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{at: 5s, move: {devices: 1, to: lps-2}}", "there is no lps-2; the run has lps-0 to lps-1"),
        ("{at: 5s, move: {devices: 1, to: edge}}", "schedule.0.move.to"),
        ("{at: 5s, move: {devices: 4, to: lps-1}}", "there is no device 4; the partition has devices 0 to 3"),
        ("{at: 0s, move: {devices: 0, to: lps-1}}", "a move at 0s has no effect; write in topology.devices"),
        ("{at: 5s, move: {devices: [0, 2], to: lps-1}}", "lps-0 would have no device after the move at 5s; leave one"),
        ("{at: 5s, leave: {devices: 0-3}}", "after 5s all devices have left for good; let one return"),
        ("{at: 5s, leave: {devices: [0], for: 0s}}", "schedule.0.leave.for"),
        ("{at: 5s}", "an entry makes one change; give exactly one of set, cut, leave, move"),
        ("{at: 5s, cut: {for: 1s}, leave: {devices: 0}}", "an entry makes one change"),
        ("{at: 5s, set: {devices: 0}}", "changes nothing; add what changes at this time"),
        ("{at: 5s, set: {link: lps-gps, devices: 0, latency: 1s}}", "the key devices is only for link: device-lps, "),
        ("{at: 5s, set: {link: shared, latency: 1s}}", "the shared link has only down_rate and up_rate"),
        ("{at: 5s, set: {link: shared, down_rate: 1kbit/s}}", "the shared link has no down_rate"),
        ("{at: 5s, set: {jitter: 1s}}", "jitter is larger than latency"),
        ("{at: 5, cut: {for: 1s}}", "5 has no unit"),
        ("{at: 5s, cut: {for: 1}}", ": schedule.0.cut.for: 1 has no unit"),
        ("{at: -5s, cut: {for: 1s}}", "is not a number of 0 or more"),
        ("{at: 5s, cut: {link: lps-gps, lps: [2], for: 1s}}", "there is no lps-2"),
    ],
)  # fmt: skip
def test_what_a_schedule_cannot_mean_is_one_line_before_anything_starts(entry: str, message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        scheduled(entry)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_needs_more_of_the_file_says_so() -> None:
    move = ("{at: 5s, move: {devices: 1, to: lps-0}}",)
    with pytest.raises(ExperimentError, match=r"schedule\.0\.move needs topology: "):
        scheduled(*move, overrides=("topology=null",))
    for clock in ("virtual", "real"):
        overrides = ("deadlines.lps.deadline_s=5", "links.shared=null", f"clock={clock}")
        assert scheduled(*move, overrides=overrides).deadlines.lps.deadline_s == 5
    for entry in ("{at: 5s, set: {latency: 1s}}", "{at: 5s, cut: {link: shared, for: 1s}}"):
        assert scheduled(entry, *move, overrides=("clock=real",)).schedule
    with pytest.raises(ExperimentError, match="there is no shared link; add links"):
        scheduled("{at: 5s, cut: {link: shared, for: 1s}}", overrides=("links.shared=null",))


# --- the run's id -------------------------------------------------------------------------------------------


def test_a_schedule_is_part_of_the_runs_id_where_a_clock_heeds_it() -> None:
    cut = "{at: 5s, cut: {for: 1s}}"
    assert scheduled(cut).digest != scheduled().digest
    assert scheduled(cut).digest == scheduled("{at: 5000ms, cut: {link: device-lps, for: 1s}}").digest
    none = ("clock=none",)
    assert scheduled(cut, overrides=none).digest == scheduled(overrides=none).digest
    assert parse_experiment(scheduled(cut).to_yaml()).digest == scheduled(cut).digest
