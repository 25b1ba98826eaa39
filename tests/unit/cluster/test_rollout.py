"""How far a release's pods have come, judged from objects as Kubernetes gives them."""

from types import SimpleNamespace
from typing import Any

import pytest

from emulator.cluster.rollout import Seen, current_pods, is_ready, is_set_ready, progress, unscheduled
from tests.support.releases import QUOTA, SCHEDULER, a_pod, a_set, a_warning


def test_the_pod_of_the_runs_job_is_of_no_tier() -> None:
    follower = a_pod("lab-1-x", owner="lab-1", kind="Job", waiting="ErrImagePull")
    found = progress(Seen(sets=[a_set(wanted=1, ready=1)], pods=[a_pod("lab-lps-0"), follower]))
    assert (found.ready, found.hopeless) == (1, "")


@pytest.mark.parametrize(
    ("workload", "is_done"),
    [(a_set(), True), (a_set(seen=1), False), (a_set(ready=2), False), (a_set(updated=1), False)],
)
def test_a_workload_is_ready_when_all_pods_of_its_newest_form_are(workload: Any, is_done: bool) -> None:
    assert is_set_ready(workload) is is_done


def test_a_pod_without_conditions_is_not_ready() -> None:
    assert not is_ready(SimpleNamespace(status=SimpleNamespace(conditions=None)))


@pytest.mark.parametrize("left", [{"going": True}, {"revision": "old"}])
def test_a_pod_that_is_going_or_outdated_says_nothing_about_the_new_image(left: dict[str, Any]) -> None:
    broken = a_pod("lab-lps-0", waiting="ErrImagePull", message="no tag wrong", ready=False, **left)
    found = progress(Seen(sets=[a_set(ready=2)], pods=[broken, a_pod("lab-lps-1"), a_pod("lab-lps-2")]))
    assert found.hopeless == ""
    assert (found.ready, found.wanted) == (2, 3)


def test_before_kubernetes_has_looked_at_a_new_form_no_pod_counts() -> None:
    broken = a_pod("lab-lps-0", waiting="ErrImagePull", message="no tag wrong", ready=False)
    assert progress(Seen(sets=[a_set(seen=1)], pods=[broken])).hopeless == ""


def test_a_pod_of_the_newest_form_that_cannot_start_is_named_with_its_last_words() -> None:
    pods = [
        a_pod("lab-lps-0", waiting="CrashLoopBackOff", message="back-off", last="error: no\n such key", ready=False)
    ]
    assert progress(Seen(sets=[a_set()], pods=pods)).hopeless == "pod lab-lps-0: CrashLoopBackOff: error: no such key"


def test_the_schedulers_reason_is_told_once_with_the_pods_it_holds_up() -> None:
    pods = [a_pod(f"lab-lps-{n}", ready=False, unscheduled=SCHEDULER) for n in range(7)]
    line = progress(Seen(sets=[a_set(wanted=7, ready=0)], pods=pods)).line
    held_up = "lab-lps-0, lab-lps-1, lab-lps-2, lab-lps-3, lab-lps-4 and 2 more"
    assert line == f"0 of 7 pods are ready; no node can run {held_up}: {SCHEDULER}"


def test_pods_of_a_job_wait_for_a_node_as_others_do() -> None:
    pods = [a_pod(f"tiny-sweep-{n}", owner="tiny-sweep", kind="Job", ready=False, unscheduled=SCHEDULER) for n in "ab"]
    assert list(unscheduled(pods)) == [f"no node can run tiny-sweep-a, tiny-sweep-b: {SCHEDULER}"]


def test_a_quota_that_lets_no_pod_be_made_is_told() -> None:
    seen = Seen(sets=[a_set(ready=0)], warnings=[a_warning("StatefulSet", "lab-lps", QUOTA)] * 3)
    assert progress(seen).line == f"0 of 3 pods are ready; StatefulSet lab-lps: {QUOTA}"


def test_a_claim_that_is_not_bound_is_told_and_an_earlier_objects_warning_is_not() -> None:
    claim = SimpleNamespace(metadata=SimpleNamespace(name="lab-gps", uid="uid-lab-gps"))
    missing = a_warning(
        "PersistentVolumeClaim", "lab-gps", 'storageclass "fast" not found', reason="ProvisioningFailed"
    )
    earlier = a_warning("StatefulSet", "lab-lps", QUOTA, uid="of another lab-lps")
    found = progress(Seen(sets=[a_set(ready=0)], claims=[claim], warnings=[missing, earlier]))
    assert found.reasons == ('PersistentVolumeClaim lab-gps: storageclass "fast" not found',)


def test_pods_that_the_release_did_not_make_are_not_counted() -> None:
    of_a_deployment = a_pod("camera-x", owner="camera", kind="ReplicaSet", waiting="ErrImagePull", ready=False)
    seen = Seen(sets=[a_set()], pods=[a_pod("board", owner="", ready=False), of_a_deployment, a_pod("lab-lps-0")])
    assert progress(seen).hopeless == ""
    assert [pod.metadata.name for pod in current_pods(seen)] == ["lab-lps-0"]


def test_a_pod_that_was_killed_for_memory_is_told_with_the_value_that_gives_it_more() -> None:
    killed = a_pod("lab-device-3", ready=False, waiting="CrashLoopBackOff", message="back-off", ended="OOMKilled")
    killed.metadata.labels["app.kubernetes.io/component"] = "device"
    assert progress(Seen(sets=[a_set(ready=2)], pods=[killed])).hopeless == (
        "pod lab-device-3 was killed because it used more memory than its limit; raise "
        "device.resources.limits.memory, or lower device.devicesPerPod"
    )


def test_a_folder_that_kubelet_cannot_mount_just_now_is_waited_for() -> None:
    said = 'failed to prepare subPath for volumeMount "tls" of container "device"'
    for message, is_hopeless in ((said, False), ('secret "lab-tls-device-0" not found', True)):
        pod = a_pod("lab-lps-0", ready=False, waiting="CreateContainerConfigError", message=message)
        assert bool(progress(Seen(sets=[a_set()], pods=[pod])).hopeless) is is_hopeless


def test_what_kubelet_could_not_do_before_a_container_started_is_told_no_more() -> None:
    mount = a_warning("Pod", "lab-lps-0", 'secret "lab-tls-lps-0" not found', reason="FailedMount")
    passing = a_warning("Pod", "lab-lps-0", "Error: failed to prepare subPath for volumeMount", reason="Failed")
    for waiting, told in (("ContainerCreating", ('Pod lab-lps-0: secret "lab-tls-lps-0" not found',)), ("", ())):
        pod = a_pod("lab-lps-0", ready=False, waiting=waiting)
        assert progress(Seen(sets=[a_set(ready=2)], pods=[pod], warnings=[mount, passing])).reasons == told


def test_the_pod_that_a_reason_names_is_the_first_to_look_at() -> None:
    pods = [a_pod(f"lab-lps-{n}", ready=False, waiting="ContainerCreating") for n in (0, 1, 10)]
    mount = a_warning("Pod", "lab-lps-10", "no such volume", reason="FailedMount")
    assert progress(Seen(sets=[a_set(ready=0)], pods=pods, warnings=[mount])).waiting[0] == "lab-lps-10"
