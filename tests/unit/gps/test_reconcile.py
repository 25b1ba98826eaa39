"""What the GPS wants of Kubernetes comes to hold however often the API refuses, and is looked at again."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client import ApiException
from kubernetes.config import ConfigException, incluster_config

from fedstrata.process.logs import EventLog
from gps.kubernetes.backend import Standing
from gps.kubernetes.kubernetes_backend import KubernetesApi, label_change, label_value
from gps.kubernetes.reconcile import Note, Pauses, Reconciler

QUICK = Pauses(first_s=0.001, longest_s=0.002, forbidden_s=0.001, look_again_s=0.001, shown_s=0.001)
SLOW = Pauses(first_s=600, longest_s=600, forbidden_s=600, look_again_s=600)


class FakeApi:
    """An API whose calls fail a number of times each; keeps what came through."""

    job = "demo-1"

    def __init__(self, *, failures: int = 0, status: int = 503) -> None:
        self.replicas: list[int] = []
        self.labels: list[Mapping[str, Sequence[str]]] = []
        self.notes: list[Note] = []
        self.shown: list[Standing] = []
        self.attempts = {"scale": 0, "label": 0, "event": 0, "release": 0, "show": 0}
        self.device_replicas: list[int] = []
        self._failures, self._status = failures, status
        self._loop = asyncio.get_running_loop()
        self._called = asyncio.Event()

    @contextmanager
    def _attempt(self, what: str) -> Iterator[None]:
        self.attempts[what] += 1
        try:
            if self.attempts[what] <= self._failures:
                raise ApiException(status=self._status, reason="away")
            yield
        finally:  # once what has come through is kept: whoever waits for it looks then
            self._loop.call_soon_threadsafe(self._called.set)

    def scale_lps(self, replicas: int) -> bool:
        with self._attempt("scale"):
            self.replicas.append(replicas)
        return True

    def stop_devices(self) -> bool:
        with self._attempt("release"):
            self.device_replicas.append(0)
        return True

    def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> int:
        with self._attempt("label"):
            self.labels.append(lps_ids)
        return len(lps_ids)

    def show(self, standing: Standing) -> None:
        with self._attempt("show"):
            self.shown.append(standing)

    def record(self, note: Note) -> None:
        with self._attempt("event"):
            self.notes.append(note)

    def instead_of(self, what: str) -> str:
        return "by hand"

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._called.clear()
                await self._called.wait()


async def test_an_api_that_is_away_for_four_attempts_gets_replicas_labels_and_events_in_the_end() -> None:
    api = FakeApi(failures=4)
    wanted = Reconciler(api, EventLog("test"), QUICK)
    wanted.scale_lps(3)
    wanted.label_pods({"pod-0": ["lps-1"]})
    wanted.record_event("Grouped", "three clusters")
    wanted.record_event("Adopted", "lps-0", is_warning=True)
    await api.until(lambda: bool(api.replicas and api.labels and len(api.notes) == 2))
    await wanted.close()
    assert api.replicas[0] == 3
    assert api.labels[0] == {"pod-0": ["lps-1"]}
    assert [(note.reason, note.is_warning) for note in api.notes] == [("Grouped", False), ("Adopted", True)]


async def test_what_holds_is_looked_at_again_but_an_event_is_recorded_once() -> None:
    api = FakeApi()
    wanted = Reconciler(api, EventLog("test"), QUICK)
    wanted.scale_lps(3)
    wanted.record_event("Grouped", "three clusters")
    await api.until(lambda: len(api.replicas) >= 3)
    await wanted.close()
    assert len(api.notes) == 1


async def test_what_is_wanted_anew_waits_for_no_pause_and_replaces_what_was_wanted_before() -> None:
    api = FakeApi(failures=1)
    wanted = Reconciler(api, EventLog("test"), SLOW)
    wanted.scale_lps(3)
    await api.until(lambda: api.attempts["scale"] == 1)
    wanted.scale_lps(2)
    await api.until(lambda: bool(api.replicas))
    await wanted.close()
    assert api.replicas == [2]


async def test_an_api_that_refuses_labels_holds_up_nothing_else() -> None:
    api = FakeApi()
    api.label_pods = lambda lps_ids: (_ for _ in ()).throw(ApiException(status=403, reason="Forbidden"))  # type: ignore[method-assign]
    wanted = Reconciler(api, EventLog("test"), QUICK)
    wanted.label_pods({"pod-0": ["lps-1"]})
    wanted.scale_lps(3)
    wanted.record_event("Grouped", "three clusters")
    await api.until(lambda: bool(api.replicas and api.notes))
    await wanted.close()


async def test_after_a_run_its_lpss_and_devices_are_given_back_the_devices_once() -> None:
    api = FakeApi(failures=2)
    wanted = Reconciler(api, EventLog("test"), QUICK, release_after_s=0.0)
    wanted.scale_lps(3)
    wanted.release_pods()
    await api.until(lambda: 0 in api.replicas and bool(api.device_replicas))
    seen = api.replicas.count(0)
    await api.until(lambda: api.replicas.count(0) > seen + 2)
    await wanted.close()
    assert api.device_replicas == [0]
    assert api.replicas[-1] == 0


def after(rounds: int) -> Standing:
    return Standing(phase="training", global_round=rounds, global_rounds=100, reason="")


async def test_of_many_rounds_in_a_moment_the_job_shows_the_last_and_not_each() -> None:
    api = FakeApi(failures=1)
    wanted = Reconciler(api, EventLog("test"), QUICK)
    for rounds in range(100):
        wanted.show(after(rounds))
    await api.until(lambda: after(99) in api.shown)
    await wanted.close()
    assert set(api.shown) == {after(99)}


async def test_a_gps_without_a_job_shows_nothing() -> None:
    api = FakeApi()
    api.job = ""
    wanted = Reconciler(api, EventLog("test"), QUICK)
    wanted.show(after(1))
    wanted.scale_lps(1)
    await api.until(lambda: bool(api.replicas))
    await wanted.close()
    assert api.attempts["show"] == 0


def test_a_job_carries_phase_and_round_as_labels_and_the_reason_of_a_failure_as_an_annotation() -> None:
    patched: list[Any] = []
    log = EventLog("test")
    api = KubernetesApi(namespace="lab", statefulset="", devices="", pod_name="", instance="", log=log, job="j")
    api._batch = SimpleNamespace(patch_namespaced_job=lambda *words, **_: patched.append(words))
    api.show(Standing(phase="failed", global_round=3, global_rounds=8, reason="the quorum is 10"))
    api.show(after(4))
    labels = {"fedstrata.io/phase": "failed", "fedstrata.io/round": "3-of-8"}
    annotations = {"fedstrata.io/reason": "the quorum is 10"}
    assert patched[0] == ("j", "lab", {"metadata": {"labels": labels, "annotations": annotations}})
    assert patched[1][2]["metadata"]["annotations"] == {"fedstrata.io/reason": None}  # removes one that is there


async def test_unless_told_a_run_keeps_its_pods() -> None:
    api = FakeApi()
    wanted = Reconciler(api, EventLog("test"), QUICK)
    wanted.scale_lps(3)
    wanted.release_pods()
    await api.until(lambda: len(api.replicas) >= 3)
    await wanted.close()
    assert set(api.replicas) == {3}
    assert api.device_replicas == []


async def test_a_refusal_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        api = FakeApi(failures=3)
        wanted = Reconciler(api, EventLog("test"), QUICK)
        wanted.scale_lps(3)
        await api.until(lambda: api.attempts["scale"] >= 6)
        await wanted.close()
    said = [record.getMessage() for record in caplog.records]
    assert said.count("kubernetes_refused") == 1
    assert said.count("kubernetes_answers_again") == 1


@pytest.mark.parametrize(
    ("lps_ids", "value"),
    [
        (["lps-0"], "lps-0"),
        (["lps-0", "lps-1"], "lps-0.lps-1"),
        ([f"lps-{n}" for n in range(10)], ".".join(f"lps-{n}" for n in range(10))),  # 59 characters
        ([f"lps-{n}" for n in range(11)], ".".join(f"lps-{n}" for n in range(8)) + ".and-3-more"),
    ],
)
def test_a_label_names_as_many_lpss_as_its_63_characters_hold(lps_ids: list[str], value: str) -> None:
    assert label_value(lps_ids) == value
    assert len(value) <= 63


def test_a_pod_of_several_lpss_is_selected_by_each_and_by_none_that_it_has_left() -> None:
    labels = {"app": "x", "fedstrata.io/lps": "lps-0", "lps.fedstrata.io/lps-0": "true"}
    assert label_change(labels, ["lps-1", "lps-2"]) == {
        "fedstrata.io/lps": "lps-1.lps-2",
        "lps.fedstrata.io/lps-0": None,
        "lps.fedstrata.io/lps-1": "true",
        "lps.fedstrata.io/lps-2": "true",
    }
    assert label_change(labels, ["lps-0"]) == {}


class FakeCore:
    """Pods by name with their labels, as the Kubernetes client gives and changes them."""

    def __init__(self, pods: dict[str, dict[str, str]], vanishing: str = "") -> None:
        self.pods, self._vanishing = pods, vanishing
        self.forbidden: set[str] = set()

    def list_namespaced_pod(self, namespace: str, **_: object) -> SimpleNamespace:
        items = [SimpleNamespace(metadata=SimpleNamespace(name=n, labels=dict(ls))) for n, ls in self.pods.items()]
        return SimpleNamespace(items=items)

    def patch_namespaced_pod(self, name: str, namespace: str, body: dict[str, dict[str, dict[str, str]]], **_: object):  # type: ignore[no-untyped-def]
        if name == self._vanishing:
            raise client.ApiException(status=404, reason="Not Found")
        if name in self.forbidden:
            raise client.ApiException(status=403, reason="Forbidden")
        self.pods[name].update(body["metadata"]["labels"])


def api_of(core: FakeCore) -> KubernetesApi:
    api = KubernetesApi(namespace="lab", statefulset="", devices="", pod_name="", instance="demo", log=EventLog("test"))
    api._core = core
    return api


def test_pods_that_have_come_back_without_labels_are_labelled_and_the_others_left_alone() -> None:
    core = FakeCore({"pod-0": {}, "pod-1": {}, "pod-2": {}}, vanishing="pod-1")
    api = api_of(core)
    wanted = {"pod-0": ["lps-0"], "pod-1": ["lps-0"], "another-releases-pod": ["lps-1"]}
    assert api.label_pods(wanted) == 1
    assert core.pods["pod-0"] == {"fedstrata.io/lps": "lps-0", "lps.fedstrata.io/lps-0": "true"}
    assert api.label_pods(wanted) == 0
    core.pods["pod-0"] = {}  # replaced
    assert api.label_pods(wanted) == 1
    assert core.pods["pod-2"] == {}


def test_an_account_that_is_mounted_late_is_found_when_a_call_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    for name, value in (("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")):
        monkeypatch.setenv(name, value)
    api = KubernetesApi(namespace="lab", statefulset="lps", devices="", pod_name="", instance="demo", log=EventLog(""))
    with pytest.raises(ConfigException, match="token file does not exist"):
        api.scale_lps(3)
    token.write_text("a token")
    authority.write_text("a certificate")
    assert api._api.configuration.host == "https://127.0.0.1:1"


def test_a_pod_that_may_not_be_labelled_leaves_the_others_their_labels() -> None:
    core = FakeCore({"board": {}, "pod-0": {}})
    core.forbidden = {"board"}
    with pytest.raises(client.ApiException, match="Forbidden"):
        api_of(core).label_pods({"board": ["lps-0"], "pod-0": ["lps-0"]})
    assert core.pods["pod-0"]["fedstrata.io/lps"] == "lps-0"
