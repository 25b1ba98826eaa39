"""A run of a folder with a CSV file for each device: the same bits by one device process and two."""

from pathlib import Path

import numpy as np
import pytest

import fedstrata
from fedstrata.experiment_file import load_experiment
from tests.support.programs import command_in
from tests.support.spanning_runs import weights_sha256
from tests.support.tiers import run_in_process

SITES = ("harbour", "mill", "quarry", "station", "weir")
EXPERIMENT = """
name: readings
seed: 3
data: {name: folder, folder: readings, input_shape: [3], num_classes: 2, target: alarm, columns: [shift]}
partition: {kind: natural, names: [harbour, mill, quarry, station, weir], test_share: 0.25, test_from: end}
model: {name: mlp, hidden: [8]}
method: fedavg
training: {global_rounds: 2, lps_rounds_per_global_round: 1, batch_size: 8}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an experiment and readings; a site has 16 more rows than the one before."""
    home = tmp_path_factory.mktemp("home")
    (home / "readings").mkdir()
    for number, site in enumerate(SITES, 1):
        rng = np.random.default_rng(number)
        values = rng.normal(number, 1, (16 * number, 3))
        rows = [f"{a:.3f},{b:.3f},{c:.3f},{'night' if a < b else 'day'},{int(c > number)}" for a, b, c in values]
        (home / "readings" / f"{site}.csv").write_text("\n".join(["heat,load,sound,shift,alarm", *rows]) + "\n")
    (home / "readings.yaml").write_text(EXPERIMENT)
    return home


@pytest.mark.runs
def test_a_csv_file_for_each_device_gives_the_same_run_by_two_processes_as_by_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    one = run_in_process(load_experiment(home / "readings.yaml"), home / "by-1").folder
    words = ("run", "readings.yaml", "--out", "by-2", "--quiet", "--device-processes", "2")
    done = command_in(home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert weights_sha256(home / "by-2") == weights_sha256(one)
    record = fedstrata.load(home / "by-2")
    assert list(record.devices["device"]) == list(SITES)
    assert set(record.rounds["num_examples"]) == {12 + 24 + 36 + 48 + 60}
