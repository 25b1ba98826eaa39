"""How far a release's pods have come, judged from objects as Kubernetes gives them."""

from types import SimpleNamespace
from typing import Any

import pytest

from emulator.cluster.rollout import Seen, current_pods, is_ready, is_set_ready, progress, unscheduled
from tests.support.releases import QUOTA, SCHEDULER, a_claim, a_pod, a_set, a_warning


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
    claim = a_claim("lab-gps")
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


# --- refusals that waiting does not change --------------------------------------------------------------------------

LACKS_PODS = a_set(ready=0)
ABOVE_LIMIT = (
    'create Pod lab-lps-0 in StatefulSet lab-lps failed error: Pod "lab-lps-0" is invalid: '
    'spec.containers[0].resources.requests: Invalid value: "2Gi": must be less than or equal to memory limit'
)
FORBIDDEN, OTHERS = 'pods "lab-lps-0" is forbidden', "change the values that this concerns"
REFUSALS = {
    QUOTA: "ask for a larger quota",
    f'{FORBIDDEN}: failed quota: small: must specify limits.cpu,requests.cpu': "set these requests",
    ABOVE_LIMIT: "change gps.resources, lps.resources or device.resources",
    f'{FORBIDDEN}: maximum memory usage per Container is 512Mi, but limit is 1Gi': "change gps.resources",
    f'{FORBIDDEN}: minimum cpu usage per Pod is 1, but request is 100m': "change gps.resources",
    f'{FORBIDDEN}: violates PodSecurity "restricted:latest": runAsNonRoot != true': "namespace's level",
    f'{FORBIDDEN}: no PriorityClass with name urgent was found': OTHERS,
    f'{FORBIDDEN}: error looking up service account fl/camera: serviceaccount "camera" not found': OTHERS,
    f'{FORBIDDEN}: pod rejected: RuntimeClass "nvidia" not found': OTHERS,
    'admission webhook "policy.example" denied the request: images must come from registry.example': OTHERS,
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSALS)
def test_a_pod_that_kubernetes_refuses_to_make_is_refused_with_what_to_change(said: str) -> None:
    (why,) = progress(Seen(sets=[LACKS_PODS], warnings=[a_warning("StatefulSet", "lab-lps", said)])).refused
    assert why.startswith(f"StatefulSet lab-lps: {said[:100]}")
    assert REFUSALS[said] in why


@pytest.mark.parametrize("said", [
    'pods "lab-lps-0" already exists',
    'object is being deleted: pods "lab-lps-0" already exists',
    'Internal error occurred: failed calling webhook "x": Post "https://x": connection refused',
    "Timeout: request did not complete within requested timeout 34s",
    "Internal error occurred: admission plugin failed to complete in time: timed out",
])  # fmt: skip
def test_what_passes_by_itself_is_waited_for(said: str) -> None:
    assert not progress(Seen(sets=[LACKS_PODS], warnings=[a_warning("StatefulSet", "lab-lps", said)])).refused


def test_a_refusal_is_over_once_all_pods_are_made_and_is_not_judged_while_old_pods_make_room() -> None:
    refused = [a_warning("StatefulSet", "lab-lps", QUOTA)]
    starting = [a_pod(f"lab-lps-{n}", ready=False) for n in range(3)]
    for pods, is_refused in (
        (starting[:2], True),
        (starting, False),
        ([*starting[:2], a_pod("lab-lps-2", going=True)], False),
        ([*starting[:2], a_pod("lab-device-0", owner="lab-device", revision="old")], True),  # of a set that is not here
        ([*starting[:2], a_pod("lab-lps-2", revision="old")], False),
    ):
        assert bool(progress(Seen(sets=[LACKS_PODS], pods=pods, warnings=refused)).refused) is is_refused


@pytest.mark.parametrize(("phase", "said", "is_refused"), [
    ("Pending", 'storageclass.storage.k8s.io "fast" not found', True),
    ("Pending", 'storageclass "fast" not found', True),
    ("Pending", "no persistent volumes available for this claim and no storage class is set", True),
    ("Bound", 'storageclass "fast" not found', False),
    ("Pending", "failed to provision volume: rpc error: code = DeadlineExceeded", False),
    ("Pending", "waiting for first consumer to be created before binding", False),
])  # fmt: skip
def test_a_claim_without_a_storage_class_is_refused(phase: str, said: str, is_refused: bool) -> None:
    warning = a_warning("PersistentVolumeClaim", "lab-gps", said, reason="ProvisioningFailed")
    found = progress(Seen(sets=[a_set(ready=0)], claims=[a_claim("lab-gps", phase)], warnings=[warning]))
    assert bool(found.refused) is is_refused
    assert all("gps.persistence.storageClass" in why for why in found.refused)


def test_a_warning_from_before_counts_again_only_if_it_is_repeated() -> None:
    before, again = (a_warning("StatefulSet", "lab-lps", QUOTA, times=times) for times in (1, 2))
    for warning, is_new in ((before, False), (again, True)):
        seen = Seen(sets=[LACKS_PODS], warnings=[warning]).since([before])
        assert bool(progress(seen).refused) is is_new
        assert bool(progress(seen).reasons) is is_new
