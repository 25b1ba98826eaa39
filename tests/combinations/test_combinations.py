"""Features of the experiment file two by two: each pair is refused in one line, or runs and says what it did."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedstrata.errors import EXIT_RUN_FAILED, FedstrataError
from fedstrata.experiment import Experiment
from tests.support.features import FEATURES, LEFT_OUT, Row, changed, experiment_of, pairs

pytestmark = pytest.mark.combinations
# By event of a log, the key of summary.json that says the same. Faults have any, and are in the file itself.
TOO_FEW_FOR_MASKS = " devices, and secure_aggregation needs "
EXPLAINED = {"device_missing": "excluded", "excluded": "excluded", "state_lost": "lost_state"}


def test_every_section_has_a_feature() -> None:
    keys = {key.split(".")[0] for values in FEATURES.values() for value in values.values() for key in value}
    assert keys | LEFT_OUT == set(Experiment.model_fields)


@pytest.mark.timeout(600)
def test_each_pair_is_read_or_refused_in_one_line() -> None:
    wrong = []
    for pair in pairs():
        try:
            experiment_of(dict(pair))
        except FedstrataError as error:
            if "\n" in str(error) or len(str(error)) > 400:
                wrong.append((pair, str(error)))
        except Exception as error:  # a defect, whatever it is
            wrong.append((pair, repr(error)))
    assert wrong == []


@pytest.mark.timeout(600)
def test_a_row_is_run_alike_by_one_and_two_device_processes_and_says_what_it_did(row: Row, tmp_path: Path) -> None:
    file = tmp_path / "row.yaml"
    file.write_text(experiment_of(row).to_yaml())
    models = [ran(file, tmp_path / f"by{processes}", processes, row) for processes in (1, 2)]
    if not _depends_on_the_machine(row):
        assert models[0] == models[1], changed(row)


def _depends_on_the_machine(row: Row) -> bool:
    """Return whether it depends on how fast the machine is which rounds a device is in, and where. A round can then
    also have too few devices for masks.
    """
    is_asynchronous = row.get("rounds", "synchronous") != "synchronous" and row.get("clock") != "virtual"
    return is_asynchronous or (row.get("clock") == "real" and row.get("schedule") in {"leave", "move"})


def ran(file: Path, out: Path, processes: int, row: Row) -> dict[str, str]:
    """Return the digests of a run's models, or why it stopped if its clusters are too small for masks.

    Nothing may be in the logs of a completed run that its record does not explain.
    """
    command = [sys.executable, "-m", "emulator", "run", str(file), "--out", str(out), "--quiet"]
    done = subprocess.run(
        [*command, "--device-processes", str(processes)], capture_output=True, text=True, timeout=280, check=False
    )
    said, of_row = done.stdout + done.stderr, "\n".join(changed(row))
    assert "Traceback" not in said, f"{of_row}\n{said}"
    if done.returncode == EXIT_RUN_FAILED and TOO_FEW_FOR_MASKS in done.stderr:  # grouping tells how many there are
        return {"stopped": done.stderr}
    assert done.returncode == 0, f"{of_row}\n{said}"
    summary = json.loads((out / "summary.json").read_text())
    wrong = [f"{log.name}: {line}" for log in (out / "logs").glob("*.log") for line in unexplained(log, summary, row)]
    assert wrong == [], of_row
    return dict(summary["model_sha256"])


def unexplained(log: Path, summary: dict[str, Any], row: Row) -> list[str]:
    """The lines of a log that warn of what the record does not say, or are no events."""
    found = []
    for line in log.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            found.append(line)
            continue
        is_said = row.get("faults", "none") != "none" or summary.get(EXPLAINED.get(event.get("event"), ""))
        if event.get("level") not in {"info", "debug", None} and not is_said:
            found.append(line)
    return found
