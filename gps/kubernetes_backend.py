"""The GPS inside Kubernetes: scales its LPSs' StatefulSet, labels device pods, records Events; nothing else.

Without the rights for one of these it says so once and goes on: with a fixed number of clusters the chart has
started the LPSs already.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.errors import ExperimentError
from fedstrata.logs import EventLog

LABEL = "fedstrata.io/lps"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REQUEST_S = 10


class KubernetesBackend:
    """Speaks to the API server with the pod's own service account."""

    def __init__(self, *, namespace: str, statefulset: str, pod_name: str, instance: str, log: EventLog) -> None:
        from kubernetes import client, config

        try:
            config.load_incluster_config()
        except config.ConfigException as error:
            log.warning("kubernetes_out_of_reach", reason=str(error), means="LPSs are not scaled, pods not labelled")
        self._apps, self._core = client.AppsV1Api(), client.CoreV1Api()
        self._namespace = namespace
        self._statefulset = statefulset
        self._pod_name = pod_name
        self._instance = instance
        self._log = log
        self._withheld: set[str] = set()

    @classmethod
    def from_environment(cls, log: EventLog) -> "KubernetesBackend":
        """From FEDSTRATA_NAMESPACE, FEDSTRATA_LPS_STATEFULSET, FEDSTRATA_POD_NAME and FEDSTRATA_RELEASE."""
        statefulset = os.environ.get("FEDSTRATA_LPS_STATEFULSET", "")
        namespace = os.environ.get("FEDSTRATA_NAMESPACE", "")
        if not namespace and NAMESPACE_FILE.exists():
            namespace = NAMESPACE_FILE.read_text().strip()
        if not statefulset or not namespace:
            raise ExperimentError(
                "--lps-backend kubernetes needs FEDSTRATA_LPS_STATEFULSET and FEDSTRATA_NAMESPACE; the chart sets both"
            )
        return cls(
            namespace=namespace,
            statefulset=statefulset,
            pod_name=os.environ.get("FEDSTRATA_POD_NAME", ""),
            instance=os.environ.get("FEDSTRATA_RELEASE", ""),
            log=log,
        )

    async def scale_lps(self, replicas: int) -> None:
        """Set the StatefulSet's replicas to the number of clusters."""
        done = await self._try(
            "scale",
            lambda: self._apps.patch_namespaced_stateful_set_scale(
                self._statefulset, self._namespace, {"spec": {"replicas": replicas}}, _request_timeout=REQUEST_S
            ),
            f"run `kubectl -n {self._namespace} scale statefulset {self._statefulset} --replicas={replicas}` "
            "unless it has them already",
        )
        if done:
            self._log.info("lps_scaled", replicas=replicas, statefulset=self._statefulset)

    async def label_pods(self, lps_ids: Mapping[str, str]) -> None:
        """Label each of this release's device pods with its LPSs."""
        for pod_name, value in sorted(lps_ids.items()):
            if not await self._try("label", partial(self._label, pod_name, value), "pods carry no LPS label"):
                return
        if lps_ids:
            self._log.info("pods_labelled", pods=len(lps_ids))

    def _label(self, pod_name: str, value: str) -> None:
        pod = self._core.read_namespaced_pod(pod_name, self._namespace, _request_timeout=REQUEST_S)
        labels = pod.metadata.labels or {}
        if labels.get("app.kubernetes.io/instance") != self._instance:
            self._log.warning("pod_not_ours", pod=pod_name)  # a device may claim any pod's name
            return
        body = {"metadata": {"labels": {LABEL: value[:63]}}}
        self._core.patch_namespaced_pod(pod_name, self._namespace, body, _request_timeout=REQUEST_S)

    async def record_event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Record an Event about the GPS's pod."""
        await self._try("event", lambda: self._record(reason, message, is_warning), "no Events are recorded")

    def _record(self, reason: str, message: str, is_warning: bool) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        body = {
            "metadata": {"generateName": f"{self._pod_name}.", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": self._pod_name, "namespace": self._namespace,
                "uid": os.environ.get("FEDSTRATA_POD_UID", ""),
            },
            "reason": reason,
            "message": message[:1000],
            "type": "Warning" if is_warning else "Normal",
            "source": {"component": "fedstrata-gps"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }  # fmt: skip
        self._core.create_namespaced_event(self._namespace, body, _request_timeout=REQUEST_S)

    async def _try(self, what: str, call: Callable[[], Any], otherwise: str) -> bool:
        """Make one call in a thread; a refusal is said once and never fails the run."""
        try:
            await asyncio.to_thread(call)
        except Exception as error:  # the client raises its own, urllib3's and socket errors
            if what not in self._withheld:
                self._withheld.add(what)
                reason = getattr(error, "reason", None) or str(error)
                self._log.warning("kubernetes_refused", call=what, reason=str(reason)[:300], means=otherwise)
            return False
        return True
