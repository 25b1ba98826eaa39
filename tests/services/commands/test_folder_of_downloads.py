"""Commands in a folder with files that have the names of modules: no such file is executed."""

import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = """
base:
  name: small
  partition: {kind: iid, devices: 2, examples_per_device: 20}
  model: {name: mlp, hidden: [4]}
  method: fedavg
  training: {global_rounds: 1, lps_rounds_per_global_round: 1, batch_size: 8}
seeds: [1]
cells: {one: {}}
"""
NAMES = ("json", "numpy", "typing", "argparse", "attr", "IPython", "gps", "lps", "device", "fleet", "yaml", "torch")


def _with_traps(folder: Path) -> Path:
    """Write modules into a folder, each of which makes the file `executed` when it is imported. Return this file."""
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'executed')!r}, 'w').close()\n")
    return folder / "executed"


def _command(folder: Path, *words: str) -> str:
    command = [Path(sys.executable).parent / "fedstrata", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.runs
def test_neither_a_run_nor_the_check_of_a_bundle_executes_files_of_the_folder(tmp_path: Path) -> None:
    executed = _with_traps(tmp_path)
    (tmp_path / "small.yaml").write_text(SWEEP)
    _command(tmp_path, "sweep", "small.yaml", "--out", "bundle", "--quiet")
    assert not executed.exists()
    in_bundle = _with_traps(tmp_path / "bundle")
    assert "equal to the bit" in _command(tmp_path / "bundle", "verify", ".", "--quiet")
    assert not in_bundle.exists()
