"""Fedstrata from Python: what a record gives, and what is refused before anything starts."""

import asyncio
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedstrata
from emulator.console.interrupts import run_interruptibly
from emulator.interface import SweepRecord
from emulator.results.columns import table_of
from emulator.shipped import extras
from emulator.sweeps.file import sweep_of
from emulator.sweeps.results import SweepResults
from emulator.sweeps.sweep_folder import records_of
from fedstrata.errors import DataError, ExperimentError, MissingPackageError, OutputError
from tests.support.record_files import IDS, ROUNDS, TABLE, write_models, write_record
from tests.support.tiny_sweeps import write_run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def record(tmp_path: Path) -> fedstrata.Record:
    return fedstrata.load(write_record(tmp_path / "run"))


def test_importing_fedstrata_imports_neither_the_emulator_nor_what_it_needs() -> None:
    ask = "import sys, fedstrata; print({'emulator', 'numpy', 'rich', 'grpc'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_interface_is_told_by_dir_and_nothing_else_is_made_up() -> None:
    assert {"run", "load", "Record"} <= set(dir(fedstrata))
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        fedstrata.walk  # noqa: B018


def test_rounds_are_columns_of_numbers_with_nan_where_nothing_was_measured(record: fedstrata.Record) -> None:
    rounds = record.rounds
    assert list(rounds) == [*TABLE.columns]
    assert rounds.num_rows == len(ROUNDS) == 4
    assert rounds["bytes_up"].tolist() == [300, 200, 300, 200]
    assert rounds["lps_id"].tolist() == ["lps-0", "lps-1", "lps-0", "lps-1"]
    assert math.isnan(rounds["accuracy"][0])
    assert rounds["accuracy"][1:].tolist() == [0.5, 0.9, 0.8]
    with pytest.raises(KeyError, match="no column 'acuracy'; there are global_round"):
        rounds["acuracy"]


def test_a_structured_array_has_a_field_a_column(record: fedstrata.Record) -> None:
    rows = record.rounds.to_numpy()
    assert rows.shape == (4,)
    assert rows[3]["num_examples"] == 100
    assert rows.dtype.names == TABLE.columns


def test_clusters_devices_and_bytes(record: fedstrata.Record) -> None:
    assert record.clusters["devices"].tolist() == [3, 2]
    assert record.clusters["accuracy"].tolist() == [0.9, 0.8]
    assert record.devices["device"].tolist() == list(IDS)
    assert record.devices["cluster"].tolist() == ["lps-0", "lps-0", "lps-1", "lps-0", "lps-1"]
    assert record.devices["task"].tolist() == ["clothes", "clothes", "bags", "clothes", "bags"]
    assert record.bytes["up"].tolist() == [1500, 1000, 400]


def test_each_device_has_the_accuracy_that_it_measured_itself(tmp_path: Path) -> None:
    accuracy = {"device-001": 0.25, "device-000": 0.75, "device-003": None}
    devices = fedstrata.load(write_record(tmp_path / "run", device_accuracy=accuracy)).devices
    assert list(devices) == ["device", "cluster", "task", "accuracy"]
    assert devices["accuracy"][:2].tolist() == [0.75, 0.25]
    assert np.isnan(devices["accuracy"][2:]).all()


def test_a_summary_is_one_row(record: fedstrata.Record) -> None:
    row = record.summary.to_numpy()[0]
    assert (row["clusters"], row["accuracy"], row["seconds"], row["bytes"]) == (2, 0.86, 62.0, 9100)
    assert (record.accuracy, record.adjusted_rand_index, record.seed) == (0.86, 1.0, 0)


def test_relevance_by_the_devices_names(record: fedstrata.Record) -> None:
    assert record.relevance is not None
    assert record.relevance["device-000", "device-003"] == 0.9
    assert record.relevance["device-000", "device-002"] == 0.3
    assert np.asarray(record.relevance).shape == (5, 5)


def test_a_run_without_profiles_without_tasks_and_without_measurements(tmp_path: Path) -> None:
    folder = write_record(
        tmp_path / "run", accuracy={}, adjusted_rand_index=None, device_tasks=None, bytes={}, rounds=()
    )
    (folder / "relevance.csv").unlink()
    record = fedstrata.load(folder)
    assert record.relevance is None
    assert math.isnan(record.accuracy)
    assert np.isnan(record.clusters["accuracy"]).all()
    assert set(record.devices["task"]) == {""}
    assert record.bytes["down"].tolist() == [0, 0, 0]


def test_models_are_read_by_cluster(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    write_models(folder, {"lps-1": {"fc1.bias": np.float32([1, 2])}})
    record = fedstrata.load(folder)
    assert list(record.models) == ["lps-0", "lps-1"]
    assert record.models["lps-1"]["fc1.bias"].tolist() == [1, 2]
    with pytest.raises(KeyError, match="no cluster 'lps-2'; there are lps-0, lps-1"):
        record.models["lps-2"]


@pytest.mark.parametrize(("kind", "size"), [("BF16", 2), ("F8_E4M3", 1), ("F64", 8)])
def test_a_model_of_another_type_is_refused(record: fedstrata.Record, kind: str, size: int) -> None:
    head = json.dumps({"w": {"dtype": kind, "shape": [1], "data_offsets": [0, size]}}).encode()
    path = record.folder / "models" / "lps-0.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    with pytest.raises(DataError, match=r"cannot read the model .*lps-0\.safetensors"):
        _ = record.models["lps-0"]


def test_data_frames_where_pandas_is(record: fedstrata.Record) -> None:
    pytest.importorskip("pandas")
    frame = record.rounds.to_pandas()
    assert frame.groupby("lps_id")["bytes_up"].sum().to_dict() == {"lps-0": 600, "lps-1": 400}
    assert record.relevance is not None
    assert record.relevance.to_pandas().loc["device-000", "device-001"] == 0.9


def test_without_pandas_the_command_that_installs_it_is_told(
    record: fedstrata.Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    with pytest.raises(MissingPackageError, match=re.escape("pip install 'fedstrata[pandas]'")):
        record.rounds.to_pandas()


def test_a_notebook_shows_names_as_text_and_not_as_html(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    clusters = {evil: ["device-000", "device-001"]}
    folder = write_record(
        tmp_path / "run", name=evil, status="failed", reason=evil, clusters=clusters, rounds=(),
        accuracy={evil: 0.5, "mean": 0.5}, device_tasks={"device-000": evil},
    )  # fmt: skip
    (folder / "relevance.csv").unlink()
    record = fedstrata.load(folder)
    for shown in (record._repr_html_(), record.devices._repr_html_(), record.clusters._repr_html_()):
        assert "<img" not in shown
        assert "&lt;img src=x onerror=alert(1)&gt;" in shown


def test_a_notebook_shows_the_first_twenty_rows_and_says_how_many_there_are() -> None:
    shown = table_of([{"x": number} for number in range(25)], {"x": int})._repr_html_()
    assert shown.count("<tr>") == 21
    assert "and 5 more rows" in shown


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"summary\.json is missing"):
        fedstrata.load(tmp_path)


def test_nothing_starts_where_something_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExperimentError, match="did you mean digits"):
        fedstrata.run("digit")
    with pytest.raises(ExperimentError, match=r"training\.global_rounds.*0"):
        fedstrata.run("digits", overrides={"training.global_rounds": 0})
    with pytest.raises(ExperimentError, match=r"training\.global_rounds.*0"):
        fedstrata.run("digits", overrides={"data.folder": Path("/data"), "training.global_rounds": np.int64(0)})
    with pytest.raises(ExperimentError, match=r"training\.global_rounds.*0"):
        fedstrata.run("digits", overrides="training.global_rounds=0")
    with pytest.raises(ExperimentError, match="device_processes: must be at least 1, not -1"):
        fedstrata.run("digits", device_processes=-1)
    with pytest.raises(ExperimentError, match="partition"):
        fedstrata.run({"name": "mine"})
    with pytest.raises(ExperimentError, match="cannot represent an object 3; give only texts, numbers"):
        fedstrata.run({"name": "mine", "seed": np.int64(3)})
    with pytest.raises(OutputError, match="not a folder"):
        fedstrata.run("digits", out=__file__)
    assert list(tmp_path.iterdir()) == []


async def forever() -> None:
    await asyncio.Event().wait()


async def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await forever()


def test_work_is_run_beside_a_loop_that_is_running_and_interrupted_there() -> None:
    async def notebook() -> tuple[int, bool]:
        async def four() -> int:
            assert threading.current_thread() is not threading.main_thread()
            return 4

        before = signal.getsignal(signal.SIGINT)
        found = run_interruptibly(four())
        with pytest.raises(KeyboardInterrupt):
            run_interruptibly(interrupted())
        return found, signal.getsignal(signal.SIGINT) is before

    assert asyncio.run(notebook()) == (4, True)


def test_work_that_a_signal_ends_is_an_interrupt_and_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(interrupted())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_comes_when_the_loop_is_closed_interrupts_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def four() -> int:
        return 4

    run = asyncio.run

    def run_and_signal(work: Coroutine[Any, Any, int]) -> int:
        found = run(work)
        os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr("emulator.console.interrupts.asyncio.run", run_and_signal)
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(four())


def test_a_sweep_gives_its_table_and_every_record_and_does_nothing_again(tmp_path: Path) -> None:
    document = {"base": "digits", "seeds": [3, 4], "cells": {"one": {}, "two": {"method": "oracle"}}, "baseline": "two"}
    planned = sweep_of(document, name="grid", where="grid", beside=tmp_path)
    out = tmp_path / "grid"
    for run in planned.runs:
        bags = 0.5 if run.place.cell == "one" else 0.4
        write_run(out, run, task_accuracy={"bags": bags})
    (out / "sweep.yaml").write_text(planned.text, encoding="utf-8")
    found = fedstrata.sweep(document, out=out)
    table, runs = found.table, found.runs
    assert table["measure"].tolist()[:3] == ["adjusted_rand_index", "mean_accuracy", "accuracy_bags"]
    assert table["difference_mean"][2] == pytest.approx(0.1)
    own = (table["cell"] == "two") & (table["measure"] == "accuracy_bags")
    assert np.isnan(table["difference_mean"][own]).all()  # the baseline's own
    assert own.sum() == 1
    assert (runs.num_rows, runs["cell"].tolist()) == (4, ["one", "two", "one", "two"])
    assert found.record("two", seed=4).folder == out / "runs" / "two" / "seed-4"
    assert "<td>one</td>" in found._repr_html_()
    assert found.page.exists()
    with pytest.raises(KeyError, match="no run of cell 'three'"):
        found.record("three", seed=4)


def test_a_sweeps_runs_have_the_choice_of_an_axis_that_is_called_as_a_fact_of_runs(tmp_path: Path) -> None:
    vary = {"devices": {"few": {}, "many": {"training.batch_size": 8}}}
    planned = sweep_of({"base": "digits", "seeds": [3], "vary": vary}, name="x", where="x", beside=tmp_path)
    for run in planned.runs:
        write_record(tmp_path / run.path, seed=run.seed)
    results = SweepResults(sweep=planned, records=records_of(tmp_path, planned))
    runs = SweepRecord(folder=tmp_path, _results=results).runs
    assert (runs["devices"].tolist(), runs["clusters"].tolist()) == (["few", "many"], [2, 2])
