"""What the experiment file says of links and boards: units, presets, what is refused, and what the run's id covers."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.clock.clocks import clock_of
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import LinkTimes
from fedstrata.experiment.quantities import (
    DURATION,
    FASTEST,
    LONGEST_NS,
    RATE,
    parsed_devices,
    written_devices,
)
from fedstrata.experiment_file import parse_experiment

PLAIN = "name: small\npartition: {kind: iid, devices: 6, examples_per_device: 10}\n"
TIMED = PLAIN + "clock: virtual\n"


def timed(*overrides: str, seed: int | None = None) -> Experiment:
    return parse_experiment(TIMED, overrides=overrides, seed=seed)


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(text, overrides=overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- quantities ---------------------------------------------------------------------------------------------


def test_units_go_by_thousands() -> None:
    assert RATE.parsed("1.9Mbit/s") == 1_900_000
    assert RATE.parsed("26 kbit/s") == 26_000
    assert DURATION.parsed("40ms") == 40_000_000
    assert DURATION.parsed("1.5h") == 5_400_000_000_000


@given(st.integers(1, FASTEST))
def test_a_rate_is_read_back_as_it_is_written(rate: int) -> None:
    assert RATE.parsed(RATE.written(rate)) == rate


@given(st.integers(0, LONGEST_NS))
def test_a_duration_is_read_back_as_it_is_written(duration: int) -> None:
    assert DURATION.parsed(DURATION.written(duration)) == duration


@given(st.decimals(0, 999, places=3), st.sampled_from(list(DURATION.units)))
def test_a_duration_is_its_number_times_its_unit(number: Decimal, unit: str) -> None:
    expected = number * DURATION.units[unit]
    if expected <= LONGEST_NS:
        assert abs(DURATION.parsed(f"{number}{unit}") - expected) <= Decimal("0.5")


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_of_devices_is_read_back_as_it_is_written(devices: set[int]) -> None:
    assert parsed_devices(written_devices(sorted(devices))) == tuple(sorted(devices))


def test_ranges_hold_both_ends() -> None:
    assert parsed_devices([7, "1-3"]) == (1, 2, 3, 7)


# --- presets and overrides ----------------------------------------------------------------------------------


def test_a_key_beside_a_preset_wins() -> None:
    link = timed("links.device-lps={preset: nb-iot, up_rate: 1Mbit/s}").links.device_lps.resolved()
    assert link == LinkTimes(down_rate=26_000, up_rate=1_000_000, latency=1_600_000_000)


def test_an_override_without_a_preset_differs_in_what_it_says_only() -> None:
    links = timed("links={device-lps: {preset: lte, jitter: 5ms}, overrides: [{devices: [1], up_rate: 9kbit/s}]}").links
    assert links.of_devices() == {
        1: LinkTimes(down_rate=13_000_000, up_rate=9_000, latency=35_000_000, jitter=5_000_000)
    }


def test_an_override_with_a_preset_takes_nothing_from_the_others() -> None:
    links = timed("links={device-lps: {latency: 9ms, loss: 0.1}, overrides: [{devices: [1], preset: lte}]}").links
    assert links.of_devices()[1] == LinkTimes(down_rate=13_000_000, up_rate=6_000_000, latency=35_000_000)


def test_loss_bounds_the_rate_by_what_tcp_reaches() -> None:
    link = LinkTimes(up_rate=6_000_000, latency=50_000_000, loss=0.01)
    assert link.rate("up") == 1_425_000 - 40  # 1.22 · 1460 · 8 / (0.1 · 0.1) = 1,424,960
    assert link.rate("down") == link.rate("up")
    assert LinkTimes(up_rate=6_000_000, latency=50_000_000, loss=1e-6).rate("up") == 6_000_000


# --- the run's id -------------------------------------------------------------------------------------------


def test_with_no_clock_links_and_boards_are_no_part_of_the_id() -> None:
    said = (
        "clock=none",
        "links.device-lps.preset=lte",
        "compute.per_example=1ms",
        "links.shared.device-lps.up_rate=1bit/s",
    )
    assert parse_experiment(PLAIN, overrides=said).digest == parse_experiment(PLAIN).digest


@pytest.mark.parametrize(
    "override",
    [
        "seed=0",  # virtual alone
        "links.device-lps.up_rate=1Mbit/s",
        "links.lps-gps.latency=1ms",
        "links.overrides=[{devices: [1], preset: lte}]",
        "links.shared.device-lps.up_rate=1Mbit/s",
        "compute.minimum=1s",
    ],
)
def test_on_the_virtual_clock_they_are(override: str) -> None:
    found = {timed(override).digest, timed("links.lps-gps.up_rate=3bit/s").digest, parse_experiment(PLAIN).digest}
    assert len(found) == 3


def test_a_preset_counts_as_the_numbers_that_it_stands_for() -> None:
    spelt = "links.device-lps={down_rate: 13Mbit/s, up_rate: 6000kbit/s, latency: 0.035s}"
    assert timed(spelt).digest == timed("links.device-lps.preset=lte").digest


def test_a_stored_file_is_the_same_experiment() -> None:
    experiment = timed(
        "links={device-lps: {preset: lte, jitter: 1.5ms}, overrides: [{devices: [0, 2-5], loss: 0.01}], "
        "shared: {device-lps: {up_rate: 2Gbit/s}}}",
        "compute={per_example: 0.8ms, profiles: {old: 20}, devices: {old: [1], pi4: [2-3]}, spread: {lognormal: 0.5}}",
    )
    assert parse_experiment(experiment.to_yaml()) == experiment
    assert parse_experiment(experiment.to_yaml()).digest == experiment.digest


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("links.device-lps.up=3Mbit/s", "an encoding such as float32; use up_rate"),
        ("links.device-lps.up_rate=0Mbit/s", "a rate must be from 1bit/s"),
        ("links.device-lps.up_rate=3", "3 has no unit; write a value such as 1.9Mbit/s"),
        ("links.device-lps.up_rate=3MB/s", "no unit is called 'MB/s'"),
        ("links.device-lps.latency=-3ms", "'-3ms' is not a number of 0 or more with a unit"),
        ("links.device-lps.latency=40", "40 has no unit; write a value such as 40ms"),
        ("links.device-lps.latency=.nan", "nan has no unit"),
        ("links.device-lps.preset=5g", "no preset is called '5g'; choose one of lte"),
        ("links.device-lps={latency: 1ms, jitter: 2ms}", "device-lps: jitter is larger than latency"),
        ("links.device-lps.loss=1", "below 1, not 1"),
        ("links.lps-gps.loss=0.1", "lps-gps: loss has no effect on a link without latency"),
        ("links.overrides=[{devices: [1], loss: 0.1}]", "overrides.0: loss"),
        ("links.overrides=[{devices: [1], preset: lte}, {devices: [0-3], preset: wifi}]", "device 1 is in two"),
        ("links.overrides=[{devices: [6], preset: lte}]", "there is no device 6; the partition has devices 0 to 5"),
        ("links.overrides=[{devices: [1, 1], preset: lte}]", "device 1 is in the list twice; remove it once"),
        ("links.overrides=[{devices: [0-300000, 300000], preset: lte}]", "device 300000 is in the list twice"),
        ("links.overrides=[{devices: [3-1], preset: lte}]", "'3-1' must be the index of a device, or a range"),
        ("links.overrides=[{devices: [], preset: lte}]", "names no device"),
        ("links.overrides=[{devices: [1]}]", "this entry changes nothing; add what differs"),
        ("links.rate=1Mbit/s", "unknown key"),
        ("links.shared.device-lps.broadcast=true", "broadcast needs down_rate"),
        ("compute={per_example: 1ms, devices: {pi9: [1]}}", "no profile is called 'pi9'; choose one of i5-7400t"),
        ("compute={per_example: 1ms, devices: {pi4: [1], pi5: [1]}}", "device 1 is in two"),
        ("compute.devices={pi4: [1]}", "per_example, which is missing"),
        ("compute={per_example: 1ms, devices: {pi4: [9]}}", "compute.devices: there is no device 9"),
        ("compute.per_example=0.8", "0.8 has no unit"),
        ("compute.minimum=200h", "at most a week"),
        ("clock=fast", "'none', 'real' or 'virtual'"),
        ("deadlines.gps.deadline_s=none", "must be a number"),
    ],
)
def test_nonsense_is_refused_in_one_line(override: str, message: str) -> None:
    assert message in refusal(TIMED, override)


@pytest.mark.parametrize("method", ["cfl", "fedfomo", "fedtsdp", "ifca"])
def test_the_real_clock_takes_questions_in_rounds_with_deadlines_and_broadcasts(method: str) -> None:
    shared = "links.shared.device-lps={down_rate: 1Mbit/s, broadcast: true}"
    public = "partition.public={examples: 200, labelled: true}"
    once = "training.lps_rounds_per_global_round=1"
    changes = [f"method={method}", once, public, "clock=real", shared, "deadlines.lps.deadline_s=3"]
    assert parse_experiment(PLAIN, overrides=changes).is_paced


def test_the_real_clock_takes_deadlines_and_real_boards_and_is_part_of_the_runs_id() -> None:
    real = parse_experiment(PLAIN, overrides=["clock=real", "deadlines.lps.deadline_s=3"])
    faster = parse_experiment(
        PLAIN, overrides=["clock=real", "deadlines.lps.deadline_s=3", "links.lps-gps.latency=1ms"]
    )
    assert real.is_paced
    assert real.clock != "virtual"
    assert real.run_id != faster.run_id
    boards = (
        "name: boards\nclock: real\npartition: {kind: local, names: [a, b]}\n"
        "data: {name: folder, input_shape: [4], num_classes: 2}\n"
    )
    assert parse_experiment(boards).is_paced


def test_a_virtual_deadline_goes_with_questions_in_rounds() -> None:
    asking = ["method=ifca", "deadlines.lps.deadline_s=3", "links.shared=null"]
    assert parse_experiment(TIMED, overrides=asking).clock == "virtual"


@pytest.mark.parametrize(
    ("shared", "announces"),
    [
        ("{up_rate: 1Mbit/s}", True),
        ("{down_rate: 1Mbit/s}", False),
        ("{down_rate: 1Mbit/s, broadcast: true}", False),
        ("{up_rate: 1Mbit/s, down_rate: 1Mbit/s, broadcast: true}", True),
    ],
)
def test_a_virtual_deadline_goes_with_what_is_shared_and_over_a_shared_link_up_updates_are_announced(
    shared: str, announces: bool
) -> None:
    late = ("clock=virtual", "deadlines.lps.deadline_s=3", f"links.shared.device-lps={shared}")
    assert clock_of(parse_experiment(PLAIN, overrides=late)).device().announces == announces
    for other in ("deadlines.lps.deadline_s=null", "clock=real", "clock=none"):
        assert not clock_of(parse_experiment(PLAIN, overrides=[*late, other])).device().announces


@pytest.mark.parametrize(
    "said", ["links.lps-gps.latency=1ms", "links.overrides=[{devices: [1], preset: lte}]", "compute.minimum=1s"]
)
def test_times_that_no_clock_heeds_are_refused(said: str) -> None:
    assert "add clock: virtual or clock: real, or add clock: none to ignore all times" in refusal(PLAIN, said)
    assert parse_experiment(PLAIN, overrides=[said, "clock=none"]).clock == "none"


def test_every_unit_is_told_where_one_is_missing() -> None:
    said = refusal(TIMED, "links.device-lps.up_rate=3")
    assert all(unit in said for unit in RATE.units)
