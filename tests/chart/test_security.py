"""What every pod may not do, and the little that the GPS may."""

import socket
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fedstrata.process.http import StatusServer
from tests.support.charts import CASES, CHART, environment, of_kind, one, pod_of, pods, render, values_of, workload

LOOSER = {"everything", "extended", "outside"}  # whose values ask for more, or for another user


@pytest.mark.parametrize("values", [case for case in CASES if case.id not in LOOSER])
def test_every_pod_has_the_restricted_profile(values: dict[str, Any]) -> None:
    seen = set()
    for component, spec, _ in pods(render(values)):
        seen.add(component)
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    assert seen == {"gps", "lps", "device", "run", "test"}


@pytest.mark.parametrize("values", CASES)
def test_only_the_gps_has_a_token(values: dict[str, Any]) -> None:
    tokens = {component: spec["automountServiceAccountToken"] for component, spec, _ in pods(render(values))}
    assert tokens == {"gps": True, "lps": False, "device": False, "run": False, "test": False}


@pytest.mark.parametrize("values", CASES)
def test_only_state_and_tmp_can_be_written(values: dict[str, Any]) -> None:
    for component, spec, _ in pods(render(values)):
        writable = {mount["name"] for mount in spec["containers"][0]["volumeMounts"] if not mount.get("readOnly")}
        allowed = {"tmp"} if component in {"run", "test"} else {"tmp", "state"}
        downloads = component == "device" and "download: true" in values["experiment"]
        assert writable == allowed | ({"data"} if downloads else set())


@pytest.mark.parametrize("values", CASES)
def test_every_container_requests_and_is_limited(values: dict[str, Any]) -> None:
    for component, spec, _ in pods(render(values)):
        resources = spec["containers"][0]["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"]), component
        assert "memory" in resources["limits"], component
        assert all("ephemeral-storage" in amounts for amounts in resources.values()), component


@pytest.mark.parametrize("values", CASES)
def test_every_folder_on_the_disk_of_a_node_has_a_size(values: dict[str, Any]) -> None:
    for component, spec, _ in pods(render(values)):
        folders = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume}
        assert folders
        assert all(folder["sizeLimit"] for folder in folders.values()), (component, folders)


def test_what_pods_may_write_to_a_nodes_disk_are_values() -> None:
    sizes = {"tmp": "1Gi", "state": "2Gi", "data": "3Gi"}
    spec = pod_of(render({"nodeDisk": sizes, "code": {"image": "registry.example/mine:1"}}), "device")
    assert {volume["name"]: volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume} == {
        "tmp": {"sizeLimit": "1Gi"}, "state": {"sizeLimit": "2Gi"}, "code": {"sizeLimit": "3Gi"}
    }  # fmt: skip


def test_no_container_lacks_what_a_quota_of_the_namespace_counts() -> None:
    given = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    values: dict[str, Any] = {tier: {"resources": given} for tier in ("gps", "lps", "device")}
    values |= {"volumeOwner": {"enabled": True}, "code": {"image": "registry.example/mine:1"}}
    for component, spec, _ in pods(render(values)):
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            resources = container["resources"]
            counted = {*resources["requests"]} & {*resources["limits"]}
            assert {"cpu", "memory", "ephemeral-storage"} <= counted, component


@pytest.mark.parametrize("values", CASES)
def test_no_image_is_latest_and_kubernetes_adds_no_variables(values: dict[str, Any]) -> None:
    for _, spec, _ in pods(render(values)):
        image = spec["containers"][0]["image"]
        assert ":" in image.rpartition("/")[2]
        assert not image.endswith(":latest")
        assert spec["enableServiceLinks"] is False  # it would add FEDSTRATA_GPS_PORT, and FEDSTRATA_… are options


def test_the_gps_may_scale_its_lpss_label_pods_and_record_events_and_nothing_else() -> None:
    role = one(render(), "Role", "demo-fedstrata-gps")
    (job,) = (item["metadata"]["name"] for item in of_kind(render(), "Job"))
    assert role["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [job], "verbs": ["patch"]},
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets/scale"],
            "resourceNames": ["demo-fedstrata-lps", "demo-fedstrata-device"],
            "verbs": ["get", "patch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "resourceNames": [f"demo-fedstrata-device-{ordinal}" for ordinal in range(10)],
            "verbs": ["patch"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    binding = one(render(), "RoleBinding", "demo-fedstrata-gps")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "demo-fedstrata-gps", "namespace": "lab"}]
    kinds = {item["kind"] for item in render()}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Secret"}


PATCH_ANY = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}


def test_only_pods_of_a_daemonset_whose_names_are_not_known_beforehand_let_the_gps_label_any_pod() -> None:
    boards = values_of(CHART / "ci" / "boards.yaml")
    for labels in (True, False):
        objects = render({**boards, "gps": {"rbac": {"create": True, "labelPods": labels}}})
        rules = one(objects, "Role", "demo-fedstrata-gps")["rules"]
        assert (PATCH_ANY in rules) is labels
        assert any("pods" in rule["resources"] for rule in rules) is labels


def test_of_devices_elsewhere_the_gps_may_label_the_pods_that_are_named() -> None:
    objects = render(values_of(CHART / "ci" / "gateway.yaml"))
    rules = one(objects, "Role", "demo-fedstrata-gps")["rules"]
    patched = [rule for rule in rules if rule["verbs"] == ["patch"] and rule["resources"] == ["pods"]]
    assert [rule["resourceNames"] for rule in patched] == [
        ["demo-fedstrata-device-0", "demo-fedstrata-device-1", "camera"]
    ]


def test_a_gps_that_keeps_its_pods_after_the_run_may_not_scale_the_devices() -> None:
    def scaled(values: dict[str, Any]) -> Any:
        return one(render(values), "Role", "demo-fedstrata-gps")["rules"][1]["resourceNames"]

    assert scaled({"gps": {"releaseAfterSeconds": None}}) == ["demo-fedstrata-lps"]
    assert scaled({"gps": {"releaseAfterSeconds": 300}}) == ["demo-fedstrata-lps", "demo-fedstrata-device"]
    env = environment(pod_of(render({"gps": {"releaseAfterSeconds": 300}}), "gps"))
    assert env["FEDSTRATA_RELEASE_AFTER_S"] == "300"
    assert env["FEDSTRATA_DEVICE_STATEFULSET"] == "demo-fedstrata-device"


def test_a_run_begun_again_has_new_pods_and_only_the_gps_knows_the_word() -> None:
    objects = render({"again": "20260101T000000Z"})
    for tier in ("gps", "lps", "device"):
        template = workload(objects, tier)["template"]
        assert template["metadata"]["annotations"]["fedstrata.io/again"] == "20260101T000000Z"
        container = template["spec"]["containers"][0]
        assert ({"name": "FEDSTRATA_AGAIN", "value": "20260101T000000Z"} in container["env"]) == (tier == "gps")
        assert tier == "gps" or "20260101T000000Z" not in str((container["args"], container["env"]))


def test_rights_can_be_withheld() -> None:
    values = {
        "experiment": "name: a\npartition: {kind: iid, devices: 2, examples_per_device: 5}\n",
        "lps": {"replicas": 1},
    }
    kinds = {item["kind"] for item in render({**values, "gps": {"rbac": {"create": False}}})}
    assert not kinds & {"Role", "RoleBinding"}
    (role,) = of_kind(render({"gps": {"rbac": {"recordEvents": False}}}), "Role")
    assert all("events" not in rule["resources"] for rule in role["rules"])


def test_probes_ask_for_health_and_readiness_over_http() -> None:
    for component, spec, _ in pods(render()):
        if component in {"run", "test"}:
            continue
        container = spec["containers"][0]
        asked = {probe: container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")}
        assert asked == {
            "livenessProbe": {"path": "/healthz", "port": "http"},
            "readinessProbe": {"path": "/readyz", "port": "http"},
        }
        assert "http" in {port["name"] for port in container["ports"]}


def test_the_startup_probe_waits_until_the_process_says_that_it_is_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    container = pod_of(render({"ports": {"http": port}}), "lps")
    _, *command = container["containers"][0]["startupProbe"]["exec"]["command"]
    answers = iter([False, False, True])
    probe = subprocess.Popen([sys.executable, *command])
    with StatusServer(f"[::]:{port}", CollectorRegistry(), lambda: next(answers)):
        assert probe.wait(timeout=60) == 0
    assert list(answers) == []
