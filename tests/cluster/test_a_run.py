"""From `fedstrata up` to `fedstrata down`: one digits run, seen from all sides."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from kubernetes import client

from tests.cluster.conftest import INSTANCE, PERSISTENT, Lab
from tests.support.records import assert_same_result, summary_of


@pytest.fixture(scope="module")
def record(lab: Lab) -> Path:
    lab.up("experiments/digits.yaml", PERSISTENT)
    folder = lab.folder / "record"
    lab.here("collect", "--out", str(folder), "--quiet")
    return folder


def test_the_record_is_the_same_as_on_a_laptop_to_the_bit(record: Path, local_digits: Path) -> None:
    assert summary_of(record)["status"] == "completed"
    assert_same_result(record, local_digits)


def test_kubectl_wait_returns_and_the_job_says_phase_and_round(lab: Lab, record: Path) -> None:
    with lab.waiting("complete") as wait:
        assert wait.wait(timeout=30) == 0
    assert lab.job().status.succeeded == 1
    deadline = time.monotonic() + 30
    while lab.job().metadata.labels["fedstrata.io/phase"] != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert lab.job().metadata.labels["fedstrata.io/round"] == "8-of-8"


def test_status_says_how_the_run_stands(lab: Lab, record: Path) -> None:
    found = json.loads(lab.here("status", "--once", "--json").splitlines()[-1])
    assert found["phase"] == "completed"
    assert found["global_round"] == found["global_rounds"] == 8


def test_the_collected_record_has_its_report(record: Path) -> None:
    assert (record / "report.html").read_text().startswith("<!")


def test_each_tier_is_where_it_was_selected_to_be(lab: Lab, record: Path) -> None:
    tier_of = {node.metadata.name: node.metadata.labels.get("tier") for node in lab.core.list_node().items}
    assert [tier_of[pod.spec.node_name] for pod in lab.pods("gps")] == ["cloud"]
    assert {tier_of[pod.spec.node_name] for pod in lab.pods("device")} == {"edge"}


def test_the_gps_scaled_the_lpss_from_none_to_one_a_cluster_spread_over_the_edge(lab: Lab, record: Path) -> None:
    lpss = lab.pods("lps")
    assert len(lpss) == len(summary_of(record)["clusters"]) == 3
    assert len({pod.spec.node_name for pod in lpss}) == 2


def test_each_device_pod_is_labelled_with_its_lps(lab: Lab, record: Path) -> None:
    lps_of = {device: lps for lps, devices in summary_of(record)["clusters"].items() for device in devices}
    labels = {pod.metadata.name: pod.metadata.labels.get("fedstrata.io/lps") for pod in lab.pods("device")}
    assert labels == {f"lab-fedstrata-device-{index}": lps_of[f"device-{index:03d}"] for index in range(10)}


def test_grouping_and_completion_are_events(lab: Lab, record: Path) -> None:
    reasons = {event.reason for event in lab.core.list_namespaced_event(lab.namespace).items}
    assert {"Grouped", "RunCompleted"} <= reasons


def test_no_probe_finds_a_pod_that_is_still_starting(lab: Lab, record: Path) -> None:
    """An answer that is late is another matter: a busy machine has such."""
    events = lab.core.list_namespaced_event(lab.namespace, field_selector="reason=Unhealthy").items
    said = [f"{event.involved_object.name}: {event.message}" for event in events]
    assert [line for line in said if "Startup" in line or "refused" in line or "503" in line] == []


def test_no_container_was_restarted(lab: Lab, record: Path) -> None:
    """A busy machine answers some probes late, so a pod may not be ready for a moment."""
    pods = lab.pods("gps") + lab.pods("lps") + lab.pods("device")
    assert {status.restart_count for pod in pods for status in pod.status.container_statuses} == {0}
    names = [f"pod/{pod.metadata.name}" for pod in pods]
    command = ["kubectl", "-n", lab.namespace, "wait", "--for=condition=Ready", "--timeout=60s", *names]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_every_process_runs_without_root_on_a_read_only_root(lab: Lab, record: Path) -> None:
    for pod in lab.pods("gps") + lab.pods("lps") + lab.pods("device"):
        assert pod.spec.security_context.run_as_non_root
        for container in pod.spec.containers:
            assert container.security_context.read_only_root_filesystem
            assert container.security_context.capabilities.drop == ["ALL"]


def test_uninstalling_leaves_nothing_of_ours(lab: Lab, record: Path) -> None:
    lab.here("down")
    selector = {"label_selector": f"{INSTANCE}=lab"}
    where = lab.namespace
    networking, rights = client.NetworkingV1Api(), client.RbacAuthorizationV1Api()
    left = [
        *lab.apps.list_namespaced_stateful_set(where, **selector).items,
        *lab.apps.list_namespaced_daemon_set(where, **selector).items,
        *lab.batch.list_namespaced_job(where, **selector).items,
        *lab.core.list_namespaced_service(where, **selector).items,
        *lab.core.list_namespaced_config_map(where, **selector).items,
        *lab.core.list_namespaced_secret(where, **selector).items,
        *lab.core.list_namespaced_service_account(where, **selector).items,
        *networking.list_namespaced_network_policy(where, **selector).items,
        *rights.list_namespaced_role(where, **selector).items,
        *rights.list_namespaced_role_binding(where, **selector).items,
    ]
    assert [found.metadata.name for found in left] == []
