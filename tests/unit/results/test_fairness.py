"""Fairness over devices and the gain over training alone: numbers to redo by hand, and NumPy beside them."""

import csv
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from emulator.results.fairness import jains_index, variance, worst_tenth, worth
from emulator.results.measures import JAIN, VARIANCE, WORST_TENTH
from emulator.results.read_record import load_record
from emulator.sweeps.file import Sweep, sweep_of
from emulator.sweeps.results import SweepResults
from emulator.sweeps.sweep_folder import records_of
from emulator.sweeps.text_tables import COSTS_SAID, titled
from emulator.sweeps.worth import gains_csv
from fedstrata.tasks import CLASSIFICATION, Metric
from tests.support.record_files import write_record

ACCURACY = CLASSIFICATION.metrics[0]
ERROR = Metric(name="rmse", higher_is_better=False)
TOGETHER = {"device-000": 0.9, "device-001": 0.5, "device-002": 0.7}
ALONE = {"device-000": 0.8, "device-001": 0.6, "device-002": 0.7}


def test_four_devices_by_hand() -> None:
    values = [0.2, 0.4, 0.6, 0.8]
    assert worst_tenth(values, ACCURACY) == 0.2  # a tenth of four devices is one
    assert variance(values) == pytest.approx(0.05)  # 0.09, 0.01, 0.01 and 0.09, over four
    assert jains_index(values) == pytest.approx(4 / (4 * 1.2))  # (Σx)² = 4, Σx² = 1.2


def test_the_worst_tenth_of_25_devices_is_three_of_them_and_of_an_error_the_largest() -> None:
    values = [number / 100 for number in range(25)]
    assert worst_tenth(values, ACCURACY) == pytest.approx(0.01)  # 0, 0.01 and 0.02
    assert worst_tenth(values, ERROR) == pytest.approx(0.23)


def test_jains_index_goes_from_one_device_with_all_to_all_devices_alike() -> None:
    assert jains_index([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jains_index([0.3] * 4) == pytest.approx(1)
    assert jains_index([0.0, 0.0]) is None
    assert jains_index([-1.0, 2.0]) is None


def test_the_order_in_which_devices_answered_changes_no_bit_of_jains_index() -> None:
    assert len({jains_index(values) for values in permutations([0.1, 0.2, 0.3])}) == 1


@pytest.mark.parametrize("count", [1, 10, 101])
def test_numpy_says_the_same(count: int) -> None:
    values = np.random.default_rng(count).uniform(0.1, 1, count)
    worst = np.sort(values)[: -(-count // 10)]
    assert worst_tenth(values.tolist(), ACCURACY) == pytest.approx(worst.mean(), rel=1e-12)
    assert variance(values.tolist()) == pytest.approx(values.var(), rel=1e-9, abs=1e-15)
    assert jains_index(values.tolist()) == pytest.approx(values.sum() ** 2 / (count * (values**2).sum()), rel=1e-12)


def test_a_device_loses_if_it_does_better_alone(tmp_path: Path) -> None:
    together = load_record(write_record(tmp_path / "a", device_accuracy=TOGETHER))
    alone = load_record(write_record(tmp_path / "b", device_accuracy={**ALONE, "device-003": 0.1}))
    found = worth([(together, alone)])
    assert found.gains == pytest.approx({"0/device-000": 0.1, "0/device-001": -0.1, "0/device-002": 0})
    assert found.losing == 1


def sweep(**cells: object) -> Sweep:
    base = {"name": "tiny", "partition": {"kind": "iid", "devices": 5, "examples_per_device": 20}, "method": "fedavg"}
    document = {"base": base, "seeds": [3, 4], "cells": cells}
    return sweep_of(document, name="tiny", where="tiny", beside=Path())


def written(tmp_path: Path, plan: Sweep, by_cell: dict[str, dict[str, float]]) -> SweepResults:
    for run in plan.runs:
        write_record(tmp_path / run.path, seed=run.seed, device_accuracy=by_cell[run.place.cell])
    return SweepResults(sweep=plan, records=records_of(tmp_path, plan))


def test_a_sweep_with_local_says_who_loses_by_taking_part(tmp_path: Path) -> None:
    results = written(tmp_path, sweep(fedavg={}, local={"method": "local"}), {"fedavg": TOGETHER, "local": ALONE})
    (title, fairness), (worth_title, gains), _ = titled(results)
    assert (title, worth_title) == ("Fairness over devices", "Gain over training alone, device by device")
    assert fairness[0] == ["cell", "seeds", "Worst tenth %", "Variance %²", "Jain"]
    # variance of 90, 50 and 70: 800/3; (2.1)² / (3 · 1.55)
    assert fairness[1][0] == ["fedavg", "2", "50.0 ± 0.0", "266.7 ± 0.0", "0.948 ± 0.000"]
    assert gains == (
        ["cell", "Mean gain %", "Lowest gain %", "Devices that lose %", "of devices"],
        [["fedavg", "+0.0", "−10.0", "33.3", "2/6"]],
    )
    assert {WORST_TENTH, VARIANCE, JAIN} == set(results.fairness)
    rows = list(csv.DictReader((gains_csv(results) or "").splitlines()))
    assert len(rows) == 2 * 3
    assert (rows[1]["cell"], rows[1]["seed"], rows[1]["device"]) == ("fedavg", "3", "device-001")
    assert float(rows[1]["gain"]) == pytest.approx(-0.1)


def test_a_sweep_compares_nobody_with_devices_that_have_other_data(tmp_path: Path) -> None:
    cells = {"fedavg": {}, "local": {"method": "local", "partition.examples_per_device": 10}}
    results = written(tmp_path, sweep(**cells), {"fedavg": TOGETHER, "local": ALONE})
    assert [title for title, _ in titled(results) if title != COSTS_SAID] == ["Fairness over devices"]
    assert gains_csv(results) is None


def test_each_cell_is_compared_with_the_devices_that_are_alone_with_the_same_data(tmp_path: Path) -> None:
    few, alone = {"partition.examples_per_device": 10}, {"method": "local"}
    plan = sweep(fedavg={}, local=alone, few=few, few_local={**alone, **few})
    by_cell = {"fedavg": TOGETHER, "local": ALONE, "few": ALONE, "few_local": TOGETHER}
    rows = list(csv.DictReader((gains_csv(written(tmp_path, plan, by_cell)) or "").splitlines()))
    assert [(row["cell"], round(float(row["gain"]), 3)) for row in rows if row["device"] == "device-000"] == [
        ("fedavg", 0.1), ("few", -0.1), ("fedavg", 0.1), ("few", -0.1),
    ]  # fmt: skip


def test_a_table_csv_has_the_fairness_of_each_cell(tmp_path: Path) -> None:
    results = written(tmp_path, sweep(fedavg={}), {"fedavg": TOGETHER})
    found = {row["measure"]: row["mean"] for row in csv.DictReader(results.csv_text().splitlines())}
    assert float(found["worst_tenth_accuracy"]) == 0.5
    assert float(found["variance_accuracy"]) == pytest.approx(0.08 / 3)
    assert float(found["jains_index_accuracy"]) == pytest.approx(2.1**2 / (3 * 1.55))
