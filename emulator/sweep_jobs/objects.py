"""Make the Kubernetes objects of a sweep, as plain documents: a ConfigMap, a Job, and a pod that reads the results."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from emulator.cluster.chart_values import merge_values
from emulator.sweep_jobs.storage import CLAIM, TMP, Document, PodStorage
from fedstrata.errors import ExperimentError

QUEUE = "kueue.x-k8s.io/queue-name"  # Kueue's label
OPTIONS = "fedstrata.io/options"  # an annotation of the Job
JOB_NAME_MAX = 40  # characters; the names of pods add some
HERE = "/etc/fedstrata"  # the folder in pods with the sweep's file and own code
READER_PORT = 8080
READER_S = 3600  # how long a reader stays if its command was killed
USER = 10001  # the user of the images
RESTRICTED: Document = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Hold the user's options for the Job."""

    storage: PodStorage
    parallelism: int = 4  # pods at once
    cores: int = 1  # per pod
    memory_mib: int = 2048  # per pod
    image: str = ""  # empty: the image of this version
    queue: str | None = None
    priority_class: str | None = None
    retries: int = 6  # pods that may fail before the Job does
    pod: Document = field(default_factory=dict)  # merged into the template of the pods


@dataclass(frozen=True, kw_only=True)
class SweepObjects:
    """Make the Kubernetes objects of one sweep."""

    name: str  # the sweep's name, from which names on Kubernetes are made
    namespace: str
    request: JobRequest
    files: Mapping[str, str]  # by name: the sweep's file and own code
    is_shared: bool = True  # whether several nodes can use the storage at once

    @property
    def job_name(self) -> str:
        """Return the name of the Job and of the ConfigMap."""
        return job_name(self.name)

    @property
    def place(self) -> list[str]:
        """Return the arguments with which `fedstrata sweep` in a pod finds the storage of the sweep's runs."""
        return self.request.storage.arguments(self.job_name.removesuffix("-sweep"))

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that all objects have. Their keys are the same as in the chart."""
        return {
            "app.kubernetes.io/name": "fedstrata",
            "app.kubernetes.io/instance": self.job_name,
            "app.kubernetes.io/version": release_of_fedstrata(),
            "app.kubernetes.io/part-of": "fedstrata",
            "app.kubernetes.io/managed-by": "fedstrata-sweep",
        }

    @property
    def options(self) -> str:
        """Return the options of the pods as one text. The parallelism is left out, because it may change while the Job
        runs.
        """
        given = {**self.request.storage.options(), **vars(self.request)}
        left_out = {"parallelism", "storage"}
        return json.dumps({key: value for key, value in given.items() if value and key not in left_out})

    def config_map(self) -> Document:
        """Return the ConfigMap with the files that pods read."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._metadata(self.job_name),
            "data": dict(self.files),
        }

    def job(self) -> Document:
        """Return the Job. It does not set `completions`, so its pods can share the runs: each pod works until all runs
        are done.
        """
        queue = {QUEUE: self.request.queue} if self.request.queue else {}
        sweep_file = next(name for name in self.files if name.endswith(".yaml"))
        arguments = ["sweep", f"{HERE}/{sweep_file}", *self.place, "--jobs", "1", "--json"]
        resources = {"cpu": str(self.request.cores), "memory": f"{self.request.memory_mib}Mi"}
        container = {**self._container("sweep", resources), "args": arguments, "workingDir": HERE}
        container["volumeMounts"] = [*container["volumeMounts"], {"name": "files", "mountPath": HERE, "readOnly": True}]
        pod = self._pod(container)
        pod["volumes"].append({"name": "files", "configMap": {"name": self.job_name}})
        if self.request.priority_class:
            pod["priorityClassName"] = self.request.priority_class
        if not self.is_shared:
            pod["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [self._beside()]}}
        template = {"metadata": {"labels": {**self.labels, "app.kubernetes.io/component": "sweep"}}, "spec": pod}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**self._metadata(self.job_name, queue), "annotations": {OPTIONS: self.options}},
            "spec": {
                "parallelism": self.request.parallelism,
                "backoffLimit": self.request.retries,
                "template": merge_values([template, self.request.pod]),
            },
        }

    def reader(self, job_uid: str) -> Document:
        """Return the reader: the pod that reads finished runs from the volume claim, and sends them to
        `fedstrata sweep` on the user's machine. Kubernetes deletes the pod together with the Job, and stops it after an
        hour.
        """
        command = ["python3", "-m", "emulator.sweep_jobs.reader", self.place[-1], str(READER_PORT)]
        container = {**self._container("reader", {"cpu": "100m", "memory": "128Mi"}), "command": command}
        container["volumeMounts"] = [{"name": "claim", "mountPath": CLAIM, "readOnly": True}]
        preferred = {"weight": 100, "podAffinityTerm": self._beside()}  # for a claim that only one node can mount
        pod = {
            **self._pod(container),
            "activeDeadlineSeconds": READER_S,
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}},
        }
        template = merge_values([{"metadata": {}, "spec": pod}, self.request.pod])
        metadata = self._metadata(f"{self.job_name}-reader", {"app.kubernetes.io/component": "reader"})
        metadata["ownerReferences"] = [owner(self.job_name, job_uid)]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": merge_values([template["metadata"], metadata]),
            "spec": template["spec"],
        }

    def _metadata(self, name: str, labels: Mapping[str, str] | None = None) -> Document:
        return {"name": name, "namespace": self.namespace, "labels": {**self.labels, **(labels or {})}}

    def _container(self, name: str, resources: Mapping[str, str]) -> Document:
        """Return a container. Its requests equal its limits, so that Kubernetes gives its pod the class Guaranteed."""
        return {
            "name": name,
            "image": self.request.image or f"localhost/fedstrata/emulator:{release_of_fedstrata()}",
            "imagePullPolicy": "IfNotPresent",
            "resources": {"requests": dict(resources), "limits": dict(resources)},
            "securityContext": RESTRICTED,
            "terminationMessagePolicy": "FallbackToLogsOnError",  # the last log lines of a failed pod become its reason
            "volumeMounts": [
                *({"name": volume["name"], "mountPath": path} for volume, path in self.request.storage.volumes()),
                {"name": "tmp", "mountPath": TMP},
            ],
            **self.request.storage.environment(),
        }

    def _pod(self, container: Document) -> Document:
        return {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                *(volume for volume, _ in self.request.storage.volumes()),
                {"name": "tmp", "emptyDir": {}},
            ],
        }

    def _beside(self) -> Document:
        """Return an affinity term for those nodes on which the sweep's pods run."""
        labels = {"app.kubernetes.io/instance": self.job_name, "app.kubernetes.io/component": "sweep"}
        return {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}


def owner(name: str, uid: str) -> Document:
    """Return an owner reference to a Job. Kubernetes deletes an object with this reference when it deletes the Job."""
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}


def job_name(sweep: str) -> str:
    """Return the name of a sweep's Job: NAME-sweep.

    >>> job_name("Five seeds_2")
    'five-seeds-2-sweep'
    """
    name = re.sub(r"[^a-z0-9]+", "-", sweep.lower()).strip("-") or "a"
    if len(name) > JOB_NAME_MAX:
        name = f"{name[: JOB_NAME_MAX - 9].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{name}-sweep"


def memory_of(text: str) -> int:
    """Return the number of MiB in a text such as 512Mi or 4Gi. Raises ExperimentError if the text has another form."""
    found = re.fullmatch(r"([1-9]\d{0,6})(Mi|Gi)", text)
    if found is None:
        raise ExperimentError(f"--memory {text!r}: give a whole number with Mi or Gi, such as 4Gi")
    return int(found[1]) * (1024 if found[2] == "Gi" else 1)


def release_of_fedstrata() -> str:
    """Return the version of this installation. Tags of container images and labels of Kubernetes objects contain it."""
    try:
        return version("fedstrata").replace("+", "_")
    except PackageNotFoundError:
        return "0"
