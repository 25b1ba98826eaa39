"""`fedstrata sweep` with real processes: killed in the middle and resumed, it comes to the same table."""

import csv
import sys
from pathlib import Path

import pytest
import yaml

from emulator.commands import main as cli
from emulator.results.measures import COSTS
from tests.support.programs import Program, of_mark

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


def without_bytes(table: str) -> tuple[str, dict[str, float]]:
    """A table's lines but those of bytes, and these by cell: two runs differ by some calls that wait."""
    lines = table.splitlines()
    costs = {column.column for column in COSTS.values()}
    numbers = {
        f"{line['cell']} {line['measure']}": float(line["mean"])
        for line in csv.DictReader(lines)
        if line["measure"] in costs and line["mean"]
    }
    return "\n".join(line for line in lines if not costs & set(line.split(","))), numbers


@pytest.mark.runs
def test_a_sweep_that_was_killed_goes_on_to_the_same_table(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, broken = file.parent / "whole", file.parent / "broken"
    assert cli.execute(["sweep", str(file), "--out", str(whole), "--quiet"]) == 0
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
