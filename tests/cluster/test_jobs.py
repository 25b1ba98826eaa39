"""A run ends its Job through a lost GPS, an upgrade and a rollback, with a second release beside it. Three minutes, by
hand:

    FEDSTRATA_OTHER_TAG=0.2.0-again python -m pytest -m cluster tests/cluster/test_jobs.py
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.cluster.chart_values import merge_values
from tests.cluster.conftest import Lab, lasting, run_here
from tests.cluster.test_upgrades import ON_VOLUMES, OTHER_TAG
from tests.support.records import assert_same_result

SHORT = ("--set", "training.global_rounds=2")
LONGER = lasting(90)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.skipif(not OTHER_TAG, reason="needs FEDSTRATA_OTHER_TAG (see head)")
def test_a_wait_returns_after_an_upgrade_a_rollback_and_a_lost_gps_beside_a_second_release_that_fails(
    lab: Lab, tmp_path: Path
) -> None:
    undisturbed = run_here(tmp_path / "undisturbed", *LONGER)
    lab.up("experiments/digits.yaml", ON_VOLUMES, sets=LONGER, release="one")
    lab.wait_global_round(3, "one")
    with lab.waiting("complete", "one") as wait:
        job = lab.job("one")
        chosen = [part for pair in LONGER for part in ("--set", pair)]
        other = ("--set-value", f"image.tag={OTHER_TAG}")
        lab.here("up", "experiments/digits.yaml", *chosen, *other, release="one")
        roll_back(lab, "one")
        lab.core.delete_namespaced_pod("one-fedstrata-gps-0", lab.namespace, grace_period_seconds=0)
        check_fails(lab, "two")
        assert wait.wait(timeout=400) == 0
    assert lab.job("one").metadata.uid == job.metadata.uid
    until(lambda: lab.job("one").metadata.labels["fedstrata.io/phase"] == "completed")
    folder = lab.folder / "one"
    lab.here("collect", "--out", str(folder), "--quiet", release="one")
    assert_same_result(folder, undisturbed)
    lab.here("down", "--delete-records", "--yes", release="one")


def roll_back(lab: Lab, release: str) -> None:
    """As `helm rollback` does: Kubernetes knows who has set a field by the program's name."""
    code = f"from helm_python import Config\nwith Config(namespace={lab.namespace!r}) as c: c.rollback({release!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(["helm", "-c", code], executable=sys.executable, env=environment, check=True, timeout=120)


def check_fails(lab: Lab, release: str) -> None:
    half = {"device": {"devicesPerPod": 5, "external": 5}}  # which nobody runs
    lab.up("experiments/digits.yaml", half, sets=("deadlines.enrolment.deadline_s=5",), release=release)
    with lab.waiting("failed", release) as wait:
        assert wait.wait(timeout=150) == 0
    assert "the quorum is 10" in lab.job(release).metadata.annotations["fedstrata.io/reason"]
    lab.here("down", release=release)


def test_pods_end_with_the_run_stay_away_for_it_and_come_back_for_another(lab: Lab) -> None:
    values = merge_values([ON_VOLUMES, {"gps": {"releaseAfterSeconds": 0}}])
    lab.up("experiments/digits.yaml", values, sets=SHORT[1:], release="ends")
    until(lambda: lab.pods("device", "ends") == lab.pods("lps", "ends") == [])
    first = lab.job("ends").metadata.name
    lab.here("up", "experiments/digits.yaml", *SHORT, "--set-value", "commonLabels.team=blue", release="ends")
    assert lab.pods("device", "ends") == []
    lab.here("up", "experiments/digits.yaml", *SHORT, "--set", "seed=7", release="ends")
    with lab.waiting("complete", "ends") as wait:
        assert wait.wait(timeout=120) == 0
    assert lab.job("ends").metadata.name != first
    until(lambda: lab.pods("device", "ends") == lab.pods("lps", "ends") == [])
    lab.here("collect", "--out", str(lab.folder / "ends"), "--quiet", release="ends")
    lab.here("down", "--delete-records", "--yes", release="ends")
