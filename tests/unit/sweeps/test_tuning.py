"""`tune` in a sweep file: which runs choose, what they choose, and what is refused. No run is done here."""

from pathlib import Path
from typing import Any

import pytest

from emulator.sweeps import paper_table, sweep_folder, tuning
from emulator.sweeps.file import Sweep, sweep_file, sweep_of
from emulator.sweeps.results import SweepResults
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep import Cost, SweepOutcome
from emulator.sweeps.sweep_folder import records_of
from emulator.sweeps.sweep_progress import SweepDisplay
from emulator.sweeps.tuning import SweepSource, tuned_sweep
from fedstrata.errors import ExperimentError, OutputError, RunStoppedError
from tests.support.tiny_sweeps import BASE, write_run

RATE = "training.optimiser.learning_rate"
CELLS = {"ours": {"training.local_epochs": 2}, "plain": {}}
TUNE = {"grid": {RATE: [0.01, 0.1, 1.0]}, "seeds": [101, 102]}
# by cell, rate and seed; ours is best at 0.1 over both seeds, plain equally good at 0.01 and 0.1
REASON = "the quorum is 10 (device-010 was refused: training has diverged, or the sender is faulty)"
SCORES: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("ours", "0.01"): (0.6, 0.6), ("ours", "0.1"): (0.9, 0.5), ("ours", "1.0"): (0.4, 0.8),
    ("plain", "0.01"): (0.7, 0.7), ("plain", "0.1"): (0.8, 0.6), ("plain", "1.0"): (0.1, 0.1),
}  # fmt: skip


def source_of(**keys: Any) -> SweepSource:
    document = {"base": BASE, "seeds": [3, 4], "cells": CELLS, "baseline": "plain", "tune": TUNE, **keys}
    return SweepSource(document=document, name="tiny", where="tiny", beside=Path())


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Sweep]:
    """The sweeps of candidates that were asked for. Each run has the score above."""
    asked: list[Sweep] = []

    def do(request: Any, _: object) -> Any:
        asked.append(request.sweep)
        for run in request.sweep.runs:
            score = SCORES[run.place.words[0], run.place.words[-1]][request.sweep.seeds.index(run.seed)]
            if score is None:
                continue
            write_run(request.store.folder, run, accuracy={"mean": score}, task_accuracy=None)
        results = SweepResults(sweep=request.sweep, records=records_of(request.store.folder, request.sweep))
        failed = [run for run in request.sweep.runs if not (request.store.folder / run.path).exists()]
        failures = [(run, RunStoppedError(REASON)) for run in failed]
        return SweepOutcome(
            results=results, failures=tuple(failures), cost=Cost(runs=0, seconds=0, cpu_seconds=0, cores=1)
        )

    monkeypatch.setattr(tuning, "sweep", do)
    return asked


def test_each_row_gets_its_best_value_and_of_equals_the_first(tmp_path: Path, done: list[Sweep]) -> None:
    sweep = tuned_sweep(source_of(), SharedFolder(tmp_path / "out"), None, SweepDisplay())
    assert sweep.tuned is not None
    assert sweep.tuned.chosen == {"ours": {RATE: 0.1}, "plain": {RATE: 0.01}}
    rates = {(run.place.cell, run.experiment.training.optimiser.learning_rate) for run in sweep.runs}
    assert rates == {("ours", 0.1), ("plain", 0.01)}
    assert sweep.seeds == (3, 4)
    (candidates,) = done
    assert candidates.seeds == (101, 102)
    assert len(candidates.runs) == 2 * 3 * 2  # cells, values, seeds: the same budget for each cell
    assert (tmp_path / "out" / "tuning" / candidates.runs[0].path).exists()


def test_a_candidate_that_diverged_for_a_seed_cannot_win(
    tmp_path: Path, done: list[Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, ("ours", "0.1"), (0.95, None))
    monkeypatch.setitem(SCORES, ("ours", "1.0"), (0.4, 0.7))
    sweep = tuned_sweep(source_of(), SharedFolder(tmp_path / "out"), None, SweepDisplay())
    assert sweep.tuned is not None
    assert sweep.tuned.chosen == {"ours": {RATE: 0.01}, "plain": {RATE: 0.01}}


def test_a_row_without_a_candidate_stops_the_sweep(
    tmp_path: Path, done: list[Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rate in ("0.01", "0.1", "1.0"):
        monkeypatch.setitem(SCORES, ("plain", rate), (None, 0.5))
    with pytest.raises(RunStoppedError, match="no candidate of plain has accuracy for all seeds; try others"):
        tuned_sweep(source_of(), SharedFolder(tmp_path / "out"), None, SweepDisplay())


def test_a_candidate_that_failed_for_another_reason_stops_the_sweep(
    tmp_path: Path, done: list[Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, ("ours", "0.1"), (0.95, None))
    monkeypatch.setitem(globals(), "REASON", "the disk is full")
    with pytest.raises(RunStoppedError, match=r"0\.1.*: the disk is full; the same command tries them again"):
        tuned_sweep(source_of(), SharedFolder(tmp_path / "out"), None, SweepDisplay())


def test_the_sweeps_own_file_has_the_choice_and_chooses_nothing_again(tmp_path: Path, done: list[Sweep]) -> None:
    sweep = tuned_sweep(source_of(), SharedFolder(tmp_path / "out"), None, SweepDisplay())
    written = tmp_path / "out" / "sweep.yaml"
    written.write_text(sweep.text, encoding="utf-8")
    again = tuned_sweep(SweepSource.of_file(written), SharedFolder(tmp_path / "new"), None, SweepDisplay())
    assert len(done) == 1
    assert [run.experiment.digest for run in again.runs] == [run.experiment.digest for run in sweep.runs]


def test_the_paper_says_grid_budget_data_and_choice(tmp_path: Path, done: list[Sweep]) -> None:
    sweep = tuned_sweep(source_of(), SharedFolder(tmp_path / "out"), None, SweepDisplay())
    for run in sweep.runs:
        write_run(tmp_path / "out", run, task_accuracy=None)
    text = paper_table.markdown(SweepResults(sweep=sweep, records=records_of(tmp_path / "out", sweep)))
    assert f"Tuned: {RATE} from 0.01, 0.1, 1.0; 6 runs per row, on seeds 101, 102. These runs measure on tests" in text
    assert "| ours | 0.1 |" in text


def test_with_a_validation_share_candidates_measure_on_validation_examples_of_the_tables_seeds() -> None:
    """Only candidates do so: the table's runs keep the base's test set, and train on all training examples."""
    tune = {"grid": TUNE["grid"], "validation_share": 0.25}
    source = source_of(tune=tune)
    file = sweep_file(source.document, "tiny")
    assert file.tune is not None
    document = tuning.candidates_of(source.document, file, file.tune)
    assert document["seeds"] == [3, 4]
    assert document["vary"] == {RATE: [0.01, 0.1, 1.0]}
    candidates = sweep_of(document, name="tiny", where="tiny", beside=Path())
    assert len(candidates.runs) == 2 * 3 * 2  # cells, values, seeds
    assert {run.experiment.partition.test_set for run in candidates.runs} == {"validation"}
    assert {run.experiment.partition.validation_share for run in candidates.runs} == {0.25}

    sweep = source.sweep({"ours": {RATE: 0.1}, "plain": {RATE: 0.1}})
    assert {run.experiment.partition.test_set for run in sweep.runs} == {"own"}
    assert {run.experiment.partition.validation_share for run in sweep.runs} == {None}
    assert sweep.tuned is not None
    assert "6 runs per row, on seeds 3, 4. These runs measure on 25 % of each device's training" in sweep.tuned.said
    fewer = sweep_file(source_of(tune={**tune, "seeds": [4]}).document, "tiny")
    assert fewer.tune is not None
    assert tuning.candidates_of(source.document, fewer, fewer.tune)["seeds"] == [4]


def test_a_sweep_that_was_interrupted_while_it_tuned_goes_on(tmp_path: Path) -> None:
    (tmp_path / "tuning").mkdir()
    with pytest.raises(OutputError, match="exists and is not empty"):
        sweep_folder.check_folder(tmp_path)
    (tmp_path / "tuning" / "sweep.yaml").touch()
    sweep_folder.check_folder(tmp_path)


@pytest.mark.parametrize(
    ("key", "values"),
    [("links.lps-gps.up_rate", ["10Mbit/s", "1Mbit/s"]), ("model.hidden", [[8], [16]]), ("data.noise", [-0.5, 0.5])],
)
def test_a_value_that_cannot_be_the_name_of_a_folder_is_a_candidate_too(key: str, values: list[Any]) -> None:
    document = source_of(tune={"grid": {key: values}, "seeds": [101]}).document
    file = sweep_file(document, "tiny")
    assert file.tune is not None
    candidates = sweep_file(tuning.candidates_of(document, file, file.tune), "tiny")
    assert [*candidates.vary[key].values()] == [{key: value} for value in values]


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ({"grid": {RATE: [0.1]}, "seeds": [101]}, "grid has one combination"),
        ({"grid": {RATE: []}, "seeds": [101]}, f"grid.{RATE} has no values"),
        ({"grid": {RATE: [0.1, 0.2]}, "seeds": [3]}, "tune.seeds has 3, a seed of the table"),
        ({"grid": {"training.local_epochs": [1, 5]}, "seeds": [101]}, "cell ours sets training.local_epochs"),
        ({"grid": {"method.mu": [1, 5]}, "seeds": [101]}, "method.mu"),
        ({"grid": {RATE: [0.1, "fast"]}, "seeds": [101]}, "learning_rate"),
        ({"grid": {"training.rate": [0.1, 0.2]}, "seeds": [101]}, "rate"),
        ({"seeds": [101]}, "tune.grid"),
        ({"grid": {RATE: [0.1, 0.2]}}, "candidates need data to measure on; give validation_share"),
        ({"grid": {RATE: [0.1, 0.2]}, "validation_share": 1}, "tune.validation_share"),
        ({**TUNE, "values": 3}, "tune.values: unknown key"),
        ({**TUNE, "chosen": {"ours": {RATE: 0.1}}}, f"tune.chosen has no value of {RATE} for 'plain'"),
        ({**TUNE, "chosen": {"ours": {RATE: 0.1}, "plain": {}}}, f"tune.chosen has no value of {RATE} for 'plain'"),
        (
            {**TUNE, "chosen": {"ours": {RATE: 0.1}, "plain": {RATE: 0.1}, "gone": {}}},
            f"tune.chosen has no value of {RATE} for 'gone'",
        ),
    ],
)  # fmt: skip
def test_a_wrong_section_is_refused_in_one_line_before_a_run(tmp_path: Path, tune: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError) as error:
        tuned_sweep(source_of(tune=tune), SharedFolder(tmp_path / "out"), None, SweepDisplay())
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_no_row_chooses_the_test_set_of_candidates_that_measure_on_validation_examples() -> None:
    tune = {"grid": TUNE["grid"], "validation_share": 0.25}
    with pytest.raises(ExperimentError, match=r"vary.partition.tests sets partition.tests, but tune.validation_share"):
        sweep_file(source_of(tune=tune, vary={"partition.tests": ["own", "global"]}).document, "tiny")


def test_a_file_that_has_chosen_nothing_cannot_be_read_as_a_sweep() -> None:
    with pytest.raises(ExperimentError, match="tune has chosen no values yet"):
        sweep_of(source_of().document, name="tiny", where="tiny", beside=Path())
