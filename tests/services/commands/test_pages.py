"""The pages for new users do what they say: their files are written and their commands run, in an empty folder."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from helm_python import Chart

import fedstrata
from emulator.commands import main as cli
from tests.support.programs import REPOSITORY

pytestmark = pytest.mark.pages

DOCS = REPOSITORY / "docs"
SCRIPTS = Path(sys.executable).parent  # where fedstrata is


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; `file` is the name in a line such as `own.py`: above it."""

    file: str | None
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    fences = r"^(?:`(?P<file>[\w.]+)`:\n\n)?```(?P<language>\w*)\n(?P<text>.*?)^```"
    for found in re.finditer(fences, page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        yield Block(**found.groupdict())


def run(words: list[str], folder: Path, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def printed(words: list[str], folder: Path, timeout_s: float = 110) -> str:
    """What a command prints that has to go well."""
    done = run(words, folder, timeout_s)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def follow(page: Path, folder: Path) -> str:
    """Do what the page says: write its files, run its shell, then its Python in one session; gives what all print."""
    said, python = "", ""
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            said += printed(["bash", "-e", "-c", block.text], folder)
        elif block.language == "python":
            python += block.text + "\n"
    return said + (printed([sys.executable, "-W", "error", "-c", python], folder) if python else "")


def refusals(page: Path) -> list[tuple[str, str]]:
    """The rows of the table of what is typed and what is said."""
    table = page.read_text("utf-8").partition("| typed | said |\n|---|---|\n")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(.*?)` \| (.*) \|$", table, re.MULTILINE)


@pytest.fixture
def check_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], int]:
    """Each command of a page's table ends with one line that holds what the page says; gives how many there are."""

    def check(page: Path) -> int:
        monkeypatch.chdir(tmp_path)
        rows = refusals(page)
        for typed, said in rows:
            assert cli.execute(shlex.split(typed)[1:]) in {2, 3, 5}, typed
            error = capsys.readouterr().err
            assert said in error, typed
            assert (error[:7], error.count("\n")) == ("error: ", 1), typed
        return len(rows)

    return check


def test_the_page_on_python_from_top_to_bottom(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    page = DOCS / "python.md"
    said = follow(page, tmp_path)
    assert re.search(r"^completed 0\.9\d+ 1\.0$", said, re.MULTILINE), said
    expected = re.search(r"print\(error\)  # (.*)", page.read_text("utf-8"))
    assert expected
    assert expected[1] in said.splitlines()
    assert (tmp_path / "first" / "report.html").exists()
    assert (tmp_path / "runs" / "digits" / "summary.json").exists()
    assert re.search(r"^fc1\.weight float32 \(32, 64\)$", said, re.MULTILINE)


def test_the_first_run(tmp_path: Path, check_refusals: Callable[[Path], int]) -> None:
    page = DOCS / "tutorial" / "first-run.md"
    said = follow(page, tmp_path)
    assert "digits completed" in said
    first, random = (fedstrata.load(tmp_path / name) for name in ("first", "random"))
    assert first.clusters["devices"].tolist() == [4, 3, 3]
    assert (first.adjusted_rand_index, first.rounds["global_round"].max()) == (1.0, 8)
    assert random.adjusted_rand_index < 0.5
    assert random.accuracy < first.accuracy
    assert (tmp_path / "comparison" / "compare.svg").exists()
    assert check_refusals(page) == 6
    assert not (tmp_path / "runs").exists()


def test_own_data(tmp_path: Path, check_refusals: Callable[[Path], int]) -> None:
    page = DOCS / "tutorial" / "own-data.md"
    said = follow(page, tmp_path)
    record = fedstrata.load(tmp_path / "wine")
    assert (record.status, record.devices.num_rows) == ("completed", 6)
    assert record.accuracy > 0.8
    assert float(said.splitlines()[-1]) > 0.5  # a cluster's model on all labels, of which it may know a few
    assert check_refusals(page) == 4


@pytest.mark.timeout(300)  # beside the run a kernel starts, which imports the libraries once more
def test_the_notebook_of_own_data_from_top_to_bottom(tmp_path: Path) -> None:
    page, notebook = (DOCS / "tutorial" / f"own-data.{kind}" for kind in ("md", "ipynb"))
    script = REPOSITORY / "scripts" / "notebook.py"
    printed([sys.executable, str(script), str(page), "own-data.ipynb"], tmp_path)
    made = tmp_path / "own-data.ipynb"
    assert made.read_text("utf-8") == notebook.read_text("utf-8"), f"if meant: {script} {page} {notebook}"
    printed(["jupyter-execute", "--inplace", made.name], tmp_path, timeout_s=250)
    cells = [cell for cell in json.loads(made.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    said = ["".join("".join(output.get("text", ())) for output in cell["outputs"]) for cell in cells]
    assert "wine completed" in said[2]
    assert "\x1b[2K" not in said[2]  # nothing is drawn over in a cell, which cannot
    assert float(said[-1].splitlines()[-1]) > 0.5
    assert fedstrata.load(tmp_path / "wine").status == "completed"


def test_a_method_in_fifty_lines(tmp_path: Path, check_refusals: Callable[[Path], int]) -> None:
    page = DOCS / "tutorial" / "own-method.md"
    follow(page, tmp_path)
    means, one_shot, random = (fedstrata.load(tmp_path / name) for name in ("means", "one_shot", "by-chance"))
    assert means.summary["method"].tolist() == ["means:Means"]
    assert (means.adjusted_rand_index, means.accuracy) == (1.0, pytest.approx(one_shot.accuracy, abs=0.01))
    assert random.accuracy < means.accuracy
    by_link = [
        dict(zip(run.bytes["link"], run.bytes["up"] + run.bytes["down"], strict=True)) for run in (means, one_shot)
    ]
    assert 10 * by_link[0]["device-gps"] < by_link[1]["device-gps"]
    assert check_refusals(page) == 4


@pytest.mark.timeout(300)  # four rows, each tuned with two runs and reported with three
def test_a_baseline_table(tmp_path: Path) -> None:
    for block in blocks(DOCS / "tutorial" / "baseline-table.md"):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        else:
            printed(["bash", "-e", "-c", block.text], tmp_path, timeout_s=280)
    table = tmp_path / "table"
    files = ("paper.tex", "paper.md", "rounds.pdf", "bytes.pdf", "devices.csv")
    assert [name for name in files if not (table / name).exists()] == []
    chosen = yaml.safe_load((table / "sweep.yaml").read_text("utf-8"))["tune"]["chosen"]
    assert [*chosen] == [
        f"{cell}, partition.concentration={alpha}" for alpha in (0.1, 1.0) for cell in ("fedavg", "fedprox")
    ]
    pairs = list(csv.DictReader((table / "pairs.csv").read_text("utf-8").splitlines()))
    assert [(row["partition.concentration"], row["pairs"]) for row in pairs] == [("0.1", "3"), ("1.0", "3")]
    assert min(float(row["p_wilcoxon"]) for row in pairs) >= 0.25


@pytest.mark.timeout(300)  # six trainings at most
def test_a_choice_of_a_topology(tmp_path: Path) -> None:
    follow(DOCS / "tutorial" / "choose-a-topology.md", tmp_path)
    rows = list(csv.DictReader((tmp_path / "site" / "plan.csv").read_text("utf-8").splitlines()))
    (chosen,) = [row for row in rows if row["plan"] == "1"]
    assert (len(rows), chosen["boards"], chosen["links.device-lps.up"]) == (24, "pi5", "int8")
    within = [row for row in rows if row["models_trained"] == "1" and float(row["lps_gps_bytes"]) <= 5e6]
    assert float(chosen["seconds"]) == min(float(row["seconds"]) for row in within)


@pytest.mark.timeout(600)  # all of their runs, one after the other
def test_the_tutorials_one_after_the_other_in_one_folder(tmp_path: Path) -> None:
    for page in ("first-run", "own-data", "own-method", "boards"):
        follow(DOCS / "tutorial" / f"{page}.md", tmp_path)
    runs = [tmp_path / name for name in ("first", "random", "wine", "means", "one_shot", "by-chance", "rehearsal")]
    assert {fedstrata.load(run).status for run in runs} == {"completed"}


def test_from_the_laptop_to_boards(tmp_path: Path) -> None:
    page = DOCS / "tutorial" / "boards.md"
    follow(page, tmp_path)
    record = fedstrata.load(tmp_path / "rehearsal")
    assert (record.status, record.devices["device"].tolist()) == ("completed", ["board-1", "board-2", "board-3"])
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    experiment = (tmp_path / "boards.yaml").read_text()
    with Chart.load(REPOSITORY / "helm" / "fedstrata") as chart:
        chosen = {"experiment": experiment, "tls": {"mode": "generated"}}  # as fedstrata up has it
        rendered = chart.render({**values, **chosen}, name="fedstrata", namespace="default")
    assert "kind: DaemonSet" in str(rendered)
    assert "registry.example/lab/fedstrata/device:0.2.0" in str(rendered)
