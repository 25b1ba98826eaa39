"""Devices that are no pods: they dial in at the nodes' ports, from where the tests run."""

import subprocess
import sys
from pathlib import Path

from tests.cluster.conftest import ROOT, Lab, run_here
from tests.support.records import assert_same_result

EXPERIMENT = """
name: boards
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 2, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 60}
method: {name: one_shot, clusters: 2}
training: {global_rounds: 3}
"""


def address_of(lab: Lab, tier: str) -> tuple[str, str]:
    """Name and address of the first node of a tier."""
    node = sorted(lab.core.list_node(label_selector=f"tier={tier}").items, key=lambda node: node.metadata.name)[0]
    return node.metadata.name, next(found.address for found in node.status.addresses if found.type == "InternalIP")


def assert_boards_train_the_same(lab: Lab, file: Path, folder: Path, *way: str) -> None:
    """Train by a process outside of the cluster that reaches the release by these options, and by one machine alone."""
    assert lab.pods("device", "boards") == []
    names, certs = [f"device-{index:03d}" for index in range(4)], folder / "certs"
    whose = ("--release", "boards", "--namespace", lab.namespace)
    lab.fedstrata("certs", "issue", "device", *names, "--folder", str(certs), *whose)
    (own,) = (certs / "devices").iterdir()
    command = [sys.executable, "-m", "device", "--experiment", str(file), *way, "--devices", "0-3"]
    command += ["--state", str(folder / "state"), "--tls", str(own)]
    with subprocess.Popen(command, cwd=ROOT) as board:
        try:
            lab.here("collect", "--out", str(folder / "boards"), "--quiet", release="boards")
        finally:
            board.terminate()
    run_here(folder / "local", experiment=file)
    assert_same_result(folder / "boards", folder / "local")


def test_devices_outside_of_the_cluster_train_by_its_nodes_ports_to_the_same_bits(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "boards.yaml"
    file.write_text(EXPERIMENT)
    cloud, gps = address_of(lab, "cloud")
    edge, lps = address_of(lab, "edge")
    values = {
        # a volume that root has made is given to the services' user
        "gps": {"nodeSelector": {"kubernetes.io/hostname": cloud}, "persistence": {"enabled": True}},
        "volumeOwner": {"enabled": True},
        "lps": {"nodeSelector": {"kubernetes.io/hostname": edge}},  # the node whose address all devices are told
        "device": {"external": 4},
        "outside": {
            "type": "NodePort", "gps": f"{gps}:30051", "lps": f"{lps}:30061+",
            "from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}],
        },
    }  # fmt: skip
    lab.up(file, values, release="boards")
    assert_boards_train_the_same(lab, file, tmp_path, "--gps", f"{gps}:30051")
    lab.here("down", "--delete-records", "--yes", release="boards")
