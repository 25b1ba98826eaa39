"""`fedstrata sweep` with real processes: killed in the middle and resumed, it comes to the same table."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from emulator.commands import main as cli
from tests.support.programs import Program, of_mark, until_begun
from tests.support.sweep_tables import without_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")

FILES = ("table.csv", "table.md", "figure.svg", "index.html")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "two.yaml"
    cells = {
        "one_shot": {"training.global_rounds": 2, "method.clusters": 1},
        "random": {"training.global_rounds": 2, "method": {"name": "random", "clusters": 1}},
    }
    document = {"base": "digits", "seeds": [3], "cells": cells, "baseline": "random"}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(file: Path) -> Path:
    """The folder of the sweep that one process has done."""
    assert cli.execute(["sweep", str(file), "--out", str(file.parent / "whole"), "--quiet"]) == 0
    return file.parent / "whole"


@pytest.mark.runs
def test_a_sweep_that_was_killed_goes_on_to_the_same_table(
    file: Path, whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = file.parent / "broken"
    words = ("sweep", str(file), "--out", str(broken), "--jobs", "1", "--json")
    with Program("emulator", *words, log=file.parent / "killed.log") as killed:
        first = next(killed.lines())
        killed.process.kill()
        killed.end()
    assert (first["event"], first["cell"], first["done"], first["runs"]) == ("run", "one_shot", 1, 2)
    kept = broken / "runs" / "one_shot" / "seed-3" / "summary.json"
    written = kept.stat().st_mtime_ns
    assert not (broken / "table.csv").exists()
    capfd.readouterr()

    assert cli.execute(["sweep", str(file), "--out", str(broken), "--json"]) == 0
    told = capfd.readouterr().out.splitlines()
    assert len(told) == 2  # the run that was missing, and the sweep
    assert '"cell": "random"' in told[0]
    assert kept.stat().st_mtime_ns == written
    for name in FILES:
        expected = (whole / name).read_text(encoding="utf-8").replace("whole", "broken")
        found = (broken / name).read_text(encoding="utf-8")
        if name == "table.csv":
            (found, of_found), (expected, of_expected) = without_bytes(found), without_bytes(expected)
            assert of_found == pytest.approx(of_expected, rel=1e-3)
        assert found == expected
    for run in ("one_shot", "random"):
        assert (broken / "runs" / run / "seed-3" / "report.html").stat().st_size > 10_000


@pytest.mark.runs
def test_ctrl_c_ends_a_sweep_with_all_its_processes(file: Path) -> None:
    out = file.parent / "interrupted"
    words = ("sweep", str(file), "--out", str(out), "--jobs", "1", "--json")
    with Program("emulator", *words, log=file.parent / "interrupted.log") as sweep:
        next(sweep.lines())
        sweep.interrupt()
        assert sweep.end() == 130
        assert of_mark(sweep.mark) == []


@pytest.mark.runs
def test_processes_share_a_folder_and_take_over_the_runs_of_a_killed_one(file: Path, whole: Path) -> None:
    """Two runs and three processes. One is killed in its first run, before any run has ended."""
    out = file.parent / "shared"
    runs = sorted(str(out / f"runs/{cell}/seed-3") for cell in ("one_shot", "random"))
    words = ("sweep", str(file), "--out", str(out), "--jobs", "1", "--json")
    with Program("emulator", *words, log=file.parent / "first.log") as first:
        begun = until_begun(out)
        first.process.kill()
        first.end()
    assert not list(out.glob("runs/*/*/summary.json"))
    with (
        Program("emulator", *words, log=file.parent / "second.log") as second,
        Program("emulator", *words, log=file.parent / "third.log") as third,
    ):
        told = [list(program.lines()) for program in (second, third)]
        assert [program.end() for program in (second, third)] == [0, 0]
    for lines in told:  # each tells every run once, and the sweep
        assert sorted(line["folder"] for line in lines[:-1]) == runs
        assert lines[-1]["completed"] == 2
    assert sum(lines[-1]["done_now"] for lines in told) == 2  # none was done twice
    assert str(begun) in runs

    (found, of_found), (expected, of_expected) = (
        without_bytes((folder / "table.csv").read_text(encoding="utf-8")) for folder in (out, whole)
    )
    assert found == expected
    assert of_found == pytest.approx(of_expected, rel=1e-3)


@pytest.mark.runs
def test_validation_examples_choose_and_tests_only_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests have the wrong label. So the best rate on validation examples is the worst rate on tests."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "turned").mkdir()
    for name, examples, wrong in (("train", 200, False), ("test", 100, True)):
        inputs = np.random.default_rng(examples).normal(size=(examples, 2)).astype(np.float32)
        np.savez(tmp_path / "turned" / f"{name}.npz", x=inputs, y=(inputs.sum(axis=1) > 0) ^ wrong)
    rate = "training.optimiser.learning_rate"
    document = {
        "base": {
            "name": "turned",
            "data": {"name": "folder", "folder": "turned", "input_shape": [2], "num_classes": 2},
            "partition": {"kind": "iid", "devices": 2, "examples_per_device": 100},
            "model": {"name": "mlp", "hidden": [8]},
            "method": "fedavg",
            "training": {"global_rounds": 4, "lps_rounds_per_global_round": 1},
        },
        "seeds": [3],
    }
    choice = {"grid": {rate: [0.000001, 0.5]}, "validation_share": 0.2}
    for name, more in (("tuned", {"tune": choice}), ("all", {"vary": choice["grid"]})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**document, **more}, sort_keys=False))
        assert cli.execute(["sweep", f"{name}.yaml", "--out", name, "--quiet"]) == 0

    on_validation = table_of(tmp_path / "tuned" / "tuning")
    on_tests = table_of(tmp_path / "all")
    (reported,) = table_of(tmp_path / "tuned").values()
    assert on_validation["0.5"] > 0.9 > on_validation["1e-06"]
    assert on_tests["0.5"] < 0.1 < on_tests["1e-06"]
    assert reported == on_tests["0.5"]  # the chosen rate, trained on all training examples
    paper = (tmp_path / "tuned" / "paper.md").read_text(encoding="utf-8")
    assert "2 runs per row, on seeds 3. These runs measure on 20 % of each device's training examples" in paper
    assert "| base | 0.5 |" in paper


def table_of(folder: Path) -> dict[str, float]:
    """The mean accuracy over devices by the choice on the only axis, if there is one."""
    rows = list(csv.DictReader((folder / "table.csv").read_text(encoding="utf-8").splitlines()))
    axis = next((name for name in rows[0] if name.startswith("training.")), "cell")
    return {row[axis]: float(row["mean"]) for row in rows if row["measure"] == "device_mean_accuracy"}
