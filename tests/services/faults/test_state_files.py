"""State on disk: nobody but the user who runs a process reads it."""

from contextlib import ExitStack
from pathlib import Path

from tests.support.spanning_runs import ended, started

EXPERIMENT = """
name: private-state
partition: {kind: iid, devices: 2, examples_per_device: 20}
model: {name: mlp, hidden: [4]}
method: {name: ditto}
training: {global_rounds: 1, local_steps: 1, lps_optimiser: {name: momentum}}
"""


def test_what_the_processes_of_a_run_keep_is_their_users_alone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ended(started(stack, tmp_path / "run", EXPERIMENT))
    kept = [*(tmp_path / "run" / "state").rglob("*")]
    assert {path.name for path in kept} >= {"journal.sqlite", ".lock", "final.pb", "born", "summary.json"}
    assert [path for path in (tmp_path / "run" / "state", *kept) if path.stat().st_mode & 0o077] == []
