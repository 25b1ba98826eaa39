"""Published tables: their files, the parts that a user asks for, and verdicts to redo by hand."""

import fcntl
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.commands import main as cli
from emulator.reproduce.published import (
    SECTION,
    TABLES,
    PublishedTable,
    Value,
    find_table,
    load_table,
    selected,
    tables,
)
from emulator.reproduce.reproduce import ReproduceRequest, reproduce
from emulator.reproduce.table_page import ABOVE, BELOW, UNJUDGED, WITHIN, Compared, comparison_rows, section
from emulator.sweeps.claims import is_locked, opened
from emulator.sweeps.file import Place
from emulator.sweeps.results import SweepResults
from emulator.sweeps.sweep import Cost, SweepOutcome
from emulator.sweeps.sweep_folder import records_of
from emulator.sweeps.sweep_progress import SweepDisplay
from fedstrata.errors import ExperimentError
from tests.support.record_files import write_record

BASE = {"name": "tiny", "partition": {"kind": "iid", "devices": 2, "examples_per_device": 20}, "method": "fedavg"}
ABOUT = {
    "title": "Tiny", "paper": "A. Author, Paper", "source": "Table 1", "read": ["page 2"], "decimals": 1,
    "differs": ["Everything."],
    "values": {"8": {"fedavg": [86.5, 0.5], "fedprox": 90}},
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    SECTION: ABOUT,
    "base": BASE,
    "seeds": [3, 4],
    "cells": {"fedavg": {}, "fedprox": {"method": "fedprox"}},
    "vary": {"training.batch_size": [8, 16]},
}


def table(folder: Path, **changes: Any) -> PublishedTable:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**DOCUMENT, **changes}), encoding="utf-8")
    return load_table(path)


def place(cell: str, batch: str = "8") -> Place:
    return Place(cell=cell, setting=(("training.batch_size", batch),))


# --- the file -----------------------------------------------------------------------------------------------


def test_a_table_has_the_published_value_of_each_cell(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert found.values == {place("fedavg"): Value(mean=86.5, deviation=0.5), place("fedprox"): Value(mean=90)}
    assert [run.seed for run in found.with_seeds([7]).sweep.runs] == [7] * 4


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"values": {"8": {"fedadam": 1}}}, "values name fedadam, training.batch_size=8, which is not in the sweep"),
        ({"values": {"8": 1}}, "values of 8 must be a mapping of names, not 1"),
        ({"values": {"8": {"fedavg": "high"}}}, "a value is a mean, or [mean, standard deviation], not 'high'"),
        ({"values": {"8": {"fedavg": [1, 2, 3]}}}, "not [1, 2, 3]"),
        ({"values": {"8": {"fedavg": float("nan")}}}, "not nan"),
        ({"values": {"8": {"fedavg": 10**400}}}, "not 1000"),
        ({"colour": "red"}, "unknown key"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, about: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        table(tmp_path, **{SECTION: {**ABOUT, **about}})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_sweep_is_no_published_table(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump({"base": BASE, "seeds": [1]}), encoding="utf-8")
    with pytest.raises(ExperimentError, match="has no section published"):
        load_table(path)


def test_an_unknown_table_is_met_with_the_nearest_name() -> None:
    with pytest.raises(
        ExperimentError, match="no published table is called 'fedbench-fcub'; did you mean fedbench-fcube"
    ):
        find_table("fedbench-fcub")


def test_the_list_names_each_table_with_the_size_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path)
    monkeypatch.setattr("emulator.reproduce.published.TABLES", tmp_path)
    assert cli.execute(["reproduce", "--list"]) == 0
    said = "tiny: 2 values, 8 runs of up to 10 rounds and 2 devices, mlp"
    assert said in capsys.readouterr().out.replace("\xa0", " ").splitlines()


def test_every_table_that_comes_with_fedstrata_says_where_it_was_read() -> None:
    found = tables()
    assert {each.name for each in found} == {path.stem for path in TABLES.glob("*.yaml")}
    for each in found:
        assert {run.experiment.name for run in each.sweep.runs} == {each.name}
        assert not {run.seed for run in each.sweep.runs} & {0, 1, 2}  # on which settings were tuned
        assert len(each.sweep.seeds) >= 3
        assert each.about.read
        assert each.about.differs
    assert sum(len(each.values) for each in found) >= 100


def test_the_page_of_all_tables_begins_with_the_counts_of_its_verdicts() -> None:
    page = (TABLES.parents[1] / "docs/results/reproduced.md").read_text(encoding="utf-8")
    rows = Counter(row.split("|")[-2].strip() for row in page.splitlines() if row.startswith("| "))
    counts = [f"{rows[verdict]} {verdict}" for verdict in ("within 2 sd", "above", "below")]
    not_run = page.count(" not run") and sum(map(int, re.findall(r"(\d+) not run\. The measure", page)))
    total = sum(rows[verdict] for verdict in ("within 2 sd", "above", "below")) + not_run
    assert f"Of {total} published values in all tables: {', '.join(counts)}, {not_run} not run." in page


# --- parts --------------------------------------------------------------------------------------------------


def test_a_pattern_chooses_cells_and_settings(tmp_path: Path) -> None:
    sweep = table(tmp_path).sweep
    assert [each.label for each in selected(sweep, ["fedavg"]).places] == [
        "fedavg, training.batch_size=8", "fedavg, training.batch_size=16",
    ]  # fmt: skip
    assert [run.label for run in selected(sweep, ["*/16"], [4]).runs] == [
        "fedavg, training.batch_size=16, seed 4", "fedprox, training.batch_size=16, seed 4",
    ]  # fmt: skip
    assert selected(sweep) == sweep
    with pytest.raises(ExperimentError, match="--cells fedadam: no cell has this name; there are fedavg/8"):
        selected(sweep, ["fedavg", "fedadam"])


# --- verdicts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        ((80, 3), (89.9, 4), WITHIN),  # √(9 + 16) = 5, so up to 10
        ((80, 3), (90.2, 4), ABOVE),
        ((80, 3), (69.8, 4), BELOW),
        ((80, 3), (86, None), WITHIN),  # one seed has no deviation
        ((80, None), (82.1, 1), ABOVE),
        ((80, None), (80, None), UNJUDGED),
        ((10, 0), (10.04, 0), WITHIN),  # which rounds to 10.0
    ],
)
def test_a_verdict_is_by_two_deviations_of_the_difference(
    theirs: tuple[float, float | None], ours: tuple[float, float | None], verdict: str
) -> None:
    values = [Value(mean=mean, deviation=deviation) for mean, deviation in (theirs, ours)]
    found = Compared(place=place("fedavg"), theirs=values[0], ours=values[1], seeds=3, rounding=0.05)
    assert found.verdict == verdict


def results(found: PublishedTable, folder: Path) -> SweepResults:
    """Of fedavg with batches of 8 both seeds are done: 86 % and 88 %."""
    for run in found.sweep.runs:
        if run.place == place("fedavg"):
            mean = {3: 0.86, 4: 0.88}[run.seed]
            write_record(
                folder / run.path, seed=run.seed, accuracy={"lps-0": mean, "lps-1": mean, "mean": mean},
                device_accuracy={"device-000": mean, "device-001": mean},
            )  # fmt: skip
    return SweepResults(sweep=found.sweep, records=records_of(folder, found.sweep))


def test_the_page_has_theirs_and_ours_with_what_differs(tmp_path: Path) -> None:
    found = table(tmp_path)
    head, rows = comparison_rows(found, results(found, tmp_path))
    assert head == ["cell", "training.batch_size", "seeds", "theirs", "ours", "difference", "verdict"]
    assert rows == [
        ["fedavg", "8", "2", "86.5 ± 0.5", "87.0 ± 1.4", "+0.5", "within 2 sd"],
        ["fedprox", "8", "0", "90.0", "–", "–", "–"],
    ]
    page = section(found, results(found, tmp_path / "again"), {"fedstrata": "1.0"})
    assert "Of 2 published values: 1 within 2 sd, 1 not run. The measure is `mean_accuracy`." in page
    assert "**What differs**\n\n- Everything.\n" in page
    assert "| fedavg | 8 | 3 | `" in page  # a run with the digest of its models
    assert "Page written with fedstrata 1.0.\n" in page


def test_no_two_processes_write_the_pages_of_a_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, out, free = table(tmp_path), tmp_path / "out", []

    def is_free() -> bool:
        with opened(out / ".reproduced.md.claim") as file:
            return is_locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def done(*_: object) -> SweepOutcome:
        free.append(is_free())
        cost = Cost(runs=2, seconds=1.0, cpu_seconds=1.0, cores=1)
        return SweepOutcome(results=results(found, out / "tiny"), failures=(), cost=cost)

    monkeypatch.setattr("emulator.reproduce.published.TABLES", tmp_path)
    monkeypatch.setattr("emulator.reproduce.reproduce.sweep", done)
    monkeypatch.setattr("emulator.reproduce.reproduce.write_results", lambda *_: free.append(is_free()))
    assert len(reproduce(ReproduceRequest(name="tiny", out=out), SweepDisplay()).results.records) == 2
    all_tables = (out / "reproduced.md").read_text(encoding="utf-8")
    assert "Of 2 published values" in all_tables
    assert "Of 2 published values in all tables: 1 within 2 sd, 1 not run." in all_tables
    assert free == [True, False]  # while it runs, and while it writes
