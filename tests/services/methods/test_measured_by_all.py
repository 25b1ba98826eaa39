"""With `evaluate_all_every`, all devices measure the model after a global round; the record says who measured what."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from emulator.results.read_record import RunRecord, load_record
from fedstrata.datasets import load_dataset
from fedstrata.partitions import device_data
from fedstrata.record.rounds import RoundRow
from tests.support.disturbed import disturbed
from tests.support.tiers import run_in_process, small

ROUNDS = 4
LINK = "{up_rate: 1Mbit/s, down_rate: 4Mbit/s, latency: 5ms}"
CLOCK = ("clock=virtual", f"links.device-lps={LINK}", f"links.lps-gps={LINK}", "compute={per_example: 1ms}")
TWO_LPS = "topology={lps: 2, devices: [[0, 3], [1, 2, 4]]}"
ONE_ASKED = ("training.participation=1", "training.lps_rounds_per_global_round=2")
CASES = {
    "two LPSs, two LPS rounds, virtual clock": ("method=fedavg", TWO_LPS, *ONE_ASKED, *CLOCK),
    "one cluster": ("method=fedavg", "training.participation=0.4", "training.lps_rounds_per_global_round=1"),
    "clusters with their own LPS": ("training.participation=1", "training.lps_rounds_per_global_round=2"),
    "own models": ("method=ditto", "training.participation=2", "training.lps_rounds_per_global_round=2"),
    "own layers": ("method=fedrep", "training.participation=2", "training.lps_rounds_per_global_round=1"),
    "devices choose their cluster": ("method={name: ifca, clusters: 2}", "training.participation=3"),
    "masks": ("method=fedavg", "training.participation=3", "secure_aggregation={min_devices: 3}"),
}
QUICK = ("one cluster", "two LPSs, two LPS rounds, virtual clock")


def run(folder: Path, name: str, *overrides: str) -> RunRecord:
    record = run_in_process(small(*overrides), folder / name)
    assert record.summary.status == "completed", record.summary.reason
    return record


def measured(row: RoundRow) -> tuple[object, ...]:
    return row.loss, row.metrics["accuracy"], row.lowest, row.highest


def correct(weights: Mapping[str, NDArray[np.float32]], device: int) -> tuple[int, int]:
    """How many of a device's held-out images a model of one hidden layer names rightly, by hand, and of how many."""
    experiment = small()
    data = device_data(experiment, load_dataset(experiment.data, experiment.seed), device).test
    hidden = np.maximum(data.inputs.reshape(len(data), -1) @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    outputs = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    return int((outputs.argmax(axis=1) == data.labels).sum()), len(data)


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(name, marks=pytest.mark.runs) for name in CASES if name not in QUICK)]
)
def test_a_round_has_the_measurement_of_a_run_that_ends_with_this_round(case: str, tmp_path: Path) -> None:
    """A run that ends with global round g measures its final model, on all devices. It is the model after round g."""
    overrides = CASES[case]
    every, plain = (f"training.evaluate_all_every={n}" for n in (1, ROUNDS + 1))
    record = run(tmp_path, "long", *overrides, f"training.global_rounds={ROUNDS}", every)
    found = {(row.global_round, row.lps_id): row for row in record.global_models}
    assert len(found) == ROUNDS * len(record.summary.by_lps)
    for rounds in range(1, ROUNDS + 1):
        short = run(tmp_path, str(rounds), *overrides, f"training.global_rounds={rounds}", plain)
        ends = {row.lps_id: row for row in short.global_models if row.global_round == rounds}
        assert set(ends) == set(record.summary.by_lps)
        for lps_id, row in ends.items():
            assert measured(found[rounds, lps_id]) == measured(row)
            assert found[rounds, lps_id].cohort is None and row.loss is not None
        before = [row for row in short.rounds if row.lps_round % short.lps_rounds_per_global_round == 0][:-1]
        assert all(row.metrics["accuracy"] is None for row in before if row.global_round < rounds)
    assert short.summary.model_sha256 == record.summary.model_sha256
    assert [row.devices for row in short.rounds] == [row.devices for row in record.rounds]
    assert short.timeline == record.timeline  # measuring takes no virtual time
    counted = [[(row.bytes_up, row.bytes_down) for row in each.rounds] for each in (short, record)]
    assert np.abs(np.subtract(*counted)).max() < 1000  # requests; a model is 10 kB


def test_the_accuracy_of_a_global_round_is_that_of_its_model_on_all_held_out_images(tmp_path: Path) -> None:
    overrides = CASES["two LPSs, two LPS rounds, virtual clock"]
    record = run(tmp_path, "long", *overrides, f"training.global_rounds={ROUNDS}", "training.evaluate_all_every=2")
    between = [row for row in record.rounds if row.lps_round % 2]
    assert {row.metrics["accuracy"] for row in between} == {None}
    assert all(row.cohort is not None for row in between)
    for rounds in range(1, ROUNDS + 1):
        rows = [row for row in record.global_models if row.global_round == rounds]
        if rounds % 2:  # measured by the next round's cohort alone
            assert {row.metrics["accuracy"] for row in rows} == {None} and {row.lowest for row in rows} == {None}
            assert all(row.cohort is not None for row in rows)
            continue
        short = run(tmp_path, str(rounds), *overrides, f"training.global_rounds={rounds}")
        weights = load_file(short.folder / "models" / "cluster-0.safetensors")
        for row, devices in zip(rows, ((0, 3), (1, 2, 4)), strict=True):
            hits, images = np.sum([correct(weights, device) for device in devices], axis=0)
            assert row.metrics["accuracy"] == pytest.approx(hits / images, abs=1e-6)
            assert row.cohort is None


def test_without_the_key_the_rounds_of_a_cohort_have_no_accuracy_and_the_last_has_all_devices(tmp_path: Path) -> None:
    record = run(tmp_path, "run", *CASES["one cluster"], f"training.global_rounds={ROUNDS}")
    *cohorts, last = record.rounds
    assert {row.metrics["accuracy"] for row in cohorts} == {None} and last.cohort is None
    assert all(0 <= (row.cohort or 0.0) <= 1 and row.cohort is not None for row in cohorts)
    assert last.metrics["accuracy"] == pytest.approx(record.summary.mean, abs=1e-6)


FAULTS = {
    "the LPS has all measurements": ("lps-0", {"point": "aggregation", "round": 2}),
    "a device has the model to measure": ("device-001", {"point": "download", "round": 2, "count": 2}),
    "the LPS has sent the model to train": ("lps-0", {"point": "download", "round": 2, "count": 4}),
    "the LPS has a part of an update of the next round": ("lps-1", {"point": "upload", "round": 2}),
    "the GPS is at the next round": ("gps", {"point": "aggregation", "round": 1}),
}


@pytest.mark.kills
@pytest.mark.parametrize(("fault", "spans"), list(zip(FAULTS, [True, False, True, False, True], strict=True)))
def test_a_kill_around_a_measurement_changes_no_row(fault: str, spans: bool, tmp_path: Path) -> None:
    overrides = [f"training.global_rounds={ROUNDS}", "training.evaluate_all_every=1", *ONE_ASKED]
    experiment = small(*overrides, *(("method=fedavg", TWO_LPS) if spans else ()))
    undisturbed = run_in_process(experiment, tmp_path / "undisturbed")
    process, at = FAULTS[fault]
    folder = tmp_path / "disturbed"
    folder.mkdir()
    out = disturbed(experiment.to_yaml(), [{"do": "kill", "process": process, "at": at}], 2, folder)
    rows = {(row.lps_round, row.lps_id): measured(row) for row in undisturbed.rounds}
    assert rows == {(row.lps_round, row.lps_id): measured(row) for row in load_record(out).rounds}
    assert load_record(out).summary.model_sha256 == undisturbed.summary.model_sha256
