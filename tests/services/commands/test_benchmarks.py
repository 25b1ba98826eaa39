"""Every benchmark by its command, as small as it goes: it ends well and prints its table.

Figures are not looked at: they are those of a busy machine and of next to no work. Where a benchmark is more than what
is done of it here, the reason stands beside it.
"""

import ast
import csv
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from benchmarks import loops, modules
from benchmarks.rules import RULES
from benchmarks.suite.document import BEGIN, END
from benchmarks.suite.machine import described
from benchmarks.suite.observed import TIERS
from benchmarks.suite.parts import ONE, alone_and_beside
from benchmarks.suite.results import Point, Results, Row

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 400  # of what takes seconds on a quiet machine
HEX = r"[0-9a-f]{12}"
N = r"[-+−]?\d[\d.]*(?:e[-+]\d+)?"  # a figure, whichever
SWEEP = """
base:
  name: small
  partition:
    kind: tasks
    tasks:
      - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 40}
      - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 40}
  method: {name: one_shot, clusters: 2}
  clock: virtual
  links: {device-lps: {preset: lte}}
  training: {global_rounds: 2, lps_rounds_per_global_round: 1, local_steps: 1}
seeds: [3, 4]
cells: {one_shot: {}}
"""
SEARCH = """
base:
  name: small
  partition: {kind: iid, devices: 2, examples_per_device: 40}
  method: fedavg
  clock: virtual
  links: {device-lps: {preset: lte}}
  training: {global_rounds: 4, local_steps: 1}
seeds: [3]
vary:
  training.lps_rounds_per_global_round: [1, 2]
  links.device-lps.preset: [lte, nb-iot]
aim: seconds
target: 0.1
"""
OTHER_ENDS = {"floor", "recovery_kubernetes"}  # echo starts the first, and the second needs a Kubernetes

# By name: how it is started, and what lines it prints.
COMMANDS: dict[str, tuple[str, Sequence[str]]] = {
    "backbone": (
        "backbone --width 100",
        [r"adapters alone: .*", r"with backbone: .*", rf"more MB .*: gps -?{N}, lps -?{N}, device -?{N}"],
    ),
    "echo": (
        "echo --devices 3 --mb 0.1 --rounds 2 --repeats 1",
        [r" devices +MB +fedstrata s +floor s +ratio .*", rf" +3 +0.1( +{N}){{5}}"],
    ),
    "gpu": (
        "gpu --processor cpu --devices 1 --examples 8",
        [rf'.*"mlp: digests alone.*: \["{HEX}"\]}}', rf'.*"seconds, mlp stacked": {N}}}'],
    ),
    "grouping": (
        "grouping {folder}/small.yaml",
        [r"\|  \| one_shot \|", rf"\|  \| {N} ± {N} \|"],
    ),
    "twin": (
        "twin {folder}/twin --rounds 2 --cases unlinked",
        [rf"\| unlinked \| {topology}( \| {N}){{2}} \| [+-]\d+\.\d \|" for topology in ("calibrated", "one LPS")],
    ),
    "rules": (
        "rules --sizes 4x1",
        [r"\| updates x MB \| rule \|.*", *(rf"\| 4x1 \| {rule}( \| {N}){{3}} \|" for rule in RULES)],
    ),
    "kill_matrix": (
        # one draw of the documents' fifty
        "kill_matrix --draws 1 --hidden 16 --out {folder}/kills",
        ["undisturbed models [0-9a-f]{64}", "1 of 1 undisturbed runs agree", "0 . 0 True .*",
         "1 of 1 draws gave the models of the undisturbed run"],
    ),
    "label_attack": (
        "label_attack --sizes 5 20 --figure {folder}/attack.svg",
        [r"\| examples of the device \| 5 eigenvectors \| .*", rf"\| 20( \| {N} ± {N}){{5}} \|"],
    ),
    "many_label_means": (
        "many_label_means --devices 40 --examples 50",
        [r"\| devices \| CPU s .*", rf"\| 40( \| {N}){{4}} \|"],
    ),
    "memory": (
        "memory --model-mb 20 --children 2",
        ["children  streams .*", rf" +2 +1( +{N}){{5}}"],
    ),
    "memory_devices": (
        "memory_devices --devices 1 --examples 60 --shape 1 8 8",
        [f"mlp, 1 devices in a process: {N} MiB; asked for {N} MiB"],
    ),
    "memory_gps": (
        "memory_gps --model-mb 20 --clusters 2",
        ["clusters  shared MB .*", rf" +2( +{N}){{4}}"],
    ),
    "planner": (
        "planner {folder}/search.yaml {folder}/all --targets 0.1 --trainings 2 --default links.device-lps.preset=lte",
        [
            "4 candidates, 2 different models, seeds 3",
            rf"\| 0.1 \| seconds \| 2 \| 2 \| 0.000 \| {N} \| .* \(\d+%\)( \| ({N}|missed)){{2}} \|",
        ],
    ),
    "placement": (
        "placement --devices 6 --lps 2 --draws 2",
        [r"\| placement \| LPS round, s \| above.*", rf"\| best of all( \| {N}){{2}} \|", r"\| bound .* 0.0 \|"],
    ),
    "privacy attack": (
        "privacy attack --sizes 5 20 --figure {folder}/attack.svg",
        [r"\| examples of the device \| no noise \| ε 64 \| ε 16 \|", rf"\| 20( \| {N} ± {N}){{3}} \|"],
    ),
    "privacy draw": ("privacy draw {folder}/profiles.md --figure {folder}/profiles.svg", []),
    "privacy updates": ("privacy updates {folder}/table.csv --figure {folder}/updates.svg", []),
    "published_checks": (
        "published_checks synthetic --rounds 1",
        [rf"fedavg: last round {N}; last ten {N} ± {N}", "fedprox: .*"],
    ),
    "published_checks permfl": (
        "published_checks permfl --rounds 1",
        [f"fedavg, pixels from -1 to 1, global: {N}", f"pfedme, pixels from -1 to 1, θ of devices: {N}"],
    ),
    "suite": (
        # hundred and growth are what ten is, with more devices; modules takes minutes, and its loop is below;
        # echo is above, start a whole run once more
        "suite --quick --only ten flute workers --json {folder}/bench.json",
        [
            ".* commit .*", f"(ten|flute|workers): {N} s", r" *10 devices × .*stacked loop.*",
            " *1,000 devices, .*", " *all these runs .*met.*",
        ],
    ),
}  # fmt: skip
for kind in ("one-by-one", "stacked", "parts"):
    COMMANDS[f"loops {kind}"] = (
        f"loops --work {{folder}} --devices 2 --rounds 2 --loop {kind}",
        [rf'{{"seconds": \[{N}, {N}\], "accuracy": {N}}}'],
    )  # fmt: skip
for kind in ("cnn", "residual"):
    COMMANDS[f"modules {kind}"] = (
        f"modules --work {{folder}} --devices 2 --rounds 2 --module {kind}",
        [rf'{{"seconds": \[{N}, {N}\]}}'],
    )


def printed_by(command: Sequence[str]) -> str:
    """What a benchmark prints, by a command of this environment from the repository's root."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            told, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, told
    return told


def module(words: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", *f"benchmarks.{words.format(folder=folder)}".split()]


def check(told: str, lines: Sequence[str]) -> None:
    for line in lines:
        assert re.search(f"^{line}$", told, re.MULTILINE), f"no line like {line}:\n{told}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With what some of them read."""
    (tmp_path / "small.yaml").write_text(SWEEP, encoding="utf-8")
    (tmp_path / "search.yaml").write_text(SEARCH, encoding="utf-8")
    draws = np.random.default_rng(0)
    np.save(tmp_path / "inputs.npy", draws.normal(0, 1, (2, 40, 784)).astype(np.float32))
    np.save(tmp_path / "labels.npy", draws.integers(0, 10, (2, 40)))
    head = "| minority | vectors-5-none | vectors-5-16 | vectors-5-64 |\n|---|---:|---:|---:|\n"
    (tmp_path / "profiles.md").write_text(
        f"{head}| 0.1 | 1.00 ± 0.00 | −0.10 ± 0.05 | 0.90 ± 0.02 |\n", encoding="utf-8"
    )
    with (tmp_path / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "measure", "mean", "std"])
        for cell in ("update-8", "sum-8", "local", "none"):
            writer.writerow([cell, "device_mean_accuracy", 0.5, 0.1])
    return tmp_path


@pytest.mark.benchmarks
@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_ends_well_with_its_table(name: str, folder: Path) -> None:
    words, lines = COMMANDS[name]
    check(printed_by(module(words, folder)), lines)
    assert all((folder / place).stat().st_size for place in re.findall(r"--figure {folder}/(\S+)", words))


@pytest.mark.benchmarks
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_the_runs_of_a_sweep_are_timed_on_other_links(folder: Path) -> None:
    sweep = ["sweep", str(folder / "small.yaml"), "--out", str(folder / "out")]
    printed_by([sys.executable, "-m", "emulator", *sweep])
    words = "time_to_accuracy {folder}/out --link LTE= --link Slow=links.device-lps.preset=nb-iot"
    told = printed_by(module(f"{words} --levels 1 --out {{folder}}/times.svg", folder))
    row = rf"\| one_shot( \| {N} ± {N}){{3}} \|"
    check(told, ["LTE, seconds", r"\| cell \| grouped \| 1 % \| in all \|", row, "Slow, seconds"])
    assert (folder / "times.svg").stat().st_size


@pytest.mark.benchmarks
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_the_cells_of_a_sweep_are_compared_by_the_time_until_the_baselines_accuracy(folder: Path) -> None:
    every = SWEEP.replace("global_rounds: 2", "global_rounds: 2, evaluate_all_every: 1")
    (folder / "small.yaml").write_text(f"{every}baseline: one_shot\n", encoding="utf-8")
    printed_by([sys.executable, "-m", "emulator", "sweep", str(folder / "small.yaml"), "--out", str(folder / "out")])
    told = printed_by(module("time_to_target {folder}/out", folder))
    row = r"\| one_shot( \| 1\.00 \(1\.00\)){4} \|"  # the baseline itself
    check(told, [r"\| cell \| 95 %: time \| bytes \| 100 %: time \| bytes \|", row])


@pytest.mark.benchmarks
def test_the_suites_results_are_put_into_a_document(folder: Path) -> None:
    row = Row(part="echo", measured="some work", unit="s", ours=[1.0], other="another", theirs=[2.0])
    cost = dict.fromkeys(TIERS, 1.0)
    point = Point(axis="devices", devices=1, model_mb=1, lps=1, wall_s=1, cpu_s=cost, peak_mb=cost)
    Results(machine=described(None, folder), rows=[row], points=[point]).write(folder / "bench.json")
    (folder / "document.md").write_text(f"before\n{BEGIN.format('work')}\n{END}\nafter\n", encoding="utf-8")
    words = "suite --draw {folder}/bench.json --figure {folder}/cost.svg --document {folder}/document.md --place work"
    check(printed_by(module(words, folder)), [" *some work .*"])
    check(
        (folder / "document.md").read_text(encoding="utf-8"),
        ["before", r"\| some work \| s \| .*", r"!\[Cost .*", "after"],
    )
    assert (folder / "cost.svg").stat().st_size


def test_an_aim_for_our_own_number_is_judged_without_the_peers_number() -> None:
    def rows(**counted: float) -> list[tuple[str, bool | None]]:
        results = {name: [value] for name, value in counted.items()}
        found = alone_and_beside("part", "work", results, alone=ONE, aims={}, unit="different models")
        return [(row.other, row.is_met) for row in found]

    assert rows(fedstrata=2, peer=3) == [("", False), ("peer", None)]
    assert rows(fedstrata=1) == [("", True)]  # the peer failed
    assert rows(peer=1) == []


# --- none is forgotten --------------------------------------------------------------------------------------


def test_every_benchmark_is_started_here() -> None:
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__name__ ==" in path.read_text("utf-8")}
    programs |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    text = Path(__file__).read_text("utf-8").partition("def folder(")[2]
    others = re.findall(r'"(\w+) (?:[^"]*--|{folder}/out")', text)
    assert {name.split()[0] for name in COMMANDS} | set(others) | OTHER_ENDS == programs


def test_what_peers_import_of_loops_and_modules_is_there() -> None:
    """Peers run in an environment of their own, where nothing here starts them."""
    for path in (ROOT / "benchmarks" / "peers").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "loops":
                assert all(hasattr(loops, each.name) for each in node.names)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "modules":
                assert hasattr(modules, node.attr)
