"""The calls of the GPS to the Kubernetes API. They scale StatefulSets, label device pods and the run's Job, and write
Events.

In this module each function makes one attempt. `gps.kubernetes.reconcile` repeats attempts until they succeed.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstrata.errors import ExperimentError
from fedstrata.process.logs import EventLog
from gps.kubernetes.backend import Standing

PHASE, ROUND, REASON = "fedstrata.io/phase", "fedstrata.io/round", "fedstrata.io/reason"  # on the Job
REASON_MAX = 1000  # characters
LABEL = "fedstrata.io/lps"  # for people: all LPSs of a pod in one value
LABEL_PREFIX = "lps.fedstrata.io/"  # for selectors: one label per LPS
LABEL_MAX = 63  # characters of a label's value
INSTANCE = "app.kubernetes.io/instance"
DEVICES = "app.kubernetes.io/component=device"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REQUEST_S = 5
GONE = 404


@dataclass(frozen=True, kw_only=True)
class Note:
    """Describe an Event about the GPS's pod."""

    reason: str
    message: str
    is_warning: bool
    at: datetime


@dataclass(kw_only=True)
class KubernetesApi:
    """Call the API server with the pod's own service account."""

    namespace: str
    statefulset: str  # of the LPSs
    devices: str  # StatefulSet of the devices; empty if they belong to a DaemonSet
    pod_name: str
    instance: str  # the release
    log: EventLog
    job: str = ""
    _strangers: set[str] = field(default_factory=set, init=False)

    @classmethod
    def from_environment(cls, log: EventLog) -> "KubernetesApi":
        """Return the API for this pod. The settings come from the environment variables FEDSTRATA_NAMESPACE,
        FEDSTRATA_LPS_STATEFULSET, FEDSTRATA_DEVICE_STATEFULSET, FEDSTRATA_POD_NAME, FEDSTRATA_RELEASE and
        FEDSTRATA_JOB.

        Raises:
            ExperimentError: the namespace or the StatefulSet of the LPSs is not known.
        """
        statefulset = os.environ.get("FEDSTRATA_LPS_STATEFULSET", "")
        namespace = os.environ.get("FEDSTRATA_NAMESPACE", "")
        if not namespace and NAMESPACE_FILE.exists():
            namespace = NAMESPACE_FILE.read_text().strip()
        if not statefulset or not namespace:
            raise ExperimentError(
                "--lps-backend kubernetes needs the variables FEDSTRATA_LPS_STATEFULSET and FEDSTRATA_NAMESPACE; set "
                "both, as the chart does"
            )
        return cls(
            namespace=namespace,
            statefulset=statefulset,
            devices=os.environ.get("FEDSTRATA_DEVICE_STATEFULSET", ""),
            pod_name=os.environ.get("FEDSTRATA_POD_NAME", ""),
            instance=os.environ.get("FEDSTRATA_RELEASE", ""),
            log=log,
            job=os.environ.get("FEDSTRATA_JOB", ""),
        )

    @cached_property
    def _api(self) -> Any:
        """Return a client with the pod's own account. Raises ConfigException while the account is missing."""
        from kubernetes import client, config

        configuration = client.Configuration()
        config.load_incluster_config(client_configuration=configuration)
        configuration.retries = False  # one attempt per call; `Reconciler` repeats calls
        return client.ApiClient(configuration)

    _apps = cached_property(lambda own: own._client("AppsV1Api"))
    _core = cached_property(lambda own: own._client("CoreV1Api"))
    _batch = cached_property(lambda own: own._client("BatchV1Api"))

    def _client(self, group: str) -> Any:
        from kubernetes import client

        return getattr(client, group)(self._api)

    def show(self, standing: Standing) -> None:
        """Label the run's Job with the phase and the round, for example 3-of-8. If the run has failed, annotate the Job
        with the reason.
        """
        labels = {PHASE: standing.phase, ROUND: f"{standing.global_round}-of-{standing.global_rounds}"}
        body = {"metadata": {"labels": labels, "annotations": {REASON: standing.reason[:REASON_MAX] or None}}}
        self._batch.patch_namespaced_job(self.job, self.namespace, body, _request_timeout=REQUEST_S)

    def scale_lps(self, replicas: int) -> bool:
        """Set the number of replicas of the LPSs' StatefulSet. Return whether this changed the number."""
        return self._scale(self.statefulset, replicas)

    def stop_devices(self) -> bool:
        """Scale the devices' StatefulSet to 0, if there is one. Return whether this changed anything. If the devices
        belong to a DaemonSet (on boards), nothing is changed.
        """
        return bool(self.devices) and self._scale(self.devices, 0)

    def _scale(self, statefulset: str, replicas: int) -> bool:
        where = (statefulset, self.namespace)
        scale = self._apps.read_namespaced_stateful_set_scale(*where, _request_timeout=REQUEST_S)
        if (scale.spec.replicas or 0) == replicas:
            return False
        body = {"spec": {"replicas": replicas}}
        self._apps.patch_namespaced_stateful_set_scale(*where, body, _request_timeout=REQUEST_S)
        return True

    def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> int:
        """Add missing labels to this release's device pods. Return the number of pods that were changed."""
        listed = self._core.list_namespaced_pod(
            self.namespace, label_selector=f"{INSTANCE}={self.instance},{DEVICES}", _request_timeout=REQUEST_S
        )
        pods = {pod.metadata.name: pod.metadata.labels or {} for pod in listed.items}
        for stranger in sorted(set(lps_ids) - set(pods) - self._strangers):
            self._strangers.add(stranger)
            self.log.warning("pod_not_ours", pod=stranger)  # it has just ended, or a device claims a wrong name
        return self._label_each({name: (pods[name], ids) for name, ids in sorted(lps_ids.items()) if name in pods})

    def _label_each(self, wanted: Mapping[str, tuple[Mapping[str, str], Sequence[str]]]) -> int:
        """Label each of the pods in `wanted`, and return the number of pods that were changed. `wanted` maps the
        name of a pod to the pod's present labels and its LPSs.

        If a label is refused, label all other pods first, and then raise the error.
        """
        from kubernetes import client

        changed, refused = 0, None
        for name, (labels, ids) in wanted.items():
            try:
                changed += self._label(name, labels, ids)
            except client.ApiException as error:
                refused = error
        if refused is not None:
            raise refused
        return changed

    def _label(self, pod_name: str, labels: Mapping[str, str], lps_ids: Sequence[str]) -> bool:
        from kubernetes import client

        change = label_change(labels, lps_ids)
        if not change:
            return False
        body = {"metadata": {"labels": change}}
        try:
            self._core.patch_namespaced_pod(pod_name, self.namespace, body, _request_timeout=REQUEST_S)
        except client.ApiException as error:
            if error.status != GONE:  # a deleted pod is labelled when it is back
                raise
            return False
        return True

    def record(self, note: Note) -> None:
        """Record an Event about the GPS's pod."""
        at = note.at.isoformat(timespec="seconds").replace("+00:00", "Z")
        body = {
            "metadata": {"generateName": f"{self.pod_name}.", "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": self.pod_name, "namespace": self.namespace,
                "uid": os.environ.get("FEDSTRATA_POD_UID", ""),
            },
            "reason": note.reason,
            "message": note.message[:1000],
            "type": "Warning" if note.is_warning else "Normal",
            "source": {"component": "fedstrata-gps"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }  # fmt: skip
        self._core.create_namespaced_event(self.namespace, body, _request_timeout=REQUEST_S)

    def instead_of(self, what: str) -> str:
        """Return a text for the operator about failed calls of the kind `what`. The text has a command that the
        operator can run instead. Without such a command, the text says what is missing as long as the calls fail.
        """
        by_hand = f"kubectl -n {self.namespace} scale statefulset {self.statefulset} --replicas=N"
        return {
            "scale": f"if this goes on, run {by_hand}, where N is the number of clusters",
            "label": "until then pods have no LPS label",
            "show": f"until then Job {self.job} has no labels for phase and round",
        }.get(what, "until then no Events are recorded")


def label_value(lps_ids: Sequence[str]) -> str:
    """Return the ids of LPSs, joined by dots. If they do not all fit into a label, the number of the other ids comes
    last: lps-0.lps-1.and-9-more.
    """
    for kept in range(len(lps_ids), 0, -1):
        left = len(lps_ids) - kept
        value = ".".join([*lps_ids[:kept], *([f"and-{left}-more"] if left else [])])
        if len(value) <= LABEL_MAX:
            return value
    return ""


def label_change(labels: Mapping[str, str], lps_ids: Sequence[str]) -> dict[str, str | None]:
    """Return the changes to a pod's labels that give it the labels of its LPSs. The value None removes a label."""
    wanted: dict[str, str | None] = {name: None for name in labels if name.startswith(LABEL_PREFIX)}
    wanted |= {LABEL_PREFIX + lps_id: "true" for lps_id in lps_ids}
    wanted[LABEL] = label_value(lps_ids)
    return {name: value for name, value in wanted.items() if labels.get(name) != value}
