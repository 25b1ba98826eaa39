"""A device on another architecture: an arm64 pod among amd64 ones, on an ARM node or by emulation.

scripts/images --arch arm64 --tag 0.2.0-arm64 --save images device     # and load it into the nodes
FEDSTRATA_ARM64_IMAGE=localhost/fedstrata/device:0.2.0-arm64 make test-cluster
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.stream import stream

from tests.cluster.conftest import Lab
from tests.support.records import summary_of

IMAGE = os.environ.get("FEDSTRATA_ARM64_IMAGE", "")
LAST = 9  # the index of the device that the release leaves to the arm64 pod
START_S = 240  # an emulated import of torch takes half a minute


@pytest.fixture(scope="module")
def board(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A pod like the release's own devices, but for its image and the one device that it hosts."""
    if not IMAGE:
        pytest.skip("needs an arm64 device image in the nodes: FEDSTRATA_ARM64_IMAGE (see this file's head)")
    values = {"device": {"devicesPerPod": 3, "external": 1, "externalPods": ["board"]}}
    lab.up("experiments/digits.yaml", values, sets=("training.global_rounds=2",), release="mixed")
    template = lab.apps.read_namespaced_stateful_set("mixed-fedstrata-device", lab.namespace).spec.template
    container = template.spec.containers[0]
    container.image = IMAGE
    container.env.append(client.V1EnvVar(name="FEDSTRATA_DEVICES", value=str(LAST)))
    container.resources.limits.pop("cpu", None)
    _give_certificate(lab, template.spec, tmp_path_factory.mktemp("certs"))
    template.spec.node_name = os.environ.get("FEDSTRATA_ARM64_NODE")
    metadata = client.V1ObjectMeta(name="board", labels=template.metadata.labels)
    lab.core.create_namespaced_pod(lab.namespace, client.V1Pod(metadata=metadata, spec=template.spec))
    yield _wait_ready(lab, "board")
    lab.core.delete_namespaced_pod("board", lab.namespace)
    lab.core.delete_namespaced_secret("board-tls", lab.namespace)
    lab.here("down", release="mixed")


def _give_certificate(lab: Lab, pod: Any, folder: Path) -> None:
    """Mount a certificate of its own in place of those of the release's device pods."""
    device = f"device-{LAST:03d}"
    lab.fedstrata(
        "certs", "issue", "device", device, "--folder", str(folder), "--release", "mixed", "--namespace", lab.namespace
    )
    (own,) = (folder / "devices").iterdir()
    files = {name: (own / name).read_text() for name in ("ca.pem", "cert.pem", "key.pem")}
    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="board-tls"), string_data=files)
    lab.core.create_namespaced_secret(lab.namespace, secret)
    volume = next(volume for volume in pod.volumes if volume.name == "tls")
    volume.projected, volume.secret = None, client.V1SecretVolumeSource(secret_name="board-tls", default_mode=0o440)
    mount = next(mount for mount in pod.containers[0].volume_mounts if mount.name == "tls")
    mount.sub_path_expr = None


def _wait_ready(lab: Lab, name: str) -> Any:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        pod = lab.core.read_namespaced_pod(name, lab.namespace)
        if any(found.type == "Ready" and found.status == "True" for found in pod.status.conditions or []):
            return pod
        time.sleep(1)
    raise AssertionError(f"{name} is not ready after {START_S} s: {pod.status}")


def test_an_arm64_device_takes_part_in_a_completed_run(lab: Lab, board: Any) -> None:
    machine = stream(
        lab.core.connect_get_namespaced_pod_exec, "board", lab.namespace,
        command=["python3", "-c", "import platform; print(platform.machine())"], stdout=True, stderr=True,
    )  # fmt: skip
    assert machine.strip() == "aarch64"
    folder = lab.folder / "mixed"
    lab.here("collect", "--out", str(folder), "--quiet", release="mixed")
    found = summary_of(folder)
    assert found["status"] == "completed"
    assert found["excluded"] == []
    assert f"device-{LAST:03d}" in {device for devices in found["clusters"].values() for device in devices}
    assert found["adjusted_rand_index"] == 1.0
