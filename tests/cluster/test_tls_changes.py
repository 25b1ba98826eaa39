"""Certificates of a release that change under its run: another authority in steps, and an LPS that is revoked."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.conftest import Lab
from tests.support.records import summary_of

# Slow links make training last longer than what is changed in it: 600 LPS rounds of at least 2 × 0.4 s, eight minutes.
SLOWED = ("training.global_rounds=300", "clock=real", "links={device-lps: {latency: 400ms}}")
SHORTER = ("training.global_rounds=150", *SLOWED[1:])  # four minutes
FOLLOWING: dict[str, Any] = {"tls": {"mode": "generated", "follow": True}}
STEPS = (("--authority", "new"), ("--pods",), ("--authority", "drop"))
KUBELET_S = 240.0  # twice as long as it takes to bring a Secret
LOST = {"lps_away", "sent_again", "call_refused", "update_late"}


def events(lab: Lab, pod: str) -> list[dict[str, Any]]:
    """What a pod has logged."""
    log = lab.core.read_namespaced_pod_log(pod, lab.namespace)
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def pods(lab: Lab) -> list[str]:
    return [pod.metadata.name for tier in ("gps", "lps", "device") for pod in lab.pods(tier)]


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + KUBELET_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(5)


def taken(lab: Lab, pod: str) -> int:
    """How many sets of files a pod has taken since it began."""
    return sum(event["event"] == "certificate_taken" for event in events(lab, pod))


def certs(lab: Lab, command: str, *words: str) -> str:
    return lab.fedstrata("certs", command, *words, "--release", "lab", "--namespace", lab.namespace)


@pytest.mark.timeout(1500)
def test_an_authority_is_changed_under_a_run_without_a_round_lost(lab: Lab) -> None:
    lab.up("experiments/digits.yaml", FOLLOWING, sets=SLOWED)
    lab.wait_global_round(1, "lab")
    for step in STEPS:
        before = {pod: taken(lab, pod) for pod in pods(lab)}  # some pods say so of their first files, too
        certs(lab, "renew", *step, "--folder", str(lab.folder / "none"))
        wait_for(f"{step}: not taken", lambda before=before: all(taken(lab, pod) > before[pod] for pod in before))
    assert lab.status()["phase"] == "training", "over too soon"
    said = {pod: [event["event"] for event in events(lab, pod)] for pod in pods(lab)}
    folder = lab.folder / "changed"
    where = ("--namespace", lab.namespace, "--release", "lab")
    lab.fedstrata("collect", *where, "--out", str(folder), "--quiet", timeout_s=900)
    assert summary_of(folder)["status"] == "completed"
    assert summary_of(folder)["excluded"] == []
    assert {pod: LOST & set(told) for pod, told in said.items() if LOST & set(told)} == {}
    restarts = [pod.status.container_statuses[0].restart_count for tier in ("gps", "lps") for pod in lab.pods(tier)]
    assert set(restarts) == {0}
    lab.here("down")


@pytest.mark.timeout(1500)
def test_a_revoked_lps_loses_its_cluster_to_another_and_a_revoked_list_stays_at_the_next_up(lab: Lab) -> None:
    lab.up("experiments/digits.yaml", {"tls": {"mode": "generated"}}, sets=SHORTER)
    lab.wait_global_round(1, "lab")
    assert certs(lab, "revoke", "lps", "lps-1").split() == ["lab-tls-revoked"]
    wait_for("not adopted", lambda: any(e["event"] == "adopted" for e in events(lab, "lab-fedstrata-gps-0")))
    (adopted,) = [event for event in events(lab, "lab-fedstrata-gps-0") if event["event"] == "adopted"]
    assert (adopted["cluster"], adopted["was"]) == ("lps-1", "lps-1")
    folder = lab.folder / "revoked"
    lab.here("collect", "--out", str(folder), "--quiet")
    assert summary_of(folder)["status"] == "completed"
    secret = lab.core.read_namespaced_secret("lab-tls-revoked", lab.namespace)
    assert set(secret.data) == {"revoked.txt"}
    lab.here("down")
    left = lab.core.list_namespaced_secret(lab.namespace, label_selector="app.kubernetes.io/instance=lab").items
    assert left == []
