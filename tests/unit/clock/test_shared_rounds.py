"""Asynchronous rounds over a shared link, against a simulation of its own, to the nanosecond."""

import numpy as np
import pytest

from fedstrata.clock.asynchronous import Calculated, asynchronous_round
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.shared_rounds import Asked, S, SharedRounds

DEVICES, ROUNDS = 9, 30
RATES = [700_000, 40_000, 90_000, 150_000, 150_000, 33_331, 1_000_003, 250_000, 90_000]  # bits per second, both ways
TEXT = """
name: shared
partition: {kind: iid, devices: 9, examples_per_device: 20}
method: fedavg
clock: virtual
compute: {per_example: 1ms}
"""
Taken = dict[int, tuple[int, int, int]]
Found = list[tuple[int, int, Taken]]  # by round: begin, end, updates


def experiment_of(rounds: str, shared: str, schedule: str = "") -> Experiment:
    own = ", ".join(
        f"{{devices: [{index}], down_rate: {rate}bit/s, up_rate: {rate}bit/s, latency: {index}ms}}"
        for index, rate in enumerate(RATES)
    )
    links = f"links={{overrides: [{own}], shared: {{device-lps: {shared}}}}}"
    changes = [f"schedule=[{schedule}]"] if schedule else []
    return parse_experiment(TEXT, overrides=[links, f"training.rounds.lps={rounds}", *changes])


def sizes_of(seed: int) -> list[list[tuple[int, int, int]]]:
    """By round and device: bytes down, bytes up, examples."""
    draws = np.random.default_rng(seed)
    return [
        [(down, int(up), int(examples)) for up, examples in draws.integers((800, 0), (9_000, 900), (DEVICES, 2))]
        for down in map(int, draws.integers(2_000, 9_000, ROUNDS))
    ]


def gaps_of(seed: int) -> list[int]:
    """How long the LPS waits for the GPS before each round: mostly not at all."""
    draws = np.random.default_rng([seed, 1])
    return [int(draws.integers(0, S)) if draws.random() < 0.3 else 0 for _ in range(ROUNDS)]


def calculated(experiment: Experiment, seed: int) -> Found:
    """The rounds of the project's clock. Before each round the LPS is restarted from its report."""
    sizes, report, found = sizes_of(seed), gps_pb.ReportHeader(), Found()
    indexes = {name: index for index, name in enumerate(experiment.device_ids())}
    for number, gap_ns in enumerate(gaps_of(seed)):
        report.now_ns += gap_ns
        kept, report = report, gps_pb.ReportHeader.FromString(report.SerializeToString())
        opened = asynchronous_round(DeviceTimeline(experiment), experiment.training.rounds.lps, number, report, indexes)
        updated = dict(opened.announced)
        at_rest = opened.begin(dict.fromkeys(indexes, Exchanged()))
        for name, index in indexes.items():
            if name not in updated and name not in at_rest:
                down, up, examples = sizes[number][index]
                updated[name] = Exchanged(down_bytes=down, up_bytes=up, work=pb.Work(examples=examples))
        late = opened.late_updates(updated)
        assert kept == report  # a report that is written while the round is open is as it was
        assert opened.late_updates(updated) == late
        times = opened.times()
        taken = {each.child: (each.from_round, each.asked_ns, each.arrives_ns) for each in times.contributions}
        assert taken.keys() == {indexes[name] for name in updated if name not in late}
        found.append((times.begins_ns, times.ends_ns, taken))
        report.now_ns = times.ends_ns
        opened.note(report)
    return found


def simulated(experiment: Experiment, seed: int, world: SharedRounds) -> Found:
    settings, sizes, found = experiment.training.rounds.lps, sizes_of(seed), Found()
    last, period = dict.fromkeys(range(DEVICES), -1), 0
    for number, gap_ns in enumerate(gaps_of(seed)):
        world.run_to(world.now + gap_ns)
        opened = int(world.now)
        resting = sorted((last[device], device) for device in range(DEVICES) if device not in world.at_work)
        asked = [device for _, device in resting[: (settings.concurrency or DEVICES) - len(world.at_work)]]
        world.ask(number, {device: task_of(device, *sizes[number][device]) for device in asked})
        if settings.kind == "timed":
            period = period or (settings.period if settings.period != "auto" else world.longest_ns() // 6)
            closes = world.close_timed(period)
        else:
            closes = world.close_buffered(settings.buffer)
        taken = world.take()
        last.update(dict.fromkeys(taken, number))
        found.append((opened, closes, taken))
    return found


def task_of(device: int, down: int, up: int, examples: int) -> Asked:
    return Asked(down, up, RATES[device], RATES[device], device * 1_000_000, examples * 1_000_000)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "rounds",
    [
        "{kind: timed}",
        "{kind: timed, period: 120ms}",
        "{kind: buffered, buffer: 1}",
        "{kind: buffered, buffer: 4}",
        "{kind: buffered, buffer: 2, concurrency: 5}",
    ],
)
@pytest.mark.parametrize(
    ("shared", "down", "up"),
    [
        ("{up_rate: 300kbit/s}", None, 300_000),
        ("{down_rate: 500kbit/s}", 500_000, None),
        ("{up_rate: 300kbit/s, down_rate: 500kbit/s}", 500_000, 300_000),
        ("{up_rate: 100001bit/s, down_rate: 70kbit/s, broadcast: true}", 70_000, 100_001),
    ],
)
def test_each_update_arrives_in_the_same_nanosecond_as_in_a_simulation(
    rounds: str, shared: str, down: int | None, up: int | None, seed: int
) -> None:
    experiment = experiment_of(rounds, shared)
    found = calculated(experiment, seed)
    world = SharedRounds(*([(0, rate)] if rate else None for rate in (down, up)), is_broadcast="broadcast" in shared)
    assert found == simulated(experiment, seed, world)
    assert any(number - base >= 2 for number, (_, _, taken) in enumerate(found) for base, _, _ in taken.values())


def test_the_shared_link_may_change_and_be_cut_while_updates_are_under_way() -> None:
    schedule = "{at: 3s, set: {link: shared, up_rate: 100kbit/s}}, {at: 5s, cut: {link: shared, for: 700ms}}"
    rates = [(0, 300_000), (3 * S, 100_000), (5 * S, 0), (5_700_000_000, 100_000)]
    experiment = experiment_of("{kind: buffered, buffer: 2}", "{up_rate: 300kbit/s}", schedule)
    found = calculated(experiment, 0)
    assert found == simulated(experiment, 0, SharedRounds(None, rates))
    assert any(begins < 5 * S < ends for begins, ends, _ in found)


class Three:
    """Three devices that share 24 kbit/s up, in rounds of one update. Models and computing take no time."""

    def __init__(self) -> None:
        changes = ["partition.devices=3", "links={shared: {device-lps: {up_rate: 24kbit/s}}}", "compute=null"]
        experiment = parse_experiment(TEXT, overrides=[*changes, "training.rounds.lps={kind: buffered, buffer: 1}"])
        self._devices, self._settings = DeviceTimeline(experiment), experiment.training.rounds.lps
        self._report, self._number = gps_pb.ReportHeader(), 0
        self._indexes = {f"device-00{index}": index for index in range(3)}

    def open(self, *sizes: int) -> Calculated:
        """Begin a round in which the devices send so many bytes; those with an update under way send that."""
        opened = asynchronous_round(self._devices, self._settings, self._number, self._report, self._indexes)
        asked = {name: Exchanged(up_bytes=size) for name, size in zip(self._indexes, sizes, strict=True)}
        self.updated = {**asked, **opened.announced}
        return opened

    def close(self, opened: Calculated) -> None:
        opened.note(self._report)
        self._report.now_ns, self._number = opened.times().ends_ns, self._number + 1


def arrivals(opened: Calculated) -> dict[int, int]:
    return {each.child: each.arrives_ns for each in opened.contributions()}


def test_the_link_goes_on_with_updates_under_way_while_devices_are_asked_again() -> None:
    lps = Three()
    first = lps.open(1_000, 2_000, 3_000)
    assert sorted(first.late_updates(lps.updated)) == ["device-001", "device-002"]
    assert arrivals(first) == {0: S}  # 8,000 bits at a third of the link
    lps.close(first)
    second = lps.open(1_000, 0, 0)  # device-001 has 8,000 bits left, and device-002 has 16,000
    assert second.late_updates(lps.updated) == ["device-002"]
    assert arrivals(second) == {0: 2 * S, 1: 2 * S}
    lps.close(second)
    third = lps.open(1_000, 1_000, 0)  # all have 8,000 bits left
    assert third.late_updates(lps.updated) == []
    assert arrivals(third) == {0: 3 * S, 1: 3 * S, 2: 3 * S}


def test_a_device_that_is_refused_has_used_the_link() -> None:
    lps = Three()
    opened = lps.open(1_000, 2_000, 3_000)
    opened.late_updates(lps.updated)
    del lps.updated["device-000"]
    assert opened.late_updates(lps.updated) == ["device-002"]
    assert arrivals(opened) == {1: 1_666_666_667}  # 8,000 bits in the first second, then 8,000 at half of the link
