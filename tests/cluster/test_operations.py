"""What happens around a run: an API that is away, a wrong tag, a release taken down and put up again, a quota.

The test of the API needs to know how it is taken away from one pod and given back; both commands get the pod's node
and address as last arguments:

    FEDSTRATA_BLOCK_API="…" FEDSTRATA_ALLOW_API="…" make test-cluster
"""

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from tests.cluster.conftest import LONG, PERSISTENT, VALUES, Lab, lasting
from tests.support.records import assert_same_result, summary_of

BLOCK, ALLOW = os.environ.get("FEDSTRATA_BLOCK_API", ""), os.environ.get("FEDSTRATA_ALLOW_API", "")
AWAY_S = 60
PACKED: dict[str, Any] = {"device": {"devicesPerPod": 5}}


def gps_of(lab: Lab, release: str) -> tuple[str, str]:
    """Node and address of a release's GPS, as soon as it has them."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pods = [pod for pod in lab.pods("gps", release) if pod.status.pod_ip]
        if pods:
            return pods[0].spec.node_name, pods[0].status.pod_ip
        time.sleep(0.05)
    raise AssertionError(f"the GPS of {release} has no address")


@contextmanager
def without_api(node: str, address: str) -> Iterator[None]:
    """Take the API away from one pod for the block."""
    subprocess.run([*shlex.split(BLOCK), node, address], check=True, capture_output=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run([*shlex.split(ALLOW), node, address], check=True, capture_output=True, timeout=60)


def label_of_pods(lab: Lab, release: str) -> dict[str, str]:
    labels = {pod.metadata.name: pod.metadata.labels for pod in lab.pods("device", release)}
    return {name: found.get("fedstrata.io/lps", "") for name, found in labels.items()}


@pytest.mark.skipif(not (BLOCK and ALLOW), reason="needs FEDSTRATA_BLOCK_API and FEDSTRATA_ALLOW_API (see the head)")
def test_an_api_that_is_away_at_grouping_delays_the_run_and_changes_no_bit(lab: Lab, local_digits: Path) -> None:
    upping = threading.Thread(target=lab.up, args=("experiments/digits.yaml",), kwargs={"release": "away"})
    upping.start()
    with without_api(*gps_of(lab, "away")):
        upping.join()
        time.sleep(AWAY_S)
        assert lab.pods("lps", "away") == []
        assert lab.status("away")["phase"] == "training"
    folder = lab.folder / "away"
    lab.here("collect", "--out", str(folder), "--quiet", release="away")
    assert_same_result(folder, local_digits)
    lps_of = {device: lps for lps, devices in summary_of(folder)["clusters"].items() for device in devices}
    wanted = {f"away-fedstrata-device-{index}": lps_of[f"device-{index:03d}"] for index in range(10)}
    _wait(lambda: label_of_pods(lab, "away") == wanted)
    assert {"Grouped", "RunCompleted"} <= {e.reason for e in lab.core.list_namespaced_event(lab.namespace).items}
    lab.here("down", release="away")


@pytest.mark.skipif(not (BLOCK and ALLOW), reason="needs FEDSTRATA_BLOCK_API and FEDSTRATA_ALLOW_API (see the head)")
def test_a_device_pod_replaced_while_the_api_is_away_in_training_is_labelled_again(lab: Lab) -> None:
    lab.up("experiments/digits.yaml", PACKED, sets=lasting(600), release="gone")
    lab.wait_global_round(5, "gone")
    before = label_of_pods(lab, "gone")
    assert all(before.values())
    with without_api(*gps_of(lab, "gone")):
        victim = lab.pods("device", "gone")[0].metadata
        lab.core.delete_namespaced_pod(victim.name, lab.namespace, grace_period_seconds=0)
        _wait(lambda: lab.pods("device", "gone")[0].metadata.uid != victim.uid)
        time.sleep(AWAY_S)
    _wait(lambda: label_of_pods(lab, "gone") == before)
    chosen = lab.core.list_namespaced_pod(lab.namespace, label_selector="lps.fedstrata.io/lps-0=true").items
    assert {pod.metadata.name for pod in chosen} == {name for name, ids in before.items() if "lps-0" in ids.split(".")}
    lab.here("down", release="gone")


@pytest.mark.skipif(not (BLOCK and ALLOW), reason="needs FEDSTRATA_BLOCK_API and FEDSTRATA_ALLOW_API (see the head)")
def test_a_hand_over_while_the_api_is_away_is_labelled_when_it_is_back(lab: Lab) -> None:
    sets = (*lasting(600), "deadlines.gps.deadline_s=10", "deadlines.gps.quorum_ratio=0.3")
    lab.up("experiments/digits.yaml", sets=sets, release="handed")
    lab.wait_global_round(5, "handed")
    before = label_of_pods(lab, "handed")
    assert set(before.values()) == {"lps-0", "lps-1", "lps-2"}
    with without_api(*gps_of(lab, "handed")):
        lab.scale("lps", 2, "handed")
        _wait(lambda: len(lab.pods("lps", "handed")) == 2)
        full = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": str(4 + len(before))}}}
        lab.core.create_namespaced_resource_quota(lab.namespace, full)  # so that lps-2 cannot come back
        _wait(lambda: _waits_for(lab, "handed") == [])
        time.sleep(AWAY_S)
        assert label_of_pods(lab, "handed") == before
    _wait(lambda: "lps-2" not in label_of_pods(lab, "handed").values())
    assert set(label_of_pods(lab, "handed").values()) == {"lps-0", "lps-1"}
    lab.core.delete_namespaced_resource_quota("full", lab.namespace)
    _wait(lambda: len(lab.pods("lps", "handed")) == 3)  # the GPS has asked for three again
    _wait(lambda: label_of_pods(lab, "handed") == before)
    lab.here("down", release="handed")


def _waits_for(lab: Lab, release: str) -> list[str]:
    return [wait["name"] for wait in lab.status(release)["waits"]]


def _wait(holds: Any) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(1)


def test_a_wrong_tag_is_named_and_the_right_one_after_it_is_not_blamed_for_it(lab: Lab) -> None:
    wrong = lab.here("up", "experiments/digits.yaml", "--values", _values(lab), "--set-value", "image.tag=9.10", code=4)
    assert "9.10" in wrong
    said = lab.here("up", "experiments/digits.yaml", "--set-value", "image.tag=0.2.0")
    assert "all pods are ready" in said
    found = lab.apps.read_namespaced_stateful_set("lab-fedstrata-gps", lab.namespace)
    assert {entry.manager for entry in found.metadata.managed_fields if entry.operation == "Apply"} <= {"helm"}
    assert "of 3 pods are ready" in said  # progress, and two device pods of five: the values were kept


def test_a_release_is_taken_down_and_put_up_in_one_breath(lab: Lab) -> None:
    for _ in range(2):
        lab.here("down", "--delete-records", "--yes")
        assert not lab.core.list_namespaced_persistent_volume_claim(lab.namespace).items
        lab.here("up", "experiments/digits.yaml", "--values", _values(lab))
    assert "records stay on lab-fedstrata-gps" in lab.here("down")
    assert "deletes what it has left: lab-fedstrata-gps" in lab.here("down", code=6)
    assert "deleted lab-fedstrata-gps" in lab.here("down", "--delete-records", "--yes")


def _values(lab: Lab) -> str:
    path = lab.folder / "operations.yaml"
    values = {**VALUES, "device": {**VALUES["device"], "devicesPerPod": 5}, "gps": {"nodeSelector": {"tier": "cloud"}}}
    path.write_text(yaml.safe_dump(values))
    return str(path)


def test_a_device_that_is_gone_is_named_in_status_metric_and_event(lab: Lab) -> None:
    lab.up("experiments/digits.yaml", sets=lasting(600), release="waits")
    lab.wait_global_round(5, "waits")
    lab.scale("device", 9, "waits")
    _wait(lambda: len(lab.pods("device", "waits")) == 9)
    _wait(lambda: [wait["name"] for wait in lab.status("waits")["waits"]] == ["device-009"])
    assert 'fedstrata_waits_seconds{who="device-009"}' in _metrics(lab, "waits-fedstrata-gps-0")
    events = [e.message for e in lab.core.list_namespaced_event(lab.namespace).items if e.reason == "WaitsFor"]
    assert [message for message in events if "device-009" in message]
    lab.scale("device", 10, "waits")
    _wait(lambda: lab.status("waits")["waits"] == [])
    lab.here("down", release="waits")


def _metrics(lab: Lab, pod: str) -> str:
    found: str = lab.core.connect_get_namespaced_pod_proxy_with_path(f"{pod}:8080", lab.namespace, "metrics")
    return found


def test_a_failed_run_is_begun_again_and_pods_are_given_back_when_it_is_over(lab: Lab) -> None:
    sets = ("deadlines.enrolment.deadline_s=20", "training.global_rounds=2")
    half = {**PERSISTENT, "device": {"devicesPerPod": 5, "external": 5}}  # which nobody runs
    lab.up("experiments/digits.yaml", half, sets=sets, release="again")
    said = lab.here("collect", "--out", str(lab.folder / "failed"), "--quiet", release="again", code=4)
    assert "the quorum is 10" in said
    with lab.waiting("failed", "again") as wait:
        assert wait.wait(timeout=120) == 0  # before 1.29 the Job looks four times
    assert "the quorum is 10" in lab.job("again").metadata.annotations["fedstrata.io/reason"]
    command = f"fedstrata up EXPERIMENT.yaml --again --release again --namespace {lab.namespace}"
    assert f"begin the run again: {command}" in said
    (device,) = (pod.metadata.name for pod in lab.pods("device", "again"))
    _wait(lambda: "run_stopped" in lab.core.read_namespaced_pod_log(device, lab.namespace))
    (idle,) = lab.pods("device", "again")  # and is not started again and again
    assert (idle.status.container_statuses[0].restart_count, idle.status.container_statuses[0].ready) == (0, True)
    given = {"device": {"external": 0}, "gps": {**PERSISTENT["gps"], "releaseAfterSeconds": 5}}
    path = lab.folder / "again.yaml"
    path.write_text(yaml.safe_dump(given))
    sets_given = [part for pair in sets for part in ("--set", pair)]
    lab.here("up", "experiments/digits.yaml", *sets_given, "--values", str(path), "--again", release="again")
    lab.here("collect", "--out", str(lab.folder / "again"), "--quiet", release="again")
    assert summary_of(lab.folder / "again")["status"] == "completed"
    with lab.waiting("complete", "again") as wait:
        assert wait.wait(timeout=30) == 0
    _wait(lambda: lab.pods("device", "again") == [] and lab.pods("lps", "again") == [])
    lab.here("up", "experiments/digits.yaml", *sets_given, release="again")  # the same run: its pods stay away
    assert lab.pods("device", "again") == []
    assert lab.status("again")["phase"] == "completed"  # served all the same
    lab.here("down", release="again")


def test_what_a_quota_forbids_is_told_while_it_is_waited_for(lab: Lab) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}}
    lab.core.create_namespaced_resource_quota(lab.namespace, quota)
    said = lab.up("experiments/digits.yaml", release="quota", code=6, timeout_s=8)
    lab.core.delete_namespaced_resource_quota("small", lab.namespace)
    assert "exceeded quota: small" in said.splitlines()[-1]
    assert said.count("of 11 pods are ready") >= 2  # while it waits, and at the end
    lab.here("down", release="quota")


def test_the_release_of_another_chart_is_left_alone(lab: Lab, tmp_path: Path) -> None:
    from helm_python import Config

    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: somebodys-database\nversion: 3.1.4\n")
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "theirs", "labels": {"app.kubernetes.io/instance": "theirs"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }  # fmt: skip
    (tmp_path / "templates" / "claim.yaml").write_text(yaml.safe_dump(claim))
    with Config(namespace=lab.namespace) as helm:
        helm.install(tmp_path, "theirs", {})
        for command in (("down", "--delete-records", "--yes"), ("up", "experiments/digits.yaml")):
            said = lab.here(*command, release="theirs", code=2)
            assert "has chart somebodys-database-3.1.4, not fedstrata" in said
        assert [found["name"] for found in helm.list(all_states=True)] == ["theirs"]
        claims = lab.core.list_namespaced_persistent_volume_claim(lab.namespace).items
        assert [claim.metadata.name for claim in claims] == ["theirs"]
        helm.uninstall("theirs")


def test_without_the_right_to_forward_ports_status_says_so(lab: Lab, tmp_path: Path) -> None:
    """An account that may read the release and nothing else."""
    lab.up("experiments/digits.yaml", PACKED, sets=LONG, release="watched")
    kinds = ["pods", "events", "persistentvolumeclaims", "secrets", "statefulsets", "daemonsets"]
    rules = [{"apiGroups": ["", "apps"], "resources": kinds, "verbs": ["get", "list", "watch"]}]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "reader"},
        "rules": rules,
    }
    client.RbacAuthorizationV1Api().create_namespaced_role(lab.namespace, role)
    kubeconfig = _account(lab, tmp_path, "reader", "Role", "reader")
    for command in (("status", "--once"), ("collect", "--out", str(tmp_path / "record"))):
        said = lab.here(*command, "--kubeconfig", str(kubeconfig), release="watched", code=6)
        assert "may not forward ports" in said
    lab.here("down", release="watched")


def test_whoever_has_rights_in_one_namespace_only_installs_collects_and_removes(lab: Lab, tmp_path: Path) -> None:
    """An account with Kubernetes' own role `admin` in the namespace: no right on namespaces, none to create Events."""
    mine = ("--kubeconfig", str(_account(lab, tmp_path, "tenant", "ClusterRole", "admin")))
    bare = ("--set-value", "gps.persistence.enabled=false")
    said = lab.here("up", "experiments/digits.yaml", "--values", _values(lab), *bare, *mine, release="tenant")
    assert "gps.rbac.recordEvents is set to false" in said
    lab.here("collect", "--out", str(tmp_path / "record"), "--quiet", *mine, release="tenant")
    assert summary_of(tmp_path / "record")["status"] == "completed"
    lab.here("down", *mine, release="tenant")


def _account(lab: Lab, folder: Path, name: str, kind: str, role: str) -> Path:
    """A kubeconfig of a new service account that has a role in the namespace, and no right elsewhere."""
    account = {"metadata": {"name": name}}
    lab.core.create_namespaced_service_account(lab.namespace, account)
    binding = {
        **account,
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": lab.namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
    }
    client.RbacAuthorizationV1Api().create_namespaced_role_binding(lab.namespace, binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": None}}
    token = lab.core.create_namespaced_service_account_token(name, lab.namespace, request).status.token
    document = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path
