"""A sweep's folder, its tables and its pace: what is done again, and numbers to redo by hand."""

import csv
import errno
import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

from emulator.results.measures import ARI
from emulator.results.output import prepare_folder
from emulator.results.over_seeds import MEAN
from emulator.runs.incoming import ASIDE
from emulator.sweeps import sweep as sweep_module
from emulator.sweeps import text_tables
from emulator.sweeps.claims import Claim, Failure, failures, opened
from emulator.sweeps.file import Place, Sweep, SweepRun, sweep_of
from emulator.sweeps.results import SweepResults
from emulator.sweeps.store import SharedFolder
from emulator.sweeps.sweep import Cost, SweepRequest
from emulator.sweeps.sweep_folder import SWEEP, FolderState, check_folder, clear, joined, records_of, state_of
from emulator.sweeps.sweep_page import are_written, write_results
from emulator.sweeps.sweep_progress import Pace, SweepBars, SweepDisplay
from fedstrata.errors import OutputError, RunStoppedError
from fedstrata.record.rounds import RoundsTable
from fedstrata.tasks import Metric
from fedstrata.v1 import gps_service_pb2 as pb
from tests.support.record_files import write_csv, write_record
from tests.support.tiny_sweeps import BASE, claim_of, write_run

CELLS = {"ours": {"training.local_epochs": 2}, "plain": {}}
BATCHES = {"training.batch_size": [8, 16]}
# ours is better by 0.1 with seed 3 and by 0.3 with seed 4; of seed 5 only one is done
FILES = (
    "curves.csv", "devices.csv", "figure.png", "figure.svg", "index.html", "pairs.csv", "paper.md", "paper.tex",
    "table.csv", "table.md",
)  # fmt: skip
BAGS = {"ours": {3: 0.7, 4: 0.8}, "plain": {3: 0.6, 4: 0.5, 5: 0.1}}


def sweep(**keys: Any) -> Sweep:
    document = {"base": BASE, "seeds": [3, 4, 5], "cells": CELLS, "baseline": "plain", **keys}
    return sweep_of(document, name="tiny", where="tiny", beside=Path())


def place_of(cell: str) -> Place:
    return Place(cell=cell)


@pytest.fixture
def results(tmp_path: Path) -> SweepResults:
    """The records of five runs out of six, with the accuracies above on the task bags."""
    for cell, by_seed in BAGS.items():
        for seed, bags in by_seed.items():
            write_record(tmp_path / "runs" / cell / f"seed-{seed}", seed=seed, task_accuracy={"bags": bags})
    return SweepResults(sweep=sweep(), records=records_of(tmp_path, sweep()))


# --- the table ----------------------------------------------------------------------------------------------


def test_means_and_deviations_are_over_the_seeds_that_are_done(results: SweepResults) -> None:
    ours, plain = (results.spread(place_of(cell), "bags") for cell in ("ours", "plain"))
    assert (ours.mean, ours.count) == (pytest.approx(0.75), 2)
    assert ours.deviation == pytest.approx(math.sqrt(0.005))
    assert (plain.mean, plain.count) == (pytest.approx(0.4), 3)


def test_differences_are_of_the_seeds_that_both_have(results: SweepResults) -> None:
    difference = results.difference(place_of("ours"), "bags")
    assert difference is not None
    assert difference.spread.mean == pytest.approx(0.2)  # (0.1 + 0.3) / 2, not 0.75 − 0.4
    assert difference.spread.deviation == pytest.approx(math.sqrt(0.02))
    assert (difference.spread.count, difference.better) == (2, 2)
    assert results.difference(place_of("plain"), "bags") is None


def test_the_tables_say_the_numbers(results: SweepResults) -> None:
    assert results.measures == (ARI, MEAN, "bags")
    assert text_tables.means(results) == (
        ["cell", "seeds", "ARI", "Mean %", "bags %"],
        [
            ["ours", "2", "1.00 ± 0.00", "86.0 ± 0.0", "75.0 ± 7.1"],
            ["plain", "3", "1.00 ± 0.00", "86.0 ± 0.0", "40.0 ± 26.5"],
        ],
    )
    assert text_tables.differences(results) == (
        ["cell", "ARI", "Mean %", "bags %"],
        [["ours", "+0.00 ± 0.00 (0/2)", "+0.0 ± 0.0 (0/2)", "+20.0 ± 14.1 (2/2)"]],
    )
    assert "| ours | 2 | 1.00 ± 0.00 | 86.0 ± 0.0 | 75.0 ± 7.1 |\n" in text_tables.markdown(results)


def test_the_csv_has_a_row_a_cell_and_measure_in_full(results: SweepResults) -> None:
    rows = list(csv.DictReader(results.csv_text().splitlines()))
    assert [(row["cell"], row["measure"]) for row in rows][:3] == [
        ("ours", "adjusted_rand_index"), ("ours", "mean_accuracy"), ("ours", "accuracy_bags"),
    ]  # fmt: skip
    assert float(rows[2]["difference_mean"]) == pytest.approx(0.2)
    assert (rows[2]["baseline"], rows[2]["pairs"], rows[2]["better"]) == ("plain", "2", "2")
    (own,) = [row for row in rows if (row["cell"], row["measure"]) == ("plain", "accuracy_bags")]
    assert (own["baseline"], own["difference_mean"]) == ("", "")


def test_a_difference_is_to_the_baseline_in_the_same_setting(tmp_path: Path) -> None:
    accuracies = {("ours", "8"): 0.9, ("plain", "8"): 0.8, ("ours", "16"): 0.5, ("plain", "16"): 0.7}
    for (cell, batch), mean in accuracies.items():
        folder = tmp_path / "runs" / cell / f"training.batch_size={batch}" / "seed-3"
        write_record(folder, seed=3, accuracy={"mean": mean}, task_accuracy=None, adjusted_rand_index=None)
    varied = sweep(vary=BATCHES)
    found = SweepResults(sweep=varied, records=records_of(tmp_path, varied))
    head, rows = text_tables.differences(found)
    assert head == ["cell", "training.batch_size", "Mean %"]
    assert rows == [["ours", "8", "+10.0 (1/1)"], ["ours", "16", "−20.0 (0/1)"]]


def test_a_lower_error_is_better_than_the_baselines(tmp_path: Path) -> None:
    metric = {"name": "rmse", "title": "RMSE", "unit": "plain", "higher_is_better": False}
    for cell, by_seed in {"ours": {3: 1.0, 4: 3.0, 5: 2.0}, "plain": {3: 2.0, 4: 2.5, 5: 2.0}}.items():
        for seed, error in by_seed.items():
            folder = write_record(
                tmp_path / "runs" / cell / f"seed-{seed}", seed=seed, rounds=(), metrics=[metric],
                rmse={"lps-0": error, "mean": error}, received_rmse=None, device_rmse={}, task_rmse=None,
            )  # fmt: skip
            write_csv(folder / "rounds.csv", [RoundsTable((Metric(name="rmse"),)).columns])
    found = SweepResults(sweep=sweep(), records=records_of(tmp_path, sweep()))
    difference = found.difference(place_of("ours"), MEAN)  # −1, +0.5 and 0
    assert difference is not None
    assert (difference.spread.mean, difference.better) == (pytest.approx(-0.5 / 3), 1)


def test_the_page_leads_to_every_report_and_the_same_records_give_the_same_files(
    results: SweepResults, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_results(results, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert files == sorted(
        [*FILES, *(f"{name}.{kind}" for name in ("rounds", "bytes") for kind in ("pdf", "png", "svg"))]
    )
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    assert are_written(results, tmp_path / "first")
    page = (tmp_path / "first" / "index.html").read_text(encoding="utf-8")
    for cell, by_seed in BAGS.items():
        for seed in by_seed:
            assert f'href="runs/{cell}/seed-{seed}/report.html"' in page
    assert 'href="runs/ours/seed-5/report.html"' not in page


def test_nothing_done_yet_is_a_page_all_the_same(tmp_path: Path) -> None:
    write_results(SweepResults(sweep=sweep(vary=BATCHES), records={}), tmp_path)
    assert "no run was completed" in (tmp_path / "figure.svg").read_text(encoding="utf-8")


# --- the folder ---------------------------------------------------------------------------------------------


def stand(folder: Path, run: int = 0) -> FolderState:
    return state_of(folder, sweep().runs[run].experiment)


def finished(folder: Path, **changes: Any) -> Path:
    """A record of the sweep's first run."""
    write_record(folder, seed=3, **changes)
    (folder / "experiment.yaml").write_text(sweep().runs[0].experiment.to_yaml(), encoding="utf-8")
    return folder


def test_a_run_with_a_complete_record_is_done(tmp_path: Path) -> None:
    assert stand(finished(tmp_path / "run")) is FolderState.DONE


def test_a_run_without_a_folder_or_with_the_beginning_of_one_is_begun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert stand(folder) is FolderState.NEW
    (folder / "state").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "experiment.yaml").touch()
    (folder / ASIDE).mkdir()  # a record from pods, half fetched
    assert stand(folder) is FolderState.NEW
    clear(folder)
    assert not folder.exists()


def test_a_run_that_had_begun_goes_on(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "run", sweep().runs[0].experiment)
    assert stand(tmp_path / "run") is FolderState.HALF


@pytest.mark.parametrize("damage", [{"status": "failed", "accuracy": {}}, {"clusters": {}}])
def test_a_run_that_failed_or_whose_record_is_damaged_goes_on(tmp_path: Path, damage: Mapping[str, Any]) -> None:
    folder = finished(tmp_path / "run", **damage)
    (folder / "state").mkdir()
    assert stand(folder) is FolderState.HALF


def test_a_run_of_another_experiment_is_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    with pytest.raises(OutputError, match="holds a run of another experiment"):
        stand(folder, run=1)


def test_what_is_not_of_a_run_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(OutputError, match=r"thesis\.tex does not belong to a run"):
        stand(tmp_path)


def test_processes_of_one_sweep_share_its_folder_and_another_sweep_waits_for_their_end(tmp_path: Path) -> None:
    out, other = tmp_path / "out", sweep(seeds=[3])
    with joined(out, sweep()), joined(out, sweep()):
        with pytest.raises(OutputError, match="a sweep with another file is using"), joined(out, other):
            pass
        assert (out / SWEEP).read_text(encoding="utf-8") == sweep().text
    with joined(out, other):
        assert (out / SWEEP).read_text(encoding="utf-8") == other.text


class FullDisk(io.StringIO):
    """An empty file on a disk without space."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_sweep_file_that_cannot_be_read_or_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / SWEEP).write_bytes(b"\xff\xfe")
    with pytest.raises(OutputError, match=r"sweep\.yaml is not a sweep file"), joined(tmp_path, sweep()):
        pass
    monkeypatch.setattr("emulator.sweeps.sweep_folder.opened", lambda path: FullDisk(path.name))
    monkeypatch.setattr("emulator.sweeps.sweep_folder.is_locked", lambda *_: True)
    with pytest.raises(OutputError, match=r"cannot write sweep\.yaml: No space"), joined(tmp_path, sweep()):
        pass


def test_a_sweep_file_that_a_user_has_written_is_not_lost(tmp_path: Path) -> None:
    mine = tmp_path / SWEEP
    mine.write_text("# mine\nbase: digits\nseeds: [3]\n", encoding="utf-8")
    with (
        pytest.raises(OutputError, match=r"sweep\.yaml is written by hand, and would be lost"),
        joined(tmp_path, sweep()),
    ):
        pass
    assert mine.read_text(encoding="utf-8").startswith("# mine")
    claim_of(tmp_path / sweep().runs[0].path).release()  # it is this folder's sweep, which a user has changed
    with joined(tmp_path, sweep()):
        assert mine.read_text(encoding="utf-8") == sweep().text


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(OutputError, match="exists and is not empty"):
        check_folder(tmp_path)
    (tmp_path / SWEEP).touch()  # by another process of the sweep
    check_folder(tmp_path)


def test_a_run_of_another_process_that_no_report_can_be_drawn_of_does_not_end_the_other_runs(tmp_path: Path) -> None:
    class OfAnotherProcess(SharedFolder):
        def claim(self, run: SweepRun) -> Claim | None:
            folder = write_run(self.folder, run)
            if run.seed == 3:
                (folder / "waits.csv").write_text("damaged", encoding="utf-8")
            return super().claim(run)

    two = sweep(cells={"plain": {}}, seeds=[3, 4])
    outcome = sweep_module.sweep(SweepRequest(sweep=two, store=OfAnotherProcess(tmp_path), jobs=1), SweepDisplay())
    assert [run.seed for run, _ in outcome.failures] == [3]
    assert (tmp_path / two.runs[1].path / "report.html").exists()


def test_reports_that_are_missing_or_of_an_earlier_record_are_drawn(tmp_path: Path) -> None:
    two = sweep(cells={"plain": {}}, seeds=[3, 4])
    for run in two.runs:
        write_run(tmp_path, run)
    earlier = tmp_path / two.runs[0].path / "report.html"
    earlier.write_text("<p>of a run that failed", encoding="utf-8")
    os.utime(earlier, (0, 0))
    (tmp_path / SWEEP).touch()
    outcome = sweep_module.sweep(SweepRequest(sweep=two, store=SharedFolder(tmp_path), jobs=1), SweepDisplay())
    assert outcome.cost.runs == 0
    assert all((tmp_path / run.path / "report.html").stat().st_size > 10_000 for run in two.runs)


# --- claims -------------------------------------------------------------------------------------------------


def test_a_run_is_one_processs_at_a_time(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "plain" / "seed-3"
    with claim_of(run):
        assert Claim.of(run) is None
        with claim_of(run.with_name("seed-4")):
            pass
    with claim_of(run):
        assert not run.exists()  # the claim is beside it


def test_failures_of_a_run_stay_with_its_claim(tmp_path: Path) -> None:
    run = tmp_path / "seed-3"
    assert failures(run) == []
    for failure in (Failure(reason="no quorum", seconds=2.5), Failure(reason="NaN\nin a model", seconds=1.0)):
        with claim_of(run) as claim:
            claim.note(failure)
    with opened(tmp_path / ".seed-3.claim") as file:
        file.write('{"reason": "x", "seconds": NaN}\n{"reason": "x", "seconds": "2"}\n')
    assert failures(run) == [Failure(reason="no quorum", seconds=2.5), Failure(reason="NaN\nin a model", seconds=1.0)]


FULL = Path("/dev/full")  # a file on a disk without space
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


@needs_full
def test_a_failure_that_cannot_be_noted_is_an_error_with_the_path(tmp_path: Path) -> None:
    with (
        Claim(opened(FULL)) as claim,
        pytest.raises(OutputError, match="cannot write to /dev/full: No space left on device; free space"),
    ):
        claim.note(Failure(reason="no quorum", seconds=2.5))


class FullForOne(SharedFolder):
    """A folder whose disk has no space for the claim of seed 3."""

    def claim(self, run: SweepRun) -> Claim | None:
        return Claim(opened(FULL)) if run.seed == 3 else super().claim(run)


@needs_full
def test_a_failure_that_cannot_be_noted_does_not_end_the_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RunStoppedError("no quorum")

    monkeypatch.setattr(sweep_module, "on_this_machine", fail)
    two = sweep(cells={"plain": {}}, seeds=[3, 4])
    outcome = sweep_module.sweep(SweepRequest(sweep=two, store=FullForOne(tmp_path), jobs=1), SweepDisplay())
    assert [(run.seed, str(error)) for run, error in outcome.failures] == [
        (3, "no quorum; cannot write to /dev/full: No space left on device; free space"),
        (4, "no quorum"),
    ]
    assert [failure.reason for failure in failures(tmp_path / two.runs[1].path)] == ["no quorum"]


# --- the pace -----------------------------------------------------------------------------------------------


def test_the_time_left_is_that_of_runs_of_the_same_cell() -> None:
    now = [0.0]
    waiting = sweep(seeds=[3, 4]).runs  # ours, plain, ours, plain
    pace = Pace(waiting=waiting, done=6, jobs=2, clock=lambda: now[0])
    assert (str(pace), pace.seconds_left()) == ("6/10", None)
    pace.began(waiting[0])
    pace.began(waiting[1])
    now[0] = 10.0
    pace.ended(waiting[0])
    # plain is taken to need 10 s too, which have passed; one of each is to be done by two at once
    assert pace.seconds_left() == 10.0
    pace.began(waiting[2])
    now[0] = 14.0
    pace.ended(waiting[1])
    pace.began(waiting[3])
    # ours has 6 s of 10 left, plain 14 s: no less than the longest, and no less than half of both
    assert pace.seconds_left() == 14.0
    assert (pace.done, pace.runs) == (8, 10)


def test_a_run_of_another_process_is_done_after_the_seconds_of_its_record() -> None:
    waiting = sweep(seeds=[3]).runs
    pace = Pace(waiting=waiting, done=0, jobs=1, clock=lambda: 0.0)
    pace.ended_elsewhere(waiting[0], 7.0)
    assert (str(pace), pace.seconds_left()) == ("1/2, 7.0\xa0s left", 7.0)


def test_runs_may_begin_and_end_while_a_thread_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, *_, last = sweep().runs
    bars, pace = SweepBars(Console()), Pace(waiting=sweep().runs, done=0, jobs=1)
    pace.ended_elsewhere(last, 1.0)

    def line(_: object) -> str:
        bars.show(two, pb.RunStatus())
        return "training"

    def mean(seconds: list[float]) -> float:
        if two.path not in begun:
            begun.add(two.path)
            pace.began(two)
        return fmean(seconds)

    begun: set[Path] = set()
    monkeypatch.setattr("emulator.sweeps.sweep_progress.progress_line", line)
    monkeypatch.setattr("emulator.sweeps.sweep_progress.fmean", mean)
    live = bars.open(pace)
    bars.show(one, pb.RunStatus())
    pace.began(one)
    assert live.get_renderable()  # what the thread of a terminal calls four times a second
    assert begun == {two.path}


def test_the_cost_is_told_against_cores_that_are_busy_all_the_time() -> None:
    assert Cost(runs=4, seconds=30.0, cpu_seconds=50.0, cores=2).ratio == pytest.approx(1.2)  # 30 of 25 s
    assert Cost(runs=0, seconds=0.1, cpu_seconds=0.1, cores=2).ratio is None
