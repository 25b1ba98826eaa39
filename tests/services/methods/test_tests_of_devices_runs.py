"""Test sets in whole runs: the accuracy in the record is that of the saved model on the tests that it names."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from emulator.results.best_round import best_round, measured_rounds
from emulator.results.read_record import RunRecord
from fedstrata.datasets import Dataset, Examples, load_dataset
from fedstrata.experiment import DataSettings
from fedstrata.partitions import device_data
from fedstrata.record.summary import measured_on
from tests.support.tiers import run_in_process, small

ROUNDS = 4
UNEVEN = "kind: label_dirichlet, devices: 7, concentration: 0.3, minimum: 10"
FLAT = ("method=fedavg", "training.lps_rounds_per_global_round=1", "training.participation=2")
CASES = {
    "one LPS": FLAT,
    "three LPSs": (*FLAT, "topology={lps: 3}"),
    "own head": ("method=ditto", "training.lps_rounds_per_global_round=1"),
    "masks": ("method=fedavg", "training.lps_rounds_per_global_round=2", "secure_aggregation={min_devices: 3}"),
}


def run(folder: Path, tests: str, *overrides: str, rounds: int = ROUNDS) -> RunRecord:
    partition = f"partition={{{UNEVEN}, {tests}}}"
    experiment = small(partition, f"training.global_rounds={rounds}", *overrides)
    record = run_in_process(experiment, folder)
    assert record.summary.status == "completed", record.summary.reason
    return record


def digits() -> Dataset:
    return load_dataset(DataSettings(name="digits"), 0)


def correct(weights: Mapping[str, NDArray[np.float32]], examples: Examples) -> int:
    """How many examples a model of one hidden layer names rightly, by NumPy alone."""
    hidden = np.maximum(examples.inputs.reshape(len(examples), -1) @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    return int(((hidden @ weights["fc2.weight"].T + weights["fc2.bias"]).argmax(axis=1) == examples.labels).sum())


def saved(record: RunRecord) -> Mapping[str, NDArray[np.float32]]:
    (path,) = (record.folder / "models").glob("*.safetensors")
    return load_file(path)


@pytest.mark.parametrize("case", CASES)
def test_with_global_the_recorded_accuracy_is_that_of_the_saved_model_on_the_whole_test_set(
    case: str, tmp_path: Path
) -> None:
    record, tests = run(tmp_path / "run", "tests: global", *CASES[case]), digits().test
    found = record.summary.of_headline
    of_model = found.clusters if found.received is None else found.received  # ditto's devices use own models
    assert (of_model["mean"] or 0) * len(tests) == pytest.approx(correct(saved(record), tests), abs=1e-9)
    assert record.summary.test_set is not None
    assert (record.summary.test_set.name, record.summary.test_set.examples) == ("global", len(tests))
    assert record.summary.test_set.devices == 7


def test_each_measured_round_has_the_accuracy_of_its_model_on_the_whole_test_set(tmp_path: Path) -> None:
    overrides, tests = (*CASES["three LPSs"], "training.evaluate_all_every=1"), digits().test
    record = run(tmp_path / "long", "tests: global", *overrides)
    rounds = measured_rounds(record)
    assert sorted(rounds) == [1, 2, 3, 4]
    for number in (1, 2, 3):
        short = run(tmp_path / str(number), "tests: global", *overrides, rounds=number)
        assert rounds[number] * len(tests) == pytest.approx(correct(saved(short), tests), abs=1e-3)
    assert rounds[4] == pytest.approx(record.summary.mean, abs=1e-5)
    assert rounds[best_round(record, rounds)] == max(rounds.values())
    sums = [sum(row.measured_examples or 0 for row in record.rounds if row.global_round == n) for n in rounds]
    assert sums == [len(tests)] * 4


def test_tests_change_no_model(tmp_path: Path) -> None:
    runs = [run(tmp_path / tests, f"tests: {tests}", *CASES["three LPSs"]) for tests in ("own", "global", "alike")]
    assert len({str(each.summary.model_sha256) for each in runs}) == 1
    assert runs[0].summary.test_set is None
    assert [measured_on(each.summary) for each in runs] == [
        "each device's own tests",
        "all tests of the data set (355)",
        "the data set's tests, divided like the training data (355)",
    ]


def test_with_validation_no_test_is_measured_and_the_final_run_trains_the_same_model(tmp_path: Path) -> None:
    tuned, final = (run(tmp_path / t, f"validation_share: 0.2, tests: {t}", *FLAT) for t in ("validation", "global"))
    assert tuned.summary.model_sha256 == final.summary.model_sha256
    experiment = small(f"partition={{{UNEVEN}, validation_share: 0.2, tests: validation}}", *FLAT)
    held = [device_data(experiment, digits(), device).test for device in range(7)]
    hits, examples = sum(correct(saved(tuned), each) for each in held), sum(map(len, held))
    assert (tuned.summary.mean or 0) * examples == pytest.approx(hits, abs=1e-9)
    assert measured_on(tuned.summary) == f"examples for validation, which are no tests ({examples})"
