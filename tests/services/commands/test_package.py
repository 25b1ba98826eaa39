"""The wheel, installed into a fresh environment, works from an empty folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from fedstrata.errors import EXIT_NETWORK
from tests.support.programs import REPOSITORY

SOURCES = (
    "pyproject.toml", "setup.py", "README.md", "LICENSE",
    "fedstrata", "gps", "lps", "device", "fleet", "emulator", "experiments", "helm", "protos",
)  # fmt: skip
# Port 1 of this machine: nobody listens there.
NO_CLUSTER = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
"""
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


def output_of(*command: object, cwd: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """Built from a copy of the sources, beside which nothing can be left."""
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree)
    output_of(sys.executable, "-c", BUILD, folder, cwd=tree)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def command(folder: Path, wheel: Path) -> Path:
    """`fedstrata` of a new environment with the wheel in it, which finds the dependencies where this one has them."""
    venv = folder / "venv"
    output_of(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    python = venv / "bin" / "python"
    output_of(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    # its modules can be imported, but its own .pth files, such as an editable installation's, are not read
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin" / "fedstrata"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return tmp_path


def test_the_wheel_carries_examples_chart_schema_and_protocol(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("experiments", "helm/fedstrata", "protos"):
        there = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / folder).rglob("*") if path.is_file()}
        there = {name for name in there if "__pycache__" not in name}
        kept = {f"emulator/share/{name}" for name in there if not name.startswith("helm/fedstrata/ci/")}
        assert kept
        assert kept <= names
    assert "emulator/share/helm/fedstrata/values.schema.json" in names
    assert not {name for name in names if name.split("/")[0] in {"experiments", "helm", "protos", "tests"}}


def test_its_command_is_the_installed_one(command: Path, empty: Path) -> None:
    ask = "import emulator, emulator.shipped.share as s; print(emulator.__file__, s.CHART, s.CHART.is_dir())"
    module, chart, is_there = output_of(command.with_name("python"), "-c", ask, cwd=empty).split()
    assert Path(module).is_relative_to(command.parents[1])
    assert Path(chart).is_relative_to(command.parents[1])
    assert is_there == "True"


def test_examples_are_listed_and_checked_in_an_empty_folder(command: Path, empty: Path) -> None:
    listed = {line.split()[0] for line in output_of(command, "examples", cwd=empty).splitlines()}
    assert listed == {path.stem for path in (REPOSITORY / "experiments").glob("*.yaml")}
    assert output_of(command, "check", "digits", cwd=empty).startswith("digits-")
    assert not list(empty.iterdir())


@pytest.mark.runs
def test_an_example_runs_in_an_empty_folder(command: Path, empty: Path) -> None:
    said = output_of(command, "run", "digits", "--set", "training.global_rounds=1", "--quiet", cwd=empty)
    assert "digits completed" in said
    assert (empty / "runs" / "digits" / "report.html").is_file()


def test_up_finds_example_and_chart_and_then_only_a_cluster_is_missing(command: Path, empty: Path) -> None:
    config = empty / "kubeconfig"
    config.write_text(NO_CLUSTER)
    environment = {**os.environ, "KUBECONFIG": str(config)}
    words = (command, "up", "digits")
    done = subprocess.run(words, cwd=empty, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == EXIT_NETWORK, done.stdout + done.stderr
    assert done.stderr.startswith("error: helm: ")
    assert "no chart" not in done.stderr
