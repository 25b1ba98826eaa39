"""Pods that speak TLS: what the network shows, whose key a pod has, and how a release in the clear becomes encrypted.

FEDSTRATA_CAPTURE is a command that writes a node's packets to a file: `capture NODE FILE`.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.stream import stream

from tests.cluster.conftest import LONG, PERSISTENT, Lab
from tests.support.records import assert_same_result, summary_of

# What passes in the clear without TLS: an identity of a device, and the name of a call.
SPOKEN = (b"device-003", b"/fedstrata.v1.")
OFF: dict[str, Any] = {"tls": {"mode": "off"}}
GENERATED: dict[str, Any] = {"tls": {"mode": "generated"}}


@contextmanager
def captured(node: str, file: Path) -> Iterator[None]:
    """Write what a node's network carries to a file, while the block lasts."""
    command = [*shlex.split(os.environ["FEDSTRATA_CAPTURE"]), node, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "capturing\n"
        try:
            yield
        finally:
            process.terminate()


def inside(lab: Lab, pod: str, *command: str) -> str:
    """What a command says in a pod."""
    said: str = stream(
        lab.core.connect_get_namespaced_pod_exec, pod, lab.namespace, command=list(command), stdout=True, stderr=True
    )
    return said


@pytest.fixture(scope="module")
def record(lab: Lab) -> Path:
    lab.up("experiments/digits.yaml")
    folder = lab.folder / "record"
    lab.here("collect", "--out", str(folder), "--quiet")
    return folder


def test_without_a_word_a_release_is_encrypted_and_its_result_the_same(record: Path, local_digits: Path) -> None:
    assert summary_of(record)["status"] == "completed"
    assert_same_result(record, local_digits)


def test_a_pod_has_its_own_key_and_no_other(lab: Lab, record: Path) -> None:
    for tier, number in (("device", 3), ("lps", 1)):
        pod = f"lab-fedstrata-{tier}-{number}"
        assert sorted(inside(lab, pod, "ls", "/tls").split()) == ["ca.pem", "cert.pem", "key.pem"]
        own = lab.core.read_namespaced_secret(f"lab-tls-{tier}-{number}", lab.namespace).data["tls.key"]
        assert inside(lab, pod, "base64", "-w0", "/tls/key.pem") == own
        mounts = inside(lab, pod, "cat", "/proc/mounts").splitlines()
        assert [line.split()[1] for line in mounts if "tls" in line.split()[1]] == ["/tls"]
        assert not [line for line in mounts if "serviceaccount" in line]


def test_helms_own_test_passes_with_an_operators_certificate(lab: Lab, record: Path) -> None:
    from helm_python import Config

    with Config(namespace=lab.namespace) as config:
        config.test("lab")


def test_who_has_no_certificate_is_told_so(lab: Lab, record: Path) -> None:
    address = f"lab-fedstrata-gps.{lab.namespace}.svc:50051"
    said = inside(lab, "lab-fedstrata-gps-0", "python3", "-m", "gps.probe", "--gps", address, "--timeout", "20")
    assert "speaks TLS, and this process has no certificate" in said


def test_the_end_of_a_release_is_that_of_its_keys(lab: Lab, record: Path) -> None:
    lab.here("down")
    left = lab.core.list_namespaced_secret(lab.namespace, label_selector="app.kubernetes.io/instance=lab").items
    assert left == []


@pytest.mark.skipif("FEDSTRATA_CAPTURE" not in os.environ, reason="FEDSTRATA_CAPTURE says how to capture a node")
def test_the_network_shows_nothing_of_what_is_said(lab: Lab) -> None:
    found = {}
    for mode, values in (("clear", OFF), ("sealed", GENERATED)):
        file = lab.folder / f"packets-{mode}"
        node = "cloud"  # where the GPS is, whom everybody calls
        with captured(node, file):
            lab.up("experiments/digits.yaml", values, release=mode)
            lab.here("collect", "--out", str(lab.folder / f"captured-{mode}"), "--quiet", release=mode)
        lab.here("down", release=mode)
        packets = file.read_bytes()
        assert len(packets) > 1_000_000
        found[mode] = [word for word in SPOKEN if word in packets]
    assert found == {"clear": list(SPOKEN), "sealed": []}


def test_an_unencrypted_release_becomes_an_encrypted_one_in_the_middle_of_its_run(
    lab: Lab, local_long_digits: Path
) -> None:
    lps = {"nodeSelector": {"tier": "edge"}, "persistence": {"enabled": True, "retain": "keep"}}
    values = {**PERSISTENT, "lps": lps}
    lab.up("experiments/digits.yaml", {**values, **OFF}, sets=LONG, release="turned")
    lab.wait_global_round(3, "turned")
    lab.up("experiments/digits.yaml", {**values, **GENERATED}, sets=LONG, release="turned")
    folder = lab.folder / "upgraded"
    lab.here("collect", "--out", str(folder), "--quiet", release="turned")
    assert_same_result(folder, local_long_digits)
    lab.here("down", "--delete-records", "--yes", release="turned")
