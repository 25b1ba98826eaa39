"""A release that is changed, or whose nodes are drained, while its run trains: the run completes with the same bits.

The test of another image needs to know under which other tag the nodes have the images:

    FEDSTRATA_OTHER_TAG=0.2.0-again make test-cluster
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from emulator.cluster.chart_values import merge_values
from emulator.cluster.helm import Helm
from emulator.cluster.release import Release
from emulator.shipped.share import CHART
from tests.cluster.conftest import LONG, Lab
from tests.support.records import assert_same_result, summary_of

OTHER_TAG = os.environ.get("FEDSTRATA_OTHER_TAG", "")
ON_VOLUMES: dict[str, Any] = {
    "gps": {"persistence": {"enabled": True}},
    "lps": {"persistence": {"enabled": True}},  # as they are unless told otherwise
    "device": {"devicesPerPod": 2},
}
REPLACED_S = 400.0  # all pods, one after the other


@pytest.fixture(autouse=True)
def _releases(lab: Lab) -> Iterator[None]:
    """Take down what a failed test has left: the pods and volumes of its releases would be missing in the next one."""
    yield
    for release in lab.releases():
        lab.here("down", "--delete-records", "--yes", release=release)


def upgraded(lab: Lab, *arguments: str, release: str) -> None:
    sets = [part for pair in LONG for part in ("--set", pair)]
    lab.here("up", "experiments/digits.yaml", *sets, *arguments, release=release)


def with_another_image(lab: Lab, release: str) -> None:
    upgraded(lab, "--set-value", f"image.tag={OTHER_TAG}", release=release)


def with_certificates_followed(lab: Lab, release: str) -> None:
    upgraded(lab, "--set-value", "tls.follow=true", release=release)


def with_a_newer_chart(lab: Lab, release: str) -> None:
    folder = lab.folder / "newer"
    shutil.copytree(CHART, folder)
    about = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "99.0.0"}))
    upgraded(lab, "--chart", str(folder), release=release)


def by_helm_alone_with_other_values(lab: Lab, release: str) -> None:
    """Kubernetes replaces the pods as it does by itself: before 1.24 one after the other in each tier."""
    helm = Helm(Release(name=release, namespace=lab.namespace))
    note = {"podAnnotations": {"example.org/note": "another"}}
    helm.upgrade(CHART, merge_values([helm.values(), {"gps": note, "lps": note, "device": note}]))


def check_completes(lab: Lab, release: str, undisturbed: Path) -> None:
    folder = lab.folder / release
    lab.here("collect", "--out", str(folder), "--quiet", release=release)
    assert_same_result(folder, undisturbed)
    assert summary_of(folder)["excluded"] == []
    lab.here("down", "--delete-records", "--yes", release=release)


def uids(lab: Lab, release: str) -> set[str]:
    """The pods of LPSs and devices, which each of the changes replaces; the GPS takes new certificates in any case."""
    return {pod.metadata.uid for tier in ("lps", "device") for pod in lab.pods(tier, release)}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            with_another_image, marks=pytest.mark.skipif(not OTHER_TAG, reason="needs FEDSTRATA_OTHER_TAG (see head)")
        ),
        with_certificates_followed,
        with_a_newer_chart,
        by_helm_alone_with_other_values,
    ],
)
def test_a_release_that_is_changed_while_it_trains_completes_with_the_same_bits(
    lab: Lab, local_long_digits: Path, change: Callable[[Lab, str], None]
) -> None:
    release = change.__name__.replace("_", "-")[:20].rstrip("-")
    lab.up("experiments/digits.yaml", ON_VOLUMES, sets=LONG, release=release)
    lab.wait_global_round(5, release)
    before = uids(lab, release)
    with lab.waiting("complete", release) as wait:  # begun before the change, and for the same Job
        change(lab, release)
        check_replaced(lab, release, before)
        assert wait.wait(timeout=REPLACED_S) == 0
    check_completes(lab, release, local_long_digits)


def check_replaced(lab: Lab, release: str, before: set[str]) -> None:
    """Wait until no pod is left of those that were there."""
    deadline = time.monotonic() + REPLACED_S
    while left := before & uids(lab, release):
        assert time.monotonic() < deadline, f"{len(left)} of {len(before)} pods are still there"
        time.sleep(1)


def check_says(lab: Lab, pod: str, event: str) -> None:
    """Wait until a pod has logged an event; a pod whose container is not there yet has no log."""
    deadline, said = time.monotonic() + REPLACED_S, ""
    while event not in said:
        assert time.monotonic() < deadline, f"{pod} does not say {event}: {said}"
        time.sleep(1)
        with suppress(client.ApiException):
            said = lab.core.read_namespaced_pod_log(pod, lab.namespace)


@contextmanager
def cordoned(lab: Lab, node: str) -> Iterator[None]:
    """Keep new pods away from a node while the block lasts."""
    lab.core.patch_node(node, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        lab.core.patch_node(node, {"spec": {"unschedulable": None}})


def drain(lab: Lab, node: str) -> None:
    """Take all pods of the namespace from a node, as `kubectl drain` does: if a budget says no, it asks again."""
    deadline = time.monotonic() + REPLACED_S
    while left := on_node(lab, node):
        assert time.monotonic() < deadline, f"{left} stay on {node}"
        for pod in reversed(left):  # LPSs before devices, so that all of them go while the run trains
            eviction = {"metadata": {"name": pod, "namespace": lab.namespace}}
            with suppress(client.ApiException):
                lab.core.create_namespaced_pod_eviction(pod, lab.namespace, eviction)
        time.sleep(0.2)


def on_node(lab: Lab, node: str) -> list[str]:
    found = lab.core.list_namespaced_pod(lab.namespace, field_selector=f"spec.nodeName={node}").items
    return sorted(pod.metadata.name for pod in found)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("has_volumes", [True, False], ids=["volumes", "no-volumes"])
def test_a_drained_node_with_lpss_and_all_their_devices_leaves_the_bits_as_they_are(
    lab: Lab, local_long_digits: Path, has_volumes: bool
) -> None:
    release = "drained" if has_volumes else "drained-bare"
    nodes = [node.metadata.name for node in lab.core.list_node(label_selector="tier=edge").items]
    values = merge_values([ON_VOLUMES, {"lps": {"persistence": {"enabled": has_volumes}}}])
    with ExitStack() as others:
        for node in nodes[1:]:
            others.enter_context(cordoned(lab, node))
        lab.up("experiments/digits.yaml", values, sets=LONG, release=release)
        lab.wait_global_round(5, release)
    assert len(on_node(lab, nodes[0])) == 3 + 5
    with cordoned(lab, nodes[0]):
        drain(lab, nodes[0])
        for pod in lab.pods("lps", release):
            check_says(lab, pod.metadata.name, "cluster_resumed" if has_volumes else "taken_over")
        check_completes(lab, release, local_long_digits)


def test_a_run_that_another_has_replaced_goes_on_where_it_stood_when_its_experiment_comes_back(
    lab: Lab, local_long_digits: Path
) -> None:
    first = ("experiments/digits.yaml", *[part for pair in LONG for part in ("--set", pair)])
    other = ("experiments/digits.yaml", "--set", "training.global_rounds=2", "--set", "seed=7")
    lab.up("experiments/digits.yaml", ON_VOLUMES, sets=LONG, release="replaced")
    lab.wait_global_round(5, "replaced")
    lab.scale("device", 0, "replaced")  # so that the run is not over before it is replaced
    stood = lab.status("replaced")
    said = lab.here("up", *other, release="replaced", code=2)
    assert f"has run {stood['run_id']} in phase training" in said
    assert lab.status("replaced")["run_id"] == stood["run_id"]
    lab.here("up", *other, "--replace", release="replaced")
    lab.here("collect", "--out", str(lab.folder / "other"), "--quiet", release="replaced")
    assert summary_of(lab.folder / "other")["status"] == "completed"
    lab.here("up", *first, release="replaced")
    assert lab.status("replaced")["global_round"] >= stood["global_round"]
    check_completes(lab, "replaced", local_long_digits)
