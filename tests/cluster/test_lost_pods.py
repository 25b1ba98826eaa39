"""Pods and nodes that go away while a run is under way.

The node's test needs to know how a node is taken away and given back; both commands get its name as last argument:

    FEDSTRATA_STOP_NODE="docker pause" FEDSTRATA_START_NODE="docker unpause" make test-cluster      # with kind
"""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.conftest import LONG, PERSISTENT, Lab
from tests.support.records import assert_same_result, summary_of

STOP, START = os.environ.get("FEDSTRATA_STOP_NODE", ""), os.environ.get("FEDSTRATA_START_NODE", "")
DEADLINES = ("deadlines.lps.deadline_s=30", "deadlines.gps.deadline_s=20", "deadlines.gps.quorum_ratio=0.3")


@pytest.mark.parametrize("tier", ["gps", "lps", "device"])
def test_a_pod_deleted_by_force_during_training_changes_no_bit(lab: Lab, local_long_digits: Path, tier: str) -> None:
    release = f"killed-{tier}"
    kept = PERSISTENT if tier == "gps" else {}
    lab.up("experiments/digits.yaml", {**kept, "device": {"devicesPerPod": 5}}, sets=LONG, release=release)
    lab.wait_global_round(5, release)
    victim = lab.pods(tier, release)[0]
    lab.core.delete_namespaced_pod(victim.metadata.name, lab.namespace, grace_period_seconds=0)
    folder = lab.folder / release
    lab.here("collect", "--out", str(folder), "--quiet", release=release)
    assert_same_result(folder, local_long_digits)
    lab.here("down", release=release)


@contextmanager
def without_node(lab: Lab, name: str) -> Iterator[None]:
    """Take a node away for the block, and wait until it is ready again."""
    subprocess.run([*shlex.split(STOP), name], check=True, capture_output=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run([*shlex.split(START), name], check=True, capture_output=True, timeout=60)
        deadline = time.monotonic() + 120
        while not _is_ready(lab, name):
            assert time.monotonic() < deadline, f"node {name} does not come back"
            time.sleep(1)


def _is_ready(lab: Lab, name: str) -> bool:
    conditions = lab.core.read_node(name).status.conditions
    return any(found.type == "Ready" and found.status == "True" for found in conditions)


@pytest.mark.skipif(not (STOP and START), reason="needs FEDSTRATA_STOP_NODE and FEDSTRATA_START_NODE (see the head)")
def test_the_devices_of_lpss_on_a_lost_node_are_adopted_and_the_run_completes(lab: Lab) -> None:
    values = {"device": {"devicesPerPod": 5, "nodeSelector": {"tier": "cloud"}}}
    lab.up("experiments/digits.yaml", values, sets=(*LONG, *DEADLINES), release="node")
    lab.wait_global_round(5, "node")
    nodes = {pod.metadata.name.replace("node-fedstrata-", ""): pod.spec.node_name for pod in lab.pods("lps", "node")}
    lost = nodes["lps-0"]
    folder = lab.folder / "node"
    with without_node(lab, lost):
        lab.here("collect", "--out", str(folder), "--quiet", release="node")
    found = summary_of(folder)
    assert found["status"] == "completed"
    gone = {name for name, node in nodes.items() if node == lost}
    assert {entry["cluster"] for entry in found["adoptions"]} == gone, (found["adoptions"], found["excluded"])
    assert {entry["device"] for entry in found["excluded"]} <= gone  # from a global round at most; no device is missing
    assert set(found["model_sha256"]) == set(nodes)
    assert sum(len(devices) for devices in found["clusters"].values()) == 10
    assert found["accuracy"]["mean"] > 0.9
    lab.here("down", release="node")
