"""The virtual clock for its user: expected times before a run; record, result, report and comparison after it."""

from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from emulator.estimates.check_times import ExpectedTimes, Payloads, expected_times, print_links, print_times
from emulator.results.compare import compare
from emulator.results.curves import ABSCISSAE, metric_over_time
from emulator.results.read_record import RunRecord, load_record
from emulator.results.report.run_page import document_of
from emulator.results.report.style import COLOURS
from emulator.runs.progress import progress_line, status_fields
from emulator.sweeps.file import sweep_of
from emulator.sweeps.paper_files import bands_of
from emulator.sweeps.results import SweepResults
from emulator.sweeps.sweep_folder import records_of
from emulator.sweeps.sweep_page import write_results
from fedstrata.datasets import load_dataset
from fedstrata.errors import DataError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.record.timeline import Parts, RunTimes, timeline_csv, virtual_summary
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2
from tests.support.record_files import write_record

MS, S = 10**6, 10**9


def lps_row(lps_id: str, number: int, begins_s: int, ready_s: int) -> rounds_pb2.LpsRound:
    times = rounds_pb2.RoundTimes(
        begins_ns=begins_s * S, ends_ns=(begins_s + 3) * S, ready_ns=ready_s * S, down_ns=1 * S, compute_ns=2 * S,
        up_ns=1 * S, waiting_ns=2 * S, children=2, slowest="device-001",
    )  # fmt: skip
    return rounds_pb2.LpsRound(home_id=lps_id, lps_round=number, global_round=number, times=times)


ROWS = [lps_row("lps-0", 0, 0, 5), lps_row("lps-1", 0, 0, 4)]
BEFORE = rounds_pb2.RoundTimes(ends_ns=2 * S, up_ns=2 * S, waiting_ns=2 * S, children=2, slowest="device-000")
CLOSED = {0: rounds_pb2.RoundTimes(ends_ns=4 * S, compute_ns=6 * S, waiting_ns=2 * S, children=2, slowest="lps-0")}


GLOBAL = RunTimes(global_rounds=CLOSED)


def test_parts_are_means_of_children_and_sums_of_rounds() -> None:
    lines = "".join(timeline_csv(ROWS, GLOBAL)).splitlines()
    assert lines[1].startswith("before,,,,0.000000000,0.000000000,")
    assert lines[2] == (
        "lps,1,1,lps-0,0.000000000,3.000000000,5.000000000,0.500000000,1.000000000,0.500000000,1.000000000,device-001"
    )
    assert lines[4].startswith("gps,1,,,0.000000000,4.000000000,")
    summed = virtual_summary([*ROWS, lps_row("lps-0", 1, 5, 9), lps_row("lps-1", 1, 4, 8)], GLOBAL)
    assert summed.seconds == 9.0
    assert summed.lps == Parts(down=1.0, compute=2.0, up=1.0, waiting=2.0)
    assert summed.gps == Parts(down=0.0, compute=3.0, up=0.0, waiting=1.0)


def test_training_begins_when_the_questions_are_answered() -> None:
    times = RunTimes(before=BEFORE, global_rounds=CLOSED)
    lines = "".join(timeline_csv(ROWS, times)).splitlines()
    assert lines[1] == (
        "before,,,,0.000000000,2.000000000,0.000000000,0.000000000,0.000000000,1.000000000,1.000000000,device-000"
    )
    assert lines[2].startswith("lps,1,1,lps-0,2.000000000,5.000000000,7.000000000,")
    assert lines[4].startswith("gps,1,,,2.000000000,6.000000000,")
    summed = virtual_summary(ROWS, times)
    assert (summed.seconds, summed.before.up) == (7.0, 1.0)


def timed_record(folder: Path, **changes: object) -> RunRecord:
    """The record of `record_files` with a timeline beside it."""
    rows = [*ROWS, lps_row("lps-0", 1, 5, 9), lps_row("lps-1", 1, 4, 8)]
    write_record(folder, virtual=asdict(virtual_summary(rows, GLOBAL)), **changes)
    (folder / "timeline.csv").write_text("".join(timeline_csv(rows, GLOBAL)))
    return load_record(folder)


def test_accuracy_stands_at_the_time_at_which_the_model_is_there_once_all_are_measured(tmp_path: Path) -> None:
    # lps-1 is measured at 4 and 8 s with 0.5 and 0.8, lps-0 at 9 s alone, with 0.9
    assert metric_over_time(timed_record(tmp_path / "run")) == [(9.0, pytest.approx(0.85))]


def test_the_report_has_the_parts_and_the_curve(tmp_path: Path) -> None:
    parts = document_of(timed_record(tmp_path / "run"))["parts"]
    assert parts["summary/virtual"]["seconds"] == 9.0
    assert parts["virtual_curve"] == [(9.0, pytest.approx(0.85))]
    plain = document_of(load_record(write_record(tmp_path / "plain")))["parts"]
    assert (plain["summary/virtual"], plain["virtual_curve"]) == (None, None)


def test_a_comparison_draws_the_runs_that_have_a_timeline(tmp_path: Path) -> None:
    timed_record(tmp_path / "one", seed=0)
    timed_record(tmp_path / "two", seed=1)
    write_record(tmp_path / "plain", seed=2)
    compare([tmp_path / "one", tmp_path / "two", tmp_path / "plain"], tmp_path / "out")
    svg = (tmp_path / "out" / "compare-time.svg").read_text()
    assert "seed 0" in svg
    assert "seed 2" not in svg
    assert all(f"fill: {colour}" in svg for colour in COLOURS[:2])  # dots, because each curve has one point
    assert (tmp_path / "out" / "compare.csv").read_text().splitlines()[1].endswith(",9.0")
    compare([tmp_path / "plain"], tmp_path / "none")
    assert not (tmp_path / "none" / "compare-time.svg").exists()


def test_runs_of_one_name_and_seed_are_told_apart_by_where_they_differ(tmp_path: Path) -> None:
    for cell in ("lte", "nb-iot"):
        timed_record(tmp_path / "runs" / cell / "seed-0")
    compare([tmp_path / "runs" / cell / "seed-0" for cell in ("lte", "nb-iot")], tmp_path / "out")
    svg = (tmp_path / "out" / "compare-time.svg").read_text()
    assert "lte" in svg
    assert "nb-iot" in svg
    assert "seed-0" not in svg


def test_a_sweep_draws_a_panel_a_setting_of_the_runs_that_have_a_timeline(tmp_path: Path) -> None:
    document = {
        "base": {"name": "tiny", "partition": {"kind": "iid", "devices": 2, "examples_per_device": 20}},
        "seeds": [0, 1],
        "cells": {"ours": {"training.local_epochs": 2}, "plain": {}},
        "vary": {"training.batch_size": [8, 16]},
    }
    sweep = sweep_of(document, name="tiny", where="tiny", beside=Path())
    for run in sweep.runs:
        (tmp_path / run.path).parent.mkdir(parents=True, exist_ok=True)
        if run.place.label != "plain, training.batch_size=16":
            timed_record(tmp_path / run.path, seed=run.seed)
        else:
            write_record(tmp_path / run.path, seed=run.seed)
    results = SweepResults(sweep=sweep, records=records_of(tmp_path, sweep))
    bands = bands_of(results, ABSCISSAE[2])
    assert [place.label for place in bands] == [
        "ours, training.batch_size=8", "plain, training.batch_size=8", "ours, training.batch_size=16",
    ]  # fmt: skip
    for points in bands.values():
        assert [(point.x, point.spread.mean, point.spread.count) for point in points] == [(9.0, pytest.approx(0.85), 2)]
    (tmp_path / "out").mkdir()
    write_results(results, tmp_path / "out")
    svg = (tmp_path / "out" / "time.svg").read_text()
    for said in ("ours", "plain", "virtual time, seconds", ">8<", ">16<"):
        assert said in svg


def test_a_damaged_timeline_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    folder = timed_record(tmp_path / "run").folder
    text = (folder / "timeline.csv").read_text()
    for damaged in (
        text.replace("0.500000000", "-1", 1),
        text.replace("begins_s", "starts"),
        text.replace("gps,", "x,"),
    ):
        (folder / "timeline.csv").write_text(damaged)
        with pytest.raises(DataError, match=r"timeline\.csv"):
            load_record(folder)


def test_progress_tells_the_virtual_time_where_there_is_one() -> None:
    status = pb.RunStatus(phase="training", global_round=1, global_rounds=3, virtual_ns=90 * S)
    assert progress_line(status).endswith("virtual time 1\u00a0min\u00a030\u00a0s")
    assert status_fields(status)["virtual_seconds"] == 90.0
    assert status_fields(pb.RunStatus(phase="training"))["virtual_seconds"] is None


CHECKED = """
name: checked
partition: {kind: iid, devices: 4, examples_per_device: 50}
method: {name: random, clusters: 2}
training: {global_rounds: 3, lps_rounds_per_global_round: 2, local_epochs: 2}
clock: virtual
links:
  device-lps: {down_rate: 8kbit/s, up_rate: 4kbit/s, latency: 100ms}
  lps-gps: {latency: 10ms}
  overrides: [{devices: [3], preset: nb-iot}]
compute: {per_example: 1ms, profiles: {old: 10}, devices: {old: [0]}}
"""


def times_of(experiment: Experiment, payloads: Payloads) -> ExpectedTimes:
    return expected_times(experiment, payloads, load_dataset(experiment.data, experiment.seed))


def print_times_of(experiment: Experiment, payloads: Payloads, width: int) -> None:
    print_times(experiment, payloads, load_dataset(experiment.data, experiment.seed), Console(width=width))


def test_the_check_says_what_a_round_should_take_in_energy(capsys: pytest.CaptureFixture[str]) -> None:
    links = "links.device-lps={down_rate: 8kbit/s, up_rate: 4kbit/s}"
    changes = (links, "links.overrides=[]", "energy={radio: lte, compute: 2W, profiles: {old: 10W}}")
    payloads = Payloads(device_down=1_000, device_up=1_000, lps_down=500, lps_up=500)
    experiment = parse_experiment(CHECKED, overrides=changes)
    # 3 s of 1288.04 mW, 8,000 bits of 51.97 + 438.39 mJ/Mbit; 0.1 s of 2 W, of the first of four 1 s of 10 W
    expected = 3 * 1.28804 + 8e-3 * (0.05197 + 0.43839) + (10 + 3 * 0.2) / 4
    assert times_of(experiment, payloads).device_fj / 1e15 == pytest.approx(expected)
    print_times_of(experiment, payloads, 100)
    assert f"energy: about {expected:.2f}\u00a0J per LPS round for a mean device" in capsys.readouterr().out
    print_times_of(parse_experiment(CHECKED), payloads, 100)
    assert "energy" not in capsys.readouterr().out


def test_expected_times_are_those_of_the_slowest() -> None:
    payloads = Payloads(device_down=1_000, device_up=1_000, lps_down=500, lps_up=500)
    expected = times_of(parse_experiment(CHECKED), payloads)
    # device 0: 1 s and 0.1 down, 100 examples of 10 ms, 2 s and 0.1 up
    assert expected.lps_round.ends_ns == 1_100 * MS + 1_000 * MS + 2_100 * MS
    assert expected.global_round.ends_ns == 10 * MS + 2 * 4_200 * MS + 10 * MS
    assert expected.total_ns == 3 * expected.global_round.ends_ns


def test_expected_times_leave_out_the_schedule_which_changes_only_some_rounds() -> None:
    payloads = Payloads(device_down=1_000, device_up=1_000, lps_down=500, lps_up=500)
    cut = parse_experiment(CHECKED, overrides=["schedule=[{at: 0s, cut: {for: 1h}}]"])
    assert times_of(cut, payloads) == times_of(parse_experiment(CHECKED), payloads)


ASKED = (
    "method={name: ifca, clusters: 2}", "topology={lps: 2}", "partition.devices=2", "training.local_epochs=1",
    "links={device-lps: {latency: 100ms}, lps-gps: {up_rate: 8kbit/s, latency: 10ms}, "
    "overrides: [{devices: [1], latency: 1s}]}",
    "compute={per_example: 1ms}",
)  # fmt: skip


def test_expected_times_have_the_questions_in_rounds_for_which_all_lpss_wait() -> None:
    payloads = Payloads(device_down=1, device_up=1, lps_down=1, lps_up=1_000, answer=1_000)
    expected = times_of(parse_experiment(CHECKED, overrides=ASKED), payloads)
    # lps-1 has the model after 10 ms, its device after 1,010 and its answer after 2,010; the GPS after 3,020. The plan
    # is at lps-1 after 3,030, at the device after 4,030, which trains for 50: an LPS round of 5,070, the next of 2,050
    assert expected.lps_round.ends_ns == (5_070 + 2_050) // 2 * MS
    assert expected.global_round.ends_ns == 10 * MS + (5_070 + 2_050) * MS + 1_010 * MS
    assert expected.global_round.slowest == "lps-1"
    # lps-0 waits for the plan meanwhile: 3,270 and 250
    assert expected.global_round.compute_ns == (5_070 + 2_050 + 3_270 + 250) * MS
    assert expected.rounds == 6


def test_an_answer_takes_energy_in_the_first_lps_round_of_a_global_round() -> None:
    counted = (*ASKED, "energy={radio: null, radios: {own: {up: 1J/Mbit, down: 0J/Mbit, base: 0W}}, compute: 0W}")
    experiment = parse_experiment(CHECKED, overrides=[*counted, "energy.radio=own"])
    payloads = Payloads(device_down=1, device_up=1_000, lps_down=1, lps_up=1_000, answer=2_000)
    # 8,000 bits each round and 16,000 every second
    assert times_of(experiment, payloads).device_fj / 1e15 == pytest.approx(8e-3 + 16e-3 / 2)


def test_check_prints_every_link_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_links(parse_experiment(CHECKED), Console(width=120))
    print_times_of(parse_experiment(CHECKED), Payloads(device_down=1_000, device_up=1, lps_down=1, lps_up=1), 120)
    said = capsys.readouterr().out
    for words in ("devices 0 ", "devices 1, 2", "devices 3 ", "26kbit/s", "10 ×", "unlimited", "training: about"):
        assert words in said
