"""Traces of links: read from files of three kinds, generated, and refused in one line where they are nonsense."""

import math
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np
import pytest

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.rates import Trace, end_of
from fedstrata.experiment.traces import TRACE_PRESETS, Generated
from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.links.tier_links import DOWN, UP, device_links
from fedstrata.v1 import rounds_pb2 as pb

S = 10**9
TEXT = "name: traced\npartition: {kind: iid, devices: 3, examples_per_device: 10}\nclock: virtual\n"


def traced(folder: Path, content: str, format_: str, after: str = ", after: repeat") -> Experiment:
    """An experiment whose devices' links down follow a trace file that lies beside it."""
    (folder / "trace").write_text(content)
    links = f"links: {{traces: {{bus: {{file: trace, format: {format_}{after}}}}}, device-lps: {{down_trace: bus}}}}\n"
    (folder / "traced.yaml").write_text(TEXT + links)
    return load_experiment(folder / "traced.yaml")


def trace_of(experiment: Experiment) -> Trace:
    trace = experiment.links.common().trace("down")
    assert isinstance(trace, Trace)
    return trace


# --- files --------------------------------------------------------------------------------------------------


def test_a_csv_has_a_rate_from_each_time_on(tmp_path: Path) -> None:
    trace = trace_of(traced(tmp_path, "seconds,kbit/s\n0,8\n1.5,16\n\n3,0\n", "csv"))
    assert trace == Trace((0, 1_500_000_000, 3 * S), (8_000, 16_000, 0), 4_500_000_000)


def test_a_mahimahi_line_is_a_packet_of_1500_bytes(tmp_path: Path) -> None:
    trace = trace_of(traced(tmp_path, "1\n500\n1000\n2250\n2250\n", "mahimahi"))
    assert trace == Trace((0, S, 2 * S), (36_000, 0, 96_000), 2_250_000_000)  # two packets in the last quarter second


def test_a_ghent_line_has_the_bytes_since_the_line_before(tmp_path: Path) -> None:
    lines = "1453121790686 4 51.03 3.73 500000 1000\n1453121791690 1008 51.03 3.73 125000 500\n"
    assert trace_of(traced(tmp_path, lines, "ghent")) == Trace((0, S), (4_000_000, 2_000_000), 1_500_000_000)


def test_the_resolved_file_needs_no_trace_file_and_is_the_same_run(tmp_path: Path) -> None:
    experiment = traced(tmp_path, "seconds,kbit/s\n0,8\n1,16\n", "csv")
    (tmp_path / "trace").unlink()
    again = parse_experiment(experiment.to_yaml())
    assert again.digest == experiment.digest
    assert trace_of(again) == trace_of(experiment)
    assert traced(tmp_path, "seconds,kbit/s\n0,8\n1,17\n", "csv").digest != experiment.digest
    assert traced(tmp_path, "seconds,bit/s\n0,8000\n1,16000\n", "csv").digest == experiment.digest


@pytest.mark.parametrize(
    ("content", "format_", "after", "message"),
    [
        ("seconds,Mbit/s\n0,1\n2,1\n1,1\n", "csv", ", after: repeat", "line 4: its time is negative, or not after"),
        ("seconds,Mbit/s\n0,1\n1,-1\n", "csv", ", after: repeat", "line 3: its rate is negative"),
        ("seconds,Mbit/s\n0,1\n1,nan\n", "csv", ", after: repeat", "line 3: must have 2 numbers"),
        ("seconds,Mbit/s\n0,1\n1,fast\n", "csv", ", after: repeat", "line 3: must have 2 numbers"),
        ("time,rate\n0,1\n", "csv", ", after: repeat", "line 1: must be a header such as seconds,Mbit/s"),
        ("", "csv", ", after: repeat", "line 1: must be a header"),
        ("seconds,Mbit/s\n0,1\n", "csv", ", after: repeat", "must have at least two samples"),
        ("seconds,Mbit/s\n1,1\n2,1\n", "csv", ", after: repeat", "the trace begins at 1 s; its first time must be 0"),
        ("seconds,Mbit/s\n0,1\n0.0009,2\n1,1\n", "csv", ", after: repeat", "the rate at 0 s lasts 900000 ns; it must"),
        ("seconds,Mbit/s\n0,0\n1,0\n", "csv", ", after: repeat", "all rates of the trace are 0"),
        ("seconds,Mbit/s\n0,1\n1,1\n", "csv", "", "the trace ends after 2 s; add after: repeat, or after: hold"),
        ("seconds,Mbit/s\n0,1\n1,0\n", "csv", ", after: hold", "and after: hold would keep this rate"),
        ("seconds,Gbit/s\n0,1\n1,9000000\n", "csv", ", after: repeat", "a rate must be from 1bit/s to 1000000Gbit/s"),
        ("seconds,Mbit/s\n0,1\n1e999999,1\n", "csv", ", after: repeat", "line 3: 1E+999999 is too large"),
        ("seconds,Mbit/s\n0,1\n1,1e9999999\n", "csv", ", after: repeat", "line 3: 1E+9999999 is too large"),
        ("seconds,Mbit/s\n0,1\n1,1e5000\n", "csv", ", after: repeat", "numbers must be from -1e+15 to 1e+15"),
        ("1\n999999999999\n", "mahimahi", ", after: repeat", "lasts 999999999999 ms, more than 20000000 ms"),
        ("0." + "1" * 9999, "mahimahi", ", after: repeat", "line 1: 0.1111111111111111111111111111 ms follows 0 ms"),
        ("1\n5\n4\n", "mahimahi", ", after: repeat", "line 3: 4 ms follows 5 ms; times must be whole milliseconds"),
        ("0\n0\n", "mahimahi", ", after: repeat", "must have a packet after its first millisecond"),
        ("1 2 3\n", "ghent", ", after: repeat", "line 1: must have 6 numbers"),
        ("9 5 0 0 1 10\n9 5 0 0 1 10\n", "ghent", ", after: repeat", "line 2: has a time before the previous line's"),
        ("1\n", "pcap", ", after: repeat", "pcap is unknown; choose one of csv, mahimahi, ghent"),
    ],
)  # fmt: skip
def test_nonsense_is_one_line_before_anything_starts(
    tmp_path: Path, content: str, format_: str, after: str, message: str
) -> None:
    with pytest.raises(ExperimentError) as caught:
        traced(tmp_path, content, format_, after)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ("{device-lps: {up_trace: bus}}", "no trace is called 'bus'; choose one of lte-driving"),
        ("{device-lps: {up_trace: evdo-driving}}", "trace evdo-driving has no rates for the direction up"),
        ("{device-lps: {up_trace: lte-driving, up_rate: 1kbit/s}}", "up_rate and up_trace exclude each other"),
        ("{traces: {bus: {file: none, format: csv}}}", "cannot read"),
        ('{traces: {bus: {file: "a\\0b", format: csv}}}', "cannot read a b: embedded null byte"),
        ("{traces: {bus: {samples: [[0s, 1bit/s]], length: 1ns, after: repeat}}}", "the rate at 0 s lasts 1 ns"),
        ("{traces: {bus: {after: repeat}}}", "give exactly one of generate, file and samples"),
        ("{traces: {bus: {generate: {median: 1kbit/s, sigma: 1, lag: 1}}}}", "lag"),
        ("{traces: {bus: {generate: {median: 1kbit/s, sigma: 1, lag: 0, outage_share: 0.1}}}}", "need each other"),
        ("{traces: {bus: {generate: {median: 400bit/s, sigma: 1, lag: 0}}}}", "a median must be from 1kbit/s"),
        (
            "{traces: {bus: {generate: {median: 1Mbit/s, sigma: 1, lag: 0, outage_share: 0.1, outage: 0.5s}}}}",
            "generate.outage: '0.5s': an outage must be from 1s to 168h",
        ),
        (
            "{traces: {bus: {generate: {median: 1Mbit/s, sigma: 1, lag: 0, outage_share: 0.9, outage: 1s}}}}",
            "outages of this mean duration cannot fill 0.9 of the time; set outage to at least 9s",
        ),
        ("{traces: {lte-driving: {generate: {median: 1kbit/s, sigma: 1, lag: 0}}}}", "a built-in trace has this name"),
    ],
)  # fmt: skip
def test_a_trace_that_there_is_not_is_named(links: str, message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(TEXT, overrides=[f"links={links}"])
    assert message in str(caught.value)


def test_the_real_clock_has_the_virtual_ones_traces() -> None:
    links = "device-lps: {down_trace: lte-driving}, shared: {device-lps: {up_rate: 1Mbit/s}}"
    traced = parse_experiment(TEXT, overrides=["clock=real", f"links={{{links}}}"])
    assert device_links(traced).link_of(0) == DeviceTimeline(traced).links.link_of(0)  # the same draws on both clocks


# --- generated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "way", "mean", "deviation", "lag"),
    [
        ("lte-driving", "down", 5.2, 2.9, 0.92),
        ("lte-driving", "up", 0.83, 0.41, 0.84),
        ("3g-driving", "down", 2.0, 1.6, 0.9),
    ],
)
def test_a_preset_has_the_mean_deviation_and_lag_of_its_source(
    name: str, way: str, mean: float, deviation: float, lag: float
) -> None:
    preset = TRACE_PRESETS[name][way].model_copy(update={"length": 20_000 * S})
    rates = [rate / 1e6 for number in range(5) for rate in preset.drawn([7, number]).rates]
    assert fmean(rates) == pytest.approx(mean, rel=0.05)
    assert stdev(rates) == pytest.approx(deviation, rel=0.1)
    logs = np.log(np.maximum(rates[:20_000], 1e-3))
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(lag, abs=0.02)


def test_outages_are_as_often_and_as_long_as_said() -> None:
    said = {"median": "1Mbit/s", "sigma": 0.2, "lag": 0.5, "outage_share": 0.04, "outage": "5s", "length": "20000s"}
    out = [rate == 0 for n in range(5) for rate in Generated.model_validate(said).drawn([3, n]).rates]
    begins = sum(now and not before for before, now in zip([False, *out], out, strict=False))
    assert fmean(out) == pytest.approx(0.04, rel=0.15)
    assert sum(out) / begins == pytest.approx(5, rel=0.15)
    rates = [rate for rate in Generated.model_validate(said).drawn([3, 0]).rates if rate]
    assert median(rates) == pytest.approx(1e6, rel=0.05)


def test_every_device_and_direction_has_a_trace_of_its_own_and_the_same_every_time() -> None:
    links = "links={device-lps: {down_trace: lte-driving, up_trace: lte-driving}}"
    experiment = parse_experiment(TEXT, overrides=[links])
    one, other = device_links(experiment), device_links(experiment)
    ends = {(i, way): end_of(0, 10**9, one.link_of(i).rate(way)) for i in range(3) for way in (DOWN, UP)}
    assert len(set(ends.values())) == 6
    assert ends == {(i, way): end_of(0, 10**9, other.link_of(i).rate(way)) for i, way in ends}
    assert parse_experiment(TEXT, overrides=[links], seed=1).digest != experiment.digest


def test_a_round_follows_the_trace(tmp_path: Path) -> None:
    timeline = DeviceTimeline(traced(tmp_path, "seconds,kbit/s\n0,8\n1,0\n2,16\n", "csv"))
    work = {"device-000": Exchanged(down_bytes=2_500, up_bytes=0, work=pb.Work())}
    # 8,000 bits in the first second, none in the second, 12,000 more in three quarters of the third
    assert timeline.round(0, 0).times(work).ends_ns == 2_750_000_000
    assert math.isclose(timeline.round(0, 3 * S).times(work).ends_ns, 5_750_000_000)


def test_a_schedule_puts_a_rate_in_place_of_a_trace_and_the_other_way_round() -> None:
    set_ = "schedule=[{at: 5s, set: {down_rate: 8kbit/s}}, {at: 9s, set: {up_trace: lte-driving}}]"
    links = "links={device-lps: {down_trace: lte-driving, up_rate: 1kbit/s}}"
    link = device_links(parse_experiment(TEXT, overrides=[links, set_])).link_of(1)
    assert (link.at(5 * S).down_rate, link.at(5 * S).down_trace) == (8_000, None)
    assert (link.at(9 * S).up_rate, isinstance(link.at(9 * S).up_trace, Trace)) == (None, True)
