"""Runs whose clusters span LPSs: of real processes, some of which are killed, and left alone in the test's own."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedstrata.experiment_file import parse_experiment
from tests.support.programs import Program
from tests.support.records import summary_of
from tests.support.tiers import run_in_process

# Five devices with 60 or 50 examples each, so that they do not count alike.
EXPERIMENT = """
name: spanning
partition:
  kind: tasks
  minority_ratio: 0.1
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 50}
model: {name: mlp, hidden: [16]}
method: METHOD
topology: {lps: LPS}
training: {global_rounds: ROUNDS, lps_rounds_per_global_round: 1, local_epochs: 1, batch_size: 16}
"""
KILLS = [
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
    {"do": "kill", "process": "lps-1", "at": {"point": "upload", "round": 1}},
    {"do": "kill", "process": "device-002", "at": {"point": "download", "round": 2}},
]


def text_of(method: str, *, lps: int, rounds: int = 3) -> str:
    return EXPERIMENT.replace("METHOD", method).replace("LPS", str(lps)).replace("ROUNDS", str(rounds))


def started(stack: ExitStack, folder: Path, text: str, *, processes: int = 1, **environment: str) -> Program:
    """`fedstrata run` of an experiment, whose record will be in `folder`."""
    file = folder.with_suffix(".yaml")
    file.write_text(text)
    words = ("run", str(file), "--out", str(folder), "--json", "--device-processes", str(processes))
    program = Program("emulator", *words, log=folder.with_suffix(".log"), environment=environment)
    return stack.enter_context(program)


def ended(program: Program) -> dict[str, Any]:
    """The summary of a run that was completed; how often processes were started again is in `restarts`."""
    lines = list(program.lines())
    assert program.end() == 0, program.log_path.read_text()
    return dict(lines[-1]["summary"], restarts=[line["process"] for line in lines if line["event"] == "restart"])


def left_alone(folder: Path, text: str) -> dict[str, Any]:
    """The summary of a run in the test's own process, with its record's folder."""
    record = run_in_process(parse_experiment(text), folder).folder
    summary: dict[str, Any] = summary_of(record)
    assert summary["status"] == "completed", summary["reason"]
    return {**summary, "folder": record}


def weights_sha256(folder: Path) -> dict[str, str]:
    """The digests of the clusters' models, as the record has them."""
    digests: dict[str, str] = summary_of(folder)["model_sha256"]
    return digests


def disturbed(folder: Path, text: str, faults: list[dict[str, Any]], *, processes: int = 1) -> dict[str, Any]:
    with ExitStack() as stack:
        return ended(started(stack, folder, f"{text}faults: {json.dumps(faults)}\n", processes=processes))
