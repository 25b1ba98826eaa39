"""A sweep's files for a paper: bands, paired tests and tables, with numbers to redo by hand."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from emulator.results.curves import band
from emulator.results.over_seeds import MEAN
from emulator.sweeps import paired_tests, paper_table
from emulator.sweeps.file import sweep_of
from emulator.sweeps.paper_files import write_paper_files
from emulator.sweeps.results import SweepResults
from emulator.sweeps.sweep_folder import records_of
from tests.support.record_files import IDS, ROUNDS
from tests.support.tiny_sweeps import BASE, write_run

CELLS = {"ours_2": {"training.local_epochs": 2}, "plain": {}}
MEANS = {"ours_2": {3: 0.7, 4: 0.8, 5: 0.9}, "plain": {3: 0.6, 4: 0.6, 5: 0.6}}  # differences 0.1, 0.2, 0.3
VARIED = {"training.batch_size": [8, 16]}


def written(tmp_path: Path, **keys: Any) -> SweepResults:
    """Write the records of all runs, with the accuracies above (a tenth less with batches of 16)."""
    sweep = sweep_of(
        {"base": BASE, "seeds": [3, 4, 5], "cells": CELLS, **keys}, name="tiny", where="tiny", beside=Path()
    )
    for run in sweep.runs:
        mean = MEANS[run.place.cell][run.seed] - (0.1 if run.place.choices == ("training.batch_size=16",) else 0)
        devices = dict.fromkeys(IDS, mean)
        write_run(
            tmp_path, run, accuracy={"mean": mean}, device_accuracy=devices, task_accuracy=None,
            adjusted_rand_index=None,
        )  # fmt: skip
    return SweepResults(sweep=sweep, records=records_of(tmp_path, sweep))


def test_a_band_has_each_seeds_newest_value_and_begins_when_all_have_one() -> None:
    points = band({3: [(1.0, 0.5), (2.0, 0.7)], 4: [(0.5, 0.1), (1.0, 0.3), (3.0, 0.9)], 5: []})
    assert [(point.x, point.spread.mean) for point in points] == [
        (1.0, pytest.approx(0.4)), (2.0, pytest.approx(0.5)), (3.0, pytest.approx(0.8)),
    ]  # fmt: skip
    assert points[1].spread.deviation == pytest.approx(math.sqrt(0.08))  # of 0.7 and 0.3
    assert [point.spread.count for point in points] == [2, 2, 2]
    assert band({3: []}) == []


def test_p_values_are_those_of_the_textbook() -> None:
    """With three seeds, t has two degrees of freedom, and p = 1 − t / √(t² + 2). Wilcoxon's p is 2/2³."""
    t = 2 / (1 / math.sqrt(3))
    p_t, p_wilcoxon = paired_tests.p_values([1.0, 2.0, 3.0])
    assert p_t == pytest.approx(1 - t / math.sqrt(t * t + 2))
    assert p_wilcoxon == pytest.approx(0.25)


@pytest.mark.parametrize("pairs", [[], [0.1], [0.0, 0.0], [0.9 - 0.8, 0.8 - 0.7, 0.7 - 0.6]])
def test_one_seed_or_equal_differences_have_no_p_value(pairs: list[float]) -> None:
    assert paired_tests.p_values(pairs) == (None, None)


def test_holm_multiplies_the_smallest_by_the_number_of_tests_and_never_falls() -> None:
    assert paired_tests.holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, *[pytest.approx(0.06)] * 2]
    assert paired_tests.holm([0.6, 0.7]) == [1.0, 1.0]


def test_pairs_of_cells_are_tested_over_their_common_seeds(tmp_path: Path) -> None:
    results = written(tmp_path)
    head, rows = paired_tests.table(results)
    p = 1 - math.sqrt(12) / math.sqrt(14)  # t = 0.2 / (0.1 / √3)
    assert head == ["cell", "other", "n", "Difference %", "better", "p (t)", "p (t, Holm)", "p (Wilcoxon)"]
    assert rows == [["ours_2", "plain", "3", "+20.0 ± 10.0", "3", f"{p:.3f}", f"{p:.3f}", "0.250"]]
    fewer = {key: record for key, record in results.records.items() if key[1] == 3 or key[0].cell == "plain"}
    _, rows = paired_tests.table(SweepResults(sweep=results.sweep, records=fewer))
    assert rows == [["ours_2", "plain", "1", "+10.0", "1", "–", "–", "–"]]
    none = {key: record for key, record in fewer.items() if key[0].cell == "plain"}
    assert paired_tests.table(SweepResults(sweep=results.sweep, records=none))[1] == []


def test_the_best_mean_is_bold_and_latex_is_escaped(tmp_path: Path) -> None:
    results = written(tmp_path)
    assert results.measures[:2] == (MEAN, "Devices")
    assert "| ours_2 | **80.0 ± 10.0** |" in paper_table.markdown(results)
    assert "| plain | 60.0 ± 0.0 |" in paper_table.markdown(results)
    latex = paper_table.as_latex(results)
    assert r"ours\_2 & \textbf{80.0 $\pm$ 10.0} &" in latex
    assert r"cell & Mean \% & Devices \% &" in latex
    assert "over 3 seeds" in latex


def test_a_paper_has_a_row_a_cell_and_a_column_a_setting(tmp_path: Path) -> None:
    table = paper_table.paper_table(written(tmp_path, vary=VARIED))
    assert table.head == ("cell", "8", "16")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["ours_2", "80.0 ± 10.0", "70.0 ± 10.0"], ["plain", "60.0 ± 0.0", "50.0 ± 0.0"],
    ]  # fmt: skip
    assert [[cell.is_best for cell in row] for row in table.rows] == [[False, True, True], [False, False, False]]


def test_all_files_are_written_and_say_each_device_and_each_point(tmp_path: Path) -> None:
    results, out = written(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "time.pdf").touch()  # of an earlier sweep with a clock
    write_paper_files(results, out)
    assert not (out / "time.pdf").exists()
    with (out / "devices.csv").open() as file:
        devices = list(csv.DictReader(file))
    assert len(devices) == 6 * len(IDS)
    assert devices[0] == {
        "cell": "ours_2", "seed": "3", "cluster": "lps-0", "device": "device-000", "accuracy": "0.7",
    }  # fmt: skip
    with (out / "curves.csv").open() as file:
        points = [row for row in csv.DictReader(file) if row["cell"] == "plain"]
    ours = [(row["over"], float(row["x"]), row["seeds"]) for row in points]
    spent = sum(row[-2] + row[-1] for row in ROUNDS) + 6000  # type: ignore[operator]  # before training
    assert ours == [("rounds", 2.0, "3"), ("bytes", float(spent), "3")]
    assert float(points[0]["mean"]) == pytest.approx((3 * 0.9 + 2 * 0.8) / 5)
    for name in ("rounds", "bytes"):
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert "ours_2" in (out / f"{name}.svg").read_text(encoding="utf-8")
