"""The virtual clock of whole runs: one file, one timeline, whatever happens in real time; and nothing else changes."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from emulator.estimates.check_times import trained_in
from emulator.estimates.retime import retime, write_retimed
from emulator.results.read_record import load_record
from emulator.results.waits_chart import picture
from fedstrata.clock.timeline import PARTS
from fedstrata.datasets import load_dataset
from fedstrata.errors import DataError, ExperimentError, OutputError
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import example_counts
from tests.support.records import rows_of, summary_of
from tests.support.spanning_runs import disturbed
from tests.support.tiers import outcome, run_in_process, small

LINKS = (
    "{device-lps: {preset: lte, jitter: 10ms}, lps-gps: {up_rate: 5Mbit/s, down_rate: 9Mbit/s, latency: 15ms}, "
    "overrides: [{devices: [4], preset: nb-iot}], shared: {device-lps: {up_rate: 8Mbit/s}}}"
)
COMPUTE = "{per_example: 0.8ms, devices: {pi4: [0-1]}, spread: {lognormal: 0.5}, exponential: 200ms}"
SPANNING = "topology={lps: 2}"
VIRTUAL = ("clock=virtual", f"links={LINKS}", f"compute={COMPUTE}", "training.global_rounds=2")


def timeline(folder: Path) -> list[dict[str, str]]:
    return rows_of(folder, "timeline.csv")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """The folder of a run on the virtual clock."""
    return run_in_process(small(*VIRTUAL), folder / "virtual").folder


@pytest.fixture(scope="module")
def spanning(folder: Path) -> Path:
    """The folder of such a run whose cluster spans two LPSs."""
    return run_in_process(small(SPANNING, *VIRTUAL), folder / "spanning").folder


def test_every_round_is_on_the_timeline_and_follows_the_one_before(run: Path) -> None:
    rows = timeline(run)
    at_lps = {(row["lps_id"], int(row["lps_round"])): row for row in rows if row["tier"] == "lps"}
    at_gps = [row for row in rows if row["tier"] == "gps"]
    assert sorted(at_lps) == [(lps, number) for lps in ("lps-0", "lps-1") for number in (1, 2, 3, 4)]
    assert len(at_gps) == 2
    for (lps, number), row in at_lps.items():
        following = at_lps.get((lps, number + 1))
        if following is not None:
            assert row["ready_s"] == following["begins_s"]
        if number in (2, 4):  # the last of a global round: what is ready then has been to the GPS and back
            assert float(at_gps[number // 2 - 1]["ends_s"]) < float(row["ready_s"])
    assert rows[0]["tier"] == "before"
    assert 0 < float(rows[0]["ends_s"]) == float(at_gps[0]["begins_s"])
    assert at_gps[0]["ends_s"] == at_gps[1]["begins_s"]
    assert {row["slowest"] for row in at_lps.values() if row["lps_id"] == "lps-1"} == {"device-004"}


def test_the_parts_of_a_round_are_the_round(run: Path) -> None:
    for row in timeline(run):
        parts = sum(float(row[f"{part}_s"]) for part in ("down", "compute", "up", "waiting"))
        assert abs(parts - (float(row["ends_s"]) - float(row["begins_s"]))) < 1e-8


def test_the_picture_of_a_round_is_what_the_tables_of_the_record_say(run: Path) -> None:
    (record, waits) = load_record(run), load_record(run).waits
    drawn = picture(record, waits, 2)
    assert drawn is not None
    rows = [row for row in timeline(run) if row["global_round"] == "2"]
    since = min(float(row["begins_s"]) for row in rows)
    ends = {(row["lps_id"], row["lps_round"]): float(row["ends_s"]) - since for row in rows}
    assert drawn["seconds"] == pytest.approx(ends["", ""], abs=1e-8)
    for row in rows:  # every lane of a device ends with its LPS's round; who is slowest waits for nobody
        bars = [bar for bar in drawn["lanes"] if str(bar["lps_round"]) == row["lps_round"] and bar["tier"] == "device"]
        of_lps = [bar for bar in bars if bar["lane"] in record.summary.by_lps.get(row["lps_id"], ())]
        for name in {bar["lane"] for bar in of_lps}:
            lane = sorted((bar for bar in of_lps if bar["lane"] == name), key=lambda bar: float(bar["begins_s"]))
            assert lane[-1]["ends_s"] == pytest.approx(ends[row["lps_id"], row["lps_round"]], abs=1e-7)
            assert (lane[-1]["part"] == "waiting") == (name != row["slowest"])
        for part in ("down", "compute", "up", "waiting") if of_lps else ():
            spent = sum(bar["ends_s"] - bar["begins_s"] for bar in of_lps if bar["part"] == part)
            children = len({bar["lane"] for bar in of_lps})
            assert spent / children == pytest.approx(float(row[f"{part}_s"]), abs=1e-7)


def test_who_waits_is_worked_out_from_bytes_rates_and_boards(run: Path) -> None:
    sent = {(r["lps_round"], r["lps_id"], int(r["child"])): r for r in rows_of(run, "flows.csv") if r["tier"] == "lps"}
    slow = [
        row for row in load_record(run).waits if row.child == "device-004"
    ]  # alone on NB-IoT: its own link is the shared one's least
    assert len(slow) == 4
    for row in slow:
        flow = sent[str(row.lps_round), row.lps_id or "", 4]
        assert row.down_s == pytest.approx(8 * int(flow["down_bytes"]) / 26e3 + 1.6, abs=1e-8)
        assert row.up_s == pytest.approx(8 * int(flow["up_bytes"]) / 66e3 + 1.6, abs=1e-8)
        assert row.waiting_s == 0


def test_the_summary_has_the_sums_and_the_hash(run: Path) -> None:
    virtual = summary_of(run)["virtual"]
    rows = timeline(run)
    assert virtual["seconds"] == max(float(row["ready_s"]) for row in rows)
    assert virtual["timeline_sha256"] == hashlib.sha256((run / "timeline.csv").read_bytes()).hexdigest()
    assert virtual["gps"]["compute"] == pytest.approx(sum(float(r["compute_s"]) for r in rows if r["tier"] == "gps"))


def test_the_check_knows_on_how_many_examples_devices_train(tmp_path: Path) -> None:
    method = "method={name: adaptive, clusters: 1, pretrain_epochs: 3}"  # in the first round; later one epoch
    experiment = small(method, "clock=virtual", "compute={per_example: 1ms}", "training.global_rounds=2")
    folder = run_in_process(experiment, tmp_path / "run").folder
    counts = example_counts(experiment, load_dataset(experiment.data, experiment.seed))
    rows = [row for row in rows_of(folder, "flows.csv") if row["tier"] == "lps"]
    assert {row["lps_round"] for row in rows} == {"1", "2", "3", "4"}
    for row in rows:
        number, index = int(row["lps_round"]) - 1, int(row["child"])
        assert int(row["examples"]) == counts[index] * (1 if number else 3)
        assert int(row["examples"]) == trained_in(experiment, counts, number)[index]


@pytest.mark.runs
def test_devices_of_three_processes_and_of_one_give_the_same_timeline_and_models(run: Path, tmp_path: Path) -> None:
    disturbed(tmp_path / "by-3", small(*VIRTUAL).to_yaml().replace("faults: []\n", ""), [], processes=3)
    assert (tmp_path / "by-3" / "timeline.csv").read_bytes() == (run / "timeline.csv").read_bytes()
    assert outcome(tmp_path / "by-3") == outcome(run)


def test_the_clock_changes_nothing_that_is_learned(run: Path, tmp_path: Path) -> None:
    plain = run_in_process(small("training.global_rounds=2"), tmp_path / "plain").folder
    assert not (plain / "timeline.csv").exists()
    assert summary_of(plain)["virtual"] is None
    for model in sorted((plain / "models").iterdir()):
        timed = load_file(run / "models" / model.name)
        for name, tensor in load_file(model).items():
            assert np.array_equal(tensor, timed[name])


def test_where_clusters_span_lpss_rounds_are_on_the_timeline_too(spanning: Path) -> None:
    rows = timeline(spanning)
    assert sum(row["tier"] == "lps" for row in rows) == 8
    assert float(rows[1]["begins_s"]) > float(rows[0]["ends_s"])  # every model comes from the GPS, the first one, too


LATE = (
    "clock=virtual", "deadlines.lps={deadline_s: 2, quorum_ratio: 0.5}", "training.global_rounds=2",
    "links={device-lps: {preset: lte, jitter: 10ms}, overrides: [{devices: [0], up_rate: 10kbit/s}]}",
    "compute={per_example: 1ms, exponential: 100ms}", "energy={radio: lte, compute: 5W}",
)  # fmt: skip


@pytest.mark.parametrize("topology", ["topology=null", SPANNING])
def test_who_misses_a_deadline_is_a_function_of_the_file(topology: str, tmp_path: Path) -> None:
    folders = [run_in_process(small(topology, *LATE), tmp_path / name).folder for name in ("one", "other")]
    assert (folders[0] / "timeline.csv").read_bytes() == (folders[1] / "timeline.csv").read_bytes()
    assert outcome(folders[0]) == outcome(folders[1])
    # 5 kB at 10 kbit/s are about 4 s: late in the first round, busy in the second, and so on
    summary = summary_of(folders[0])
    missed = [each for each in summary["excluded"] if each["from"] != "enrolment"]
    assert {each["device"] for each in missed} == {"device-000"}
    assert {"round 1", "round 2"} <= {each["from"] for each in missed}
    # what it did in vain took energy, the same in both runs
    assert (folders[0] / "energy.csv").read_bytes() == (folders[1] / "energy.csv").read_bytes()
    energy = load_record(folders[0]).summary.energy
    assert energy is not None
    late = [row for row in rows_of(folders[0], "energy.csv") if row["late"] == "1"]
    assert {row["device"] for row in late} == {"device-000"}
    assert energy.late == pytest.approx(sum(float(row[f"{part}_j"]) for row in late for part in PARTS), abs=1e-8)
    assert energy.late > 4 * 1.28804  # more than four seconds of an LTE radio
    at_lps = [row for row in timeline(folders[0]) if row["tier"] == "lps" and row["lps_id"] == "lps-0"]
    assert float(at_lps[0]["ends_s"]) - float(at_lps[0]["begins_s"]) == pytest.approx(2.0)


def test_what_is_trained_for_an_answer_before_training_counts_as_computing(tmp_path: Path) -> None:
    adaptive = "method={name: adaptive, clusters: 1, pretrain_epochs: 3}"
    folder = run_in_process(small(adaptive, "clock=virtual", "compute.per_example=1ms"), tmp_path).folder
    before = summary_of(folder)["virtual"]["before"]
    assert before["compute"] == pytest.approx((3 * 60 + 2 * 50) / 5 * 3 * 1e-3)  # examples by device, three epochs


@pytest.mark.parametrize(("made", "topology"), [("run", "topology=null"), ("spanning", SPANNING)])
def test_a_run_retimed_has_the_timeline_of_a_run_on_those_links(
    made: str, topology: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    other = ("links.device-lps={preset: nb-iot, jitter: 1s}", "compute.per_example=3ms")
    expected = run_in_process(small(topology, *VIRTUAL, *other), tmp_path / "expected").folder
    retimed = retime(request.getfixturevalue(made), other)
    write_retimed(retimed, tmp_path / "retimed")
    assert (tmp_path / "retimed" / "timeline.csv").read_bytes() == (expected / "timeline.csv").read_bytes()
    summaries = [summary_of(folder) for folder in (tmp_path / "retimed", expected)]
    assert summaries[0]["virtual"] == summaries[1]["virtual"]
    assert summaries[0]["run_id"] == summaries[1]["run_id"]
    assert (
        load_record(tmp_path / "retimed").summary.of_headline.clusters
        == load_record(expected).summary.of_headline.clusters
    )


def test_a_retimed_record_has_all_tables_of_the_run(tmp_path: Path) -> None:
    asked = ("aggregation.lps=clipped_mean", "energy={radio: lte, compute: 5W}")
    folder = run_in_process(small(*VIRTUAL, *asked), tmp_path / "run").folder
    write_retimed(retime(folder, []), tmp_path / "retimed")
    tables = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    assert {"factors.csv", "energy.csv", "waits.csv"} < tables.keys()
    assert {path.name: path.read_bytes() for path in (tmp_path / "retimed").glob("*.csv")} == tables


def test_a_retimed_record_is_written_to_a_new_folder_or_not_at_all(run: Path, tmp_path: Path) -> None:
    write_retimed(retime(run, []), tmp_path / "out")
    table = (tmp_path / "out" / "timeline.csv").read_bytes()
    with pytest.raises(OutputError, match="out: File exists; choose another folder"):  # as if by two commands at once
        write_retimed(retime(run, ["compute.per_example=3ms"]), tmp_path / "out")
    assert (tmp_path / "out" / "timeline.csv").read_bytes() == table


def test_a_model_that_the_record_does_not_name_is_told_with_a_reason(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "models" / "gone.safetensors").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"gone.safetensors is not in model_sha256 of summary.json; remove the file"):
        write_retimed(retime(copy, []), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_energy_follows_from_the_timeline_and_changes_nothing(run: Path, tmp_path: Path) -> None:
    asked = ("energy={radio: lte, compute: 5W, overrides: [{devices: [2], radio: wifi}]}",)
    folder = run_in_process(small(*VIRTUAL, *asked), tmp_path / "asked").folder
    assert outcome(folder) == outcome(run)
    assert (folder / "timeline.csv").read_bytes() == (run / "timeline.csv").read_bytes()
    assert not (run / "energy.csv").exists()
    energy = load_record(folder).summary.energy
    assert energy is not None
    rows = rows_of(folder, "energy.csv")
    assert [row["tier"] for row in rows].count("before") == 5
    assert len(rows) == 5 + 4 * 5  # four LPS rounds of five devices in all
    for part in PARTS:
        assert getattr(energy, part) == pytest.approx(sum(float(row[f"{part}_j"]) for row in rows), abs=1e-7)
    assert energy.joules == pytest.approx(sum(energy.by_device.values()))
    # a Raspberry Pi 4 has 7.2 W as long as waits.csv says, an LTE radio 1.28804 W and so much a bit
    device = [row for row in load_record(folder).waits if row.tier == "lps" and row.child == "device-000"]
    of_device = [row for row in rows if row["device"] == "device-000" and row["tier"] == "lps"]
    assert sum(float(row["compute_j"]) for row in of_device) == pytest.approx(
        7.2 * sum(row.compute_s for row in device)
    )
    sent = [row for row in rows_of(folder, "flows.csv") if row["tier"] == "lps" and row["child"] == "0"]
    expected = sum(8e-6 * int(row["up_bytes"]) * 0.43839 for row in sent) + 1.28804 * sum(row.up_s for row in device)
    assert sum(float(row["up_j"]) for row in of_device) == pytest.approx(expected)
    # a run that did not count energy is worked out afterwards, to the byte
    retimed = retime(run, asked)
    write_retimed(retimed, tmp_path / "retimed")
    assert (tmp_path / "retimed" / "energy.csv").read_bytes() == (folder / "energy.csv").read_bytes()
    assert load_record(tmp_path / "retimed").summary.energy == energy == retimed.summary.energy


def test_retiming_refuses_in_one_line_what_it_cannot_do(run: Path, tmp_path: Path) -> None:
    for change, message in (
        ("training.global_rounds=3", "changes the models or their bytes, not only the times"),
        ("links.device-lps.up=int8", "changes the models or their bytes, not only the times"),
        ("clock=none", "clock: none gives no timeline"),
        ("clock=real", "clock: real gives no timeline"),
        ("links.device-lps.up_rate=0bit/s", "a rate must be from 1bit/s"),
    ):
        with pytest.raises(ExperimentError, match=message):
            retime(run, [change])
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    text = (copy / "experiment.yaml").read_text()
    (copy / "experiment.yaml").write_text(parse_experiment(text, overrides=["method=fedavg"]).to_yaml())
    with pytest.raises(ExperimentError, match="changes the models or their bytes"):  # masked updates have more bytes
        retime(copy, ["secure_aggregation={min_devices: 3}"])
    (copy / "experiment.yaml").write_text(text)
    lines = (copy / "flows.csv").read_text().splitlines()
    for damaged in (
        lines[:-3],
        [line.replace("lps-1", "lps-9") for line in lines],
        ["x", *lines[1:]],
        [line for line in lines if not line.startswith("gps,")],
        [line for line in lines if not line.startswith("gps,") or line.split(",")[4] != "1"],
        [line for line in lines if not line.startswith("lps,1,1,lps-1,")],
        [line for line in lines if not line.startswith("lps,1,1,") or line.split(",")[4] != "3"],
    ):
        assert damaged != lines
        (copy / "flows.csv").write_text("\n".join(damaged))
        with pytest.raises(DataError, match=r"flows\.csv"):
            retime(copy, [])
    (copy / "flows.csv").unlink()
    with pytest.raises(DataError, match="no completed run on the virtual clock"):
        retime(copy, [])
