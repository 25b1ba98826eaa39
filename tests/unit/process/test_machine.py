"""What a process says about itself, so that its results can be cited."""

import platform
import sys
from types import ModuleType

import numpy as np
import pytest

from fedstrata.process.machine import command_line, commit, software


def module(name: str, version: str) -> ModuleType:
    made = ModuleType(name)
    made.__version__ = version  # type: ignore[attr-defined]
    return made


def test_only_loaded_packages_that_compute_are_named() -> None:
    loaded = {"sklearn": module("sklearn", "1.5.0"), "PIL": module("PIL", "10.1"), "grpc": module("grpc", "1.80")}
    found = software(loaded)
    versions = set(found) - {"platform", "processor"}
    assert versions == {"fedstrata", "python", "scikit-learn", "pillow"}
    assert (found["scikit-learn"], found["pillow"]) == ("1.5.0", "10.1")
    assert found["python"] == platform.python_version()
    assert software(sys.modules)["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/home/me/.venv/bin/fedstrata", "run", "my file.yaml"], "fedstrata run 'my file.yaml'"),
        (["/src/emulator/__main__.py", "sweep", "s.yaml"], "fedstrata sweep s.yaml"),
        (["fedstrata", "run", "a", "--track", "mlflow:https://me:secret@lab:5000/x"],
         "fedstrata run a --track mlflow:https://…@lab:5000/x"),
        (["/home/me/study.py", "--token", "secret"], "python study.py"),
        (["/usr/lib/ipykernel_launcher", "-f", "k.json"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)  # fmt: skip
def test_a_command_is_named_without_passwords_and_folders_of_programs(words: list[str], said: str) -> None:
    assert command_line(words) == said


def test_the_commit_of_an_image_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTRATA_REVISION", "0123456789ab")
    assert commit() == "0123456789ab"
    monkeypatch.setenv("FEDSTRATA_REVISION", "unknown")
    assert commit() == ""
