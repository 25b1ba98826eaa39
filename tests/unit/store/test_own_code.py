"""The digests of own code: which files they cover, and what happens if a file changes."""

import os
import sys
from pathlib import Path

import pytest

from emulator.sweeps.sweep_folder import FolderState, state_of
from fedstrata.errors import ExperimentError, OutputError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.own_files import own_files
from fedstrata.plugins import forget_changed, load_plugin, look_also_in
from fedstrata.store.own_code import changed_code, check_code, check_files, with_digests

TEXT = """
name: own
partition: {kind: iid, devices: 2, examples_per_device: 20}
model: {name: "mine:model"}
method: fedavg
"""
MINE = """
import json
from importlib import import_module

def model(settings, info):
    from parts.layers import hidden
    import_module("late")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with own code that imports further files of it."""
    monkeypatch.chdir(tmp_path)
    forget_changed()  # the current folders of earlier tests
    (tmp_path / "parts").mkdir()
    files = {
        "mine.py": MINE, "parts/__init__.py": "", "parts/layers.py": "from . import sizes\nhidden = 3\n",
        "parts/sizes.py": "size = 4\n", "late.py": "", "unused.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def experiment() -> Experiment:
    return with_digests(parse_experiment(TEXT))


@pytest.mark.usefixtures("home")
def test_the_files_are_those_that_the_module_imports_from_its_folder() -> None:
    found = ["late.py", "mine.py", "parts/__init__.py", "parts/layers.py", "parts/sizes.py"]
    assert list(own_files("mine")) == list(experiment().files) == found


@pytest.mark.parametrize("name", ["numpy", "numpy.linalg", "os.path", "fedstrata.methods", "device", "absent", "sys"])
def test_modules_of_python_of_fedstrata_and_of_packages_have_no_own_files(name: str) -> None:
    assert own_files(name) == {}


def test_without_own_code_an_experiment_keeps_its_digest() -> None:
    plain = parse_experiment(TEXT, overrides=["model.name=mlp"])
    assert with_digests(plain).digest == plain.digest
    assert plain.digest == "921e15cfc9f5878c6e409cfe5a2f5faeecddc51c6895c961d1bfc1af5eaf357f"


@pytest.mark.parametrize("name", ["mine.py", "parts/sizes.py", "late.py"])
def test_a_changed_file_makes_another_run_and_is_named(home: Path, name: str) -> None:
    before = experiment()
    (home / name).write_text((home / name).read_text() + "x = 1\n")
    with pytest.raises(ExperimentError, match=f"{name} has changed since the run began: its SHA-256 begins with "):
        check_code(before)
    with pytest.raises(ExperimentError, match=f"{name} has changed since the run began"):
        with_digests(parse_experiment(before.to_yaml()))
    assert experiment().run_id != before.run_id
    assert changed_code(before, experiment()) == [name]


def test_an_edited_rule_makes_another_run_and_is_named(home: Path) -> None:
    (home / "median.py").write_text("from fedstrata.rules import AllUpdates\nclass Median(AllUpdates): ...\n")
    text = TEXT.replace('"mine:model"', "mlp") + 'aggregation: {lps: "median:Median"}\n'
    before = with_digests(parse_experiment(text))
    (home / "median.py").write_text((home / "median.py").read_text() + "x = 1\n")
    with pytest.raises(ExperimentError, match=r"median.py has changed since the run began"):
        check_code(before)
    assert changed_code(before, with_digests(parse_experiment(text))) == ["median.py"]


def test_a_file_that_is_not_imported_and_other_line_ends_change_nothing(home: Path) -> None:
    before = experiment()
    (home / "unused.py").write_text("x = 1\n")
    (home / "mine.py").write_bytes((home / "mine.py").read_bytes().replace(b"\n", b"\r\n"))
    check_code(before)
    assert experiment().digest == before.digest


def test_a_file_that_is_not_on_this_machine_is_not_compared(home: Path) -> None:
    before = experiment()
    (home / "late.py").unlink()
    check_code(before)
    assert changed_code(before, experiment()) == []


def test_two_experiments_with_another_setting_differ_in_more_than_code(home: Path) -> None:
    before = experiment()
    (home / "mine.py").write_text("x = 1\n")
    assert changed_code(before, with_digests(parse_experiment(TEXT, seed=3))) is None


def test_a_sweep_refuses_a_completed_run_of_earlier_code_and_repeats_an_incomplete_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = home / "run", experiment()
    (folder / "state").mkdir(parents=True)
    (folder / "experiment.yaml").write_text(before.to_yaml())
    assert state_of(folder, experiment()) is FolderState.HALF
    (home / "mine.py").write_text("x = 1\n")
    assert state_of(folder, experiment()) is FolderState.NEW
    monkeypatch.setattr("emulator.sweeps.sweep_folder.completed_record", lambda _: "a record")
    with pytest.raises(OutputError, match=r"^mine.py changed after the run in .*run; restore"):
        state_of(folder, experiment())


def test_edited_code_is_imported_again_in_the_same_process(home: Path) -> None:
    (home / "edited.py").write_text("import edited_part\ndef f():\n    return edited_part.number\n")
    for number in (1, 22):
        (home / "edited_part.py").write_text(f"number = {number}\n")
        os.utime(home / "edited_part.py", (number, number))  # so that no compiled file is taken for it
        forget_changed()
        assert load_plugin("edited:f", "model")() == number


def test_tables_of_own_data_are_covered_and_other_files_of_their_folder_are_not(home: Path) -> None:
    (home / "runs").mkdir()
    (home / "train.csv").write_text("a,y\n1,0\n")
    text = TEXT.replace('"mine:model"', "mlp") + "data: {name: folder, folder: ., input_shape: [1], num_classes: 2}\n"
    before = with_digests(parse_experiment(text))
    assert list(before.files) == ["data.folder/train.csv"]
    (home / "runs" / "rounds.csv").write_text("x")
    assert with_digests(parse_experiment(text)).digest == before.digest
    (home / "train.csv").write_text("a,y\n2,0\n")
    with pytest.raises(ExperimentError, match=r"train.csv has changed since the run began"):
        check_files(before)
    assert changed_code(before, with_digests(parse_experiment(text))) == ["data.folder/train.csv"]


def test_own_code_of_another_current_folder_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "roamed.py").write_text(f"def f():\n    return {name!r}\n")
        monkeypatch.chdir(tmp_path / name)
        forget_changed()
        assert load_plugin("roamed:f", "model")() == name
        (tmp_path / name / "roamed.py").write_text(f"def f():\n    return 'later {name}'\n")
        forget_changed()
        assert load_plugin("roamed:f", "model")() == f"later {name}"


def test_another_current_folder_changes_only_modules_of_the_folder_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, here = tmp_path / "named", tmp_path / "here"
    for folder in (named, here):
        folder.mkdir()
    (named / "stays_here.py").write_text("class Net:\n    pass\n")
    (here / "goes_away.py").write_text("class Net:\n    pass\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    look_also_in([named])
    monkeypatch.chdir(here)
    net, gone = load_plugin("stays_here:Net", "model"), load_plugin("goes_away:Net", "model")
    monkeypatch.chdir(tmp_path)
    forget_changed()
    assert load_plugin("stays_here:Net", "model") is net
    monkeypatch.chdir(here)
    assert load_plugin("goes_away:Net", "model") is not gone


@pytest.mark.parametrize("name", ["time", "math", "queue"])
def test_an_own_file_with_the_name_of_a_module_of_python_is_named(home: Path, name: str) -> None:
    (home / f"{name}.py").write_text("")
    with pytest.raises(PluginError, match=rf"{name}.py is hidden by the module {name} of Python; rename {name}.py"):
        own_files(name)


def test_a_file_of_another_folder_in_front_of_an_own_file_is_named(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    monkeypatch.syspath_prepend(str(other))
    (other / "late").mkdir()  # Python prefers a file to a folder without __init__.py
    assert "late.py" in own_files("mine")
    (other / "late").rmdir()
    (home / "loose").mkdir()
    (home / "loose" / "net.py").write_text("")
    assert list(own_files("loose.net")) == ["loose/net.py"]
    (other / "loose").mkdir()
    (other / "loose" / "__init__.py").write_text("")
    with pytest.raises(PluginError, match=f"loose is hidden by the module loose of {other}.*; rename loose$"):
        own_files("loose.net")
    for name in ("mine", "late"):
        (other / f"{name}.py").write_text("")
        with pytest.raises(PluginError, match=f"{name}.py.* is hidden by the module {name} of {other}"):
            own_files(name)


READS = """
import json
from pathlib import Path
import numpy as np
TABLE = "table.csv"
HERE = Path(__file__).parent

def model(settings, info):
    np.savetxt("written.txt", [1])
    with open("log.txt", "w") as log:
        log.write("x")
    json.loads((HERE / "beside.json").read_text())
    return np.load("data.npz")["x"], np.loadtxt(TABLE), open(HERE.joinpath("plain.txt")), "named.txt"
"""


def test_files_that_own_code_reads_are_covered_and_files_that_it_writes_are_not(home: Path) -> None:
    (home / "mine.py").write_text(READS)
    for name in ("data.npz", "table.csv", "beside.json", "plain.txt", "written.txt", "log.txt", "named.txt"):
        (home / name).write_text("1")
    before = with_digests(experiment())
    assert sorted(before.files) == ["beside.json", "data.npz", "mine.py", "plain.txt", "table.csv"]
    (home / "log.txt").write_text("2")
    check_files(before)
    (home / "data.npz").write_text("2")
    assert changed_code(before, with_digests(parse_experiment(TEXT))) == ["data.npz"]
    with pytest.raises(ExperimentError, match=r"data.npz has changed since the run began"):
        check_code(before)
