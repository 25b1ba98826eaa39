"""The sweep file: which runs it means, and what it is refused for."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from emulator.commands import main as cli
from emulator.sweeps.file import Place, Sweep, load_sweep, sweep_of
from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import load_experiment
from tests.support.tiny_sweeps import BASE

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a sweep of the tiny experiment, changed by keywords; gives its path."""

    def path_of(**keys: object) -> Path:
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump({"base": BASE, "seeds": [3, 4], **keys}, sort_keys=False), encoding="utf-8")
        return path

    return path_of


def paths(sweep: Sweep) -> list[str]:
    return [run.path.as_posix() for run in sweep.runs]


def test_without_cells_every_seed_is_run_once(write: Write) -> None:
    sweep = load_sweep(write())
    assert paths(sweep) == ["runs/base/seed-3", "runs/base/seed-4"]
    assert [run.experiment.seed for run in sweep.runs] == [3, 4]
    assert (sweep.name, sweep.baseline) == ("tiny", None)


def test_every_cell_is_run_in_every_setting_and_seed(write: Write) -> None:
    cells = {"one": None, "two": {"method.clusters": 2}}
    vary = {"training.local_epochs": [1, 5], "rate": {"slow": {"training.optimiser.learning_rate": 0.01}}}
    sweep = load_sweep(write(cells=cells, vary=vary, baseline="one"))
    assert len(sweep.runs) == 2 * 2 * 1 * 2
    last = sweep.runs[-1]
    assert last.place == Place(cell="two", setting=(("training.local_epochs", "5"), ("rate", "slow")))
    assert last.path.as_posix() == "runs/two/training.local_epochs=5,rate=slow/seed-4"
    assert last.label == "two, training.local_epochs=5, rate=slow, seed 4"
    assert last.experiment.training.local_epochs == 5
    assert last.experiment.training.optimiser.learning_rate == 0.01
    assert last.experiment.method.model_dump()["clusters"] == 2
    assert [run.seed for run in sweep.runs] == [3] * 4 + [4] * 4


def test_a_cells_own_change_comes_after_the_settings(write: Write) -> None:
    cells = {"free": {}, "fixed": {"training.local_epochs": 7}}
    sweep = load_sweep(write(cells=cells, vary={"training.local_epochs": [1]}))
    assert [run.experiment.training.local_epochs for run in sweep.runs] == [1, 7, 1, 7]


@pytest.mark.parametrize("rate", ["training.optimiser.learning_rate", "training.optimiser"])
def test_a_later_section_leaves_the_values_that_follow_it(write: Write, rate: str) -> None:
    """A cell, a row and a second axis each replace the section of the optimiser, and then set its learning rate, which
    an earlier axis has set, too.
    """
    first = {rate: 0.1 if rate.endswith("rate") else {"learning_rate": 0.1}}
    adam = {"training.optimiser": {"name": "adam"}, "training.optimiser.learning_rate": 0.005}
    for keys in (
        {"vary": {"effort": {"low": first}}, "cells": {"one": adam}},
        {"vary": {"effort": {"low": first}, "optimiser": {"adam": adam}}},
        {"cells": {"one": first}, "rows": {"one": adam}},
    ):
        optimiser = load_sweep(write(**keys)).runs[0].experiment.training.optimiser
        assert (optimiser.name, optimiser.learning_rate) == ("adam", 0.005)


def test_a_base_is_a_file_beside_the_sweep_or_an_example(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**BASE, "name": "mine"}), encoding="utf-8")
    assert load_sweep(write(base="mine.yaml")).runs[0].experiment.name == "mine"
    assert load_sweep(write(base="digits")).runs[0].experiment.name == "digits"


@pytest.mark.parametrize("is_file", [True, False])
def test_the_text_that_is_kept_means_the_same_runs_from_anywhere(
    write: Write, tmp_path: Path, is_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rates.csv").write_text("seconds,Mbit/s\n0,9\n5,9\n", encoding="utf-8")
    traces = {"mine": {"file": "rates.csv", "format": "csv", "after": "hold"}}
    base = {**BASE, "clock": "virtual", "links": {"device-lps": {"up_trace": "mine"}, "traces": traces}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    path = write(base="mine.yaml" if is_file else base, cells={"one": {}, "two": {"method.clusters": 2}})
    monkeypatch.chdir(tmp_path)
    sweep = load_sweep(Path(path.name))
    kept = tmp_path / "out" / "sweep.yaml"
    kept.parent.mkdir()
    kept.write_text(sweep.text, encoding="utf-8")
    again = load_sweep(kept)
    assert again.runs == sweep.runs
    assert again.text == sweep.text
    assert again.name == "out"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"seed": 3}, "seed: unknown key; a sweep has base, seeds, cells, vary, baseline"),
        ({"seeds": []}, "seeds: "),
        ({"seeds": [3, 4, 3]}, "seeds: 3 is given twice; remove one"),
        ({"seeds": [-1]}, "base: seed: "),
        ({"base": "digit"}, "base digit: there is no file digit, and no example"),
        ({"base": 3}, "base: "),
        ({"base": {"name": "x"}}, "base: partition: "),
        ({"cells": {"a b": {}}}, "'a b' cannot be a name"),
        ({"cells": {"..": {}}}, "'..' cannot be a name"),
        ({"cells": {}}, "cells: "),
        ({"cells": {"one": {"seed": 5}}}, "one sets the seed"),
        ({"cells": {"one": {"trainings.global_rounds": 5}}}, "one: trainings: unknown key"),
        ({"cells": {"one": {"partition.devices.x": 5}}}, "one: partition.devices.x=5: devices has a value"),
        ({"cells": {"one": {}, "two": {"method": "nothing"}}}, "two: method"),
        ({"cells": {"one": {}, "two": {"training.global_rounds": 5}}}, "'one' and 'two' are the same experiment"),
        ({"cells": {"one": {}, "two": {"name": "other"}}}, "'one' and 'two' are the same experiment"),
        ({"vary": {"training.batch_size": [8, 8]}}, "training.batch_size has 8 twice"),
        ({"vary": {"training.batch_size": 8}}, "training.batch_size takes a list of values"),
        ({"vary": {"measure": {"a": {}}}}, "an axis cannot be called measure, because tables have this column"),
        ({"vary": {"training.batch_size": []}}, "vary.training.batch_size has no values"),
        (
            {"vary": {"model.hidden": [[8], [16]]}},
            "model.hidden has a list or mapping as a value; give each choice a name",
        ),
        (
            {"vary": {"links.lps-gps.up_rate": ["9Mbit/s"]}},
            "links.lps-gps.up_rate has the value '9Mbit/s', which cannot be a name; give each choice a name: {NAME: {",
        ),
        (
            {"vary": {"training.optimiser.momentum": [-0.5, 0.5]}},
            "momentum has the value '-0.5', which cannot be a name",
        ),
        ({"vary": {"training.batch_size": [8, 0]}}, "base, training.batch_size=0: training.batch_size: "),
        (
            {"vary": {axis * 60: {"short": {}, axis * 60: {"training.batch_size": 8}} for axis in "abc"}},
            "… would have a name of 365 characters, but 255 is the limit",
        ),
        (
            {"vary": {axis: {str(choice): {} for choice in range(1, 11)} for axis in "abcde"}},
            "200,000 runs are more than 100,000",
        ),
        ({"baseline": "other"}, "baseline 'other' is not a cell; there are base"),
        ({"rows": {"other": {}}}, "rows has 'other', which is no row; give CELL, AXIS=CHOICE"),
        ({"rows": {"base": {"seed": 5}}}, "base sets the seed"),
    ],
)
def test_what_is_not_allowed_is_told_in_one_line_that_names_the_cell(
    write: Write, keys: dict[str, object], said: str
) -> None:
    with pytest.raises(ExperimentError, match=re.escape(said)) as refused:
        load_sweep(write(**keys))
    assert "\n" not in str(refused.value)
    assert "tiny.yaml" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seeds: [", "is not YAML"),
        ("- 1", "must be a mapping"),
        ("base: digits\nseeds: [1]\ncells:\n  one: {}\n  one: {}\n", "'one' is there twice"),
        ("base: digits\nseeds: [1]\nday: !!timestamp 2020-13-45\n", "bad.yaml is not YAML: month must be in 1..12"),
        ("base: digits\nseeds: [1]\ncells: &all {one: *all}\n", "bad.yaml has more than 200000 values"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ExperimentError, match=re.escape(said)):
        load_sweep(path)


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("seed: 3\nseed: 4\n", "base mine.yaml: is not YAML: the key 'seed' is there twice"),
        ("day: !!timestamp 2020-13-45\n", "base mine.yaml: is not YAML: month must be in 1..12"),
        ("- 1", "base mine.yaml must be a mapping, not list"),
    ],
)
def test_a_base_is_read_as_strictly_as_an_experiment(write: Write, tmp_path: Path, base: str, said: str) -> None:
    (tmp_path / "mine.yaml").write_text(base, encoding="utf-8")
    with pytest.raises(ExperimentError, match=re.escape(said)):
        load_sweep(write(base="mine.yaml"))


def test_files_of_a_base_are_relative_to_the_base(write: Write, tmp_path: Path) -> None:
    for folder, rate in ((tmp_path, 9), (tmp_path / "sub", 1)):
        folder.mkdir(exist_ok=True)
        (folder / "rates.csv").write_text(f"seconds,Mbit/s\n0,{rate}\n5,{rate}\n", encoding="utf-8")
    traces = {"mine": {"file": "rates.csv", "format": "csv", "after": "hold"}}
    links = {"clock": "virtual", "links": {"device-lps": {"up_trace": "mine"}, "traces": traces}}
    (tmp_path / "sub" / "mine.yaml").write_text(yaml.safe_dump({**BASE, **links}), encoding="utf-8")
    for base, rate in (("sub/mine.yaml", 1), ({**BASE, **links}, 9)):
        traces = load_sweep(write(base=base)).runs[0].experiment.links.traces
        assert traces is not None
        assert traces["mine"].samples == ((0, rate * 10**6), (5 * 10**9, rate * 10**6))


def test_a_python_value_that_yaml_does_not_have_is_refused() -> None:
    document = {"base": BASE, "seeds": (3, 4), "cells": {"one": {"training.batch_size": np.int64(8)}}}
    with pytest.raises(ExperimentError, match=r"sweep: .*8; give only texts, numbers, lists and mappings"):
        sweep_of(document, name="tiny", where="sweep", beside=Path())


def test_a_text_beyond_the_basic_plane_arrives_unchanged(write: Write) -> None:
    (run,) = load_sweep(write(seeds=[3], cells={"one": {"data.folder": "/data/😀"}})).runs
    assert run.experiment.data.folder == Path("/data/😀")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="cannot read the sweep file"):
        load_sweep(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ({"partition.examples_per_device": 5000}, 3),
        ({"model": {"name": "mlp", "shared": ["fc9"]}}, 2),
        ({"clock": "virtual", "links.device-lps.up_rate": "8 kbit/s", "deadlines.lps": {"deadline_s": 0.001}}, 2),
    ],
)
def test_a_run_that_would_be_refused_is_named_before_anything_starts(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], cell: dict[str, object], code: int
) -> None:
    path = write(cells={"good": {}, "bad": cell})
    assert cli.execute(["sweep", str(path), "--out", str(tmp_path / "out")]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: bad, seed 3: ")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_a_pipe_and_a_device_are_refused(tmp_path: Path, target: str | None) -> None:
    path = tmp_path / "sweep.yaml"
    os.mkfifo(path) if target is None else path.symlink_to(target)
    with pytest.raises(ExperimentError, match="it is a pipe or a device, not a regular file; give the path of a sweep"):
        load_sweep(path)
    with pytest.raises(ExperimentError, match=r"cannot read the experiment file .*: it is a pipe or a device"):
        load_experiment(path)
