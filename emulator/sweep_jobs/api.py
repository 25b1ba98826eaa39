"""Call the Kubernetes API for the Job of a sweep."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from emulator.cluster.forward import PodPort
from emulator.cluster.release import Release
from emulator.cluster.release_objects import InstalledRelease
from emulator.cluster.rollout import COMPONENT, hopeless, is_ready, unscheduled
from emulator.cluster.secrets import CONFLICT, NOT_FOUND, REQUEST_S, answering, asked
from emulator.sweep_jobs.objects import OPTIONS, READER_PORT, SweepObjects, owner
from fedstrata.errors import EXIT_DATA, EXIT_USAGE, AddressError, ExperimentError, RunStoppedError
from fedstrata.process.quoting import printable
from fedstrata.process.waiting import pass_time

DELETED_S = 120.0  # how long the pods of a deleted Job may take to end
LOOK_S = 0.5
asked_for = partial(asked, invalid=ExperimentError)  # an invalid object may be due to the user's file for --pod
REFUSED = {EXIT_USAGE, EXIT_DATA}  # exit codes with which every further pod would end as well
SHARED_MODE = "ReadWriteMany"


@dataclass(frozen=True, kw_only=True)
class JobState:
    """Hold the state of a Job and of its pods at one moment."""

    uid: str
    ended: str = ""  # Complete or Failed
    reason: str = ""  # why it failed
    pods: int = 0  # the number of running pods
    waits: tuple[str, ...] = ()  # why pods or the reader do not run yet
    hopeless: str = ""  # why no pod can run
    failed: Mapping[str, str]  # by pod: the last line of its log


class SweepApi:
    """Make, read and delete the Kubernetes objects of one sweep."""

    def __init__(self, release: Release) -> None:
        """Connect to Kubernetes. Raises AddressError if the kubeconfig has no usable context."""
        self._namespace = release.namespace
        self._configuration = InstalledRelease(release).configuration
        from kubernetes import client

        api = client.ApiClient(self._configuration)
        self._core, self._batch = client.CoreV1Api(api), client.BatchV1Api(api)

    def is_shared(self, claim: str) -> bool:
        """Return whether several nodes can mount the volume claim `claim` at the same time.

        Raises:
            ExperimentError: the namespace has no such volume claim.
        """
        found = self._found(self._core.read_namespaced_persistent_volume_claim, claim)
        if found is None:
            raise ExperimentError(
                f"namespace {self._namespace} has no claim {claim}; kubectl get pvc --namespace {self._namespace} "
                "lists them"
            )
        return SHARED_MODE in (found.spec.access_modes or [])

    def ensure(self, objects: SweepObjects, tell: Callable[[str], None]) -> None:
        """Make the Job, or find the Job of an earlier call.

        A failed Job is replaced. A completed Job is replaced if it was made from another sweep file or with other
        options.

        Raises:
            ExperimentError: a Job with this name is running with another sweep file or with other options, or another
                program has made it.
        """
        name = objects.job_name
        job, files = self._job(name), self._found(self._core.read_namespaced_config_map, name)
        for found in (job, files):
            if found is not None and not objects.labels.items() >= _own_labels(found).items():
                raise ExperimentError(
                    f"{name} in namespace {self._namespace} belongs to another program; rename the sweep's file"
                )
        if job is not None:
            ended, _ = _end_of(job)
            if _is_same(objects, job, files) and ended != "Failed":
                if not ended:
                    self._scale(job, objects.request.parallelism)
                tell(f"job {name} is {'complete' if ended else 'running'}")
                return
            if not ended:
                raise ExperimentError(
                    f"job {name} is running with another sweep file, or with other options than yours: "
                    f"{_options_of(job)}; give the same, wait for its end, or kubectl delete job {name} --namespace "
                    f"{self._namespace}"
                )
            self.delete_job(name)
        if files is not None:  # Kubernetes may have deleted them with their Job
            self._found(self._core.delete_namespaced_config_map, name)
        asked_for(self._core.create_namespaced_config_map, self._namespace, objects.config_map())
        made = asked_for(self._batch.create_namespaced_job, self._namespace, objects.job())
        reference = {"metadata": {"ownerReferences": [owner(name, str(made.metadata.uid))]}}
        asked_for(self._core.patch_namespaced_config_map, name, self._namespace, reference)
        tell(f"made job {name} in namespace {self._namespace}")

    def _scale(self, job: Any, parallelism: int) -> None:
        if job.spec.parallelism != parallelism:
            body = {"spec": {"parallelism": parallelism}}
            asked_for(self._batch.patch_namespaced_job, job.metadata.name, self._namespace, body)

    def delete_job(self, name: str) -> None:
        """Delete a Job with its pods and its ConfigMap, and wait until the Job no longer exists. Raises AddressError if
        the Job still exists after some time.
        """
        self._found(self._batch.delete_namespaced_job, name, propagation_policy="Foreground")
        deadline = time.monotonic() + DELETED_S
        while self._job(name) is not None:
            if time.monotonic() > deadline:
                raise AddressError(
                    f"job {name} is still being deleted; kubectl -n {self._namespace} describe job {name} says why"
                )
            pass_time(LOOK_S)

    def look(self, name: str) -> JobState:
        """Return the state of the Job.

        Raises:
            ExperimentError: somebody has deleted the Job.
        """
        job = self._job(name)
        if job is None:
            raise ExperimentError(f"job {name} was deleted; the same command makes it again")
        selector = f"app.kubernetes.io/instance={name},{COMPONENT} in (sweep, reader)"
        listed = asked_for(self._core.list_namespaced_pod, self._namespace, label_selector=selector)
        own = [pod for pod in listed.items if _is_of(pod, job)]
        pods = [pod for pod in own if pod.metadata.labels[COMPONENT] == "sweep"]
        is_bare = not pods and not _end_of(job)[0]
        return _state_of(job, pods, self._refusals(job) if is_bare else tuple(unscheduled(own)))

    def _refusals(self, job: Any) -> tuple[str, ...]:
        """Return the reasons for which Kubernetes makes no pods for a Job, such as a quota.

        The result is empty if this account may not list Events.
        """
        from kubernetes import client

        selector = f"involvedObject.uid={job.metadata.uid},type=Warning"
        with answering(self._configuration.host):
            try:
                found = self._core.list_namespaced_event(
                    self._namespace, field_selector=selector, _request_timeout=REQUEST_S
                )
            except client.ApiException:
                return ()
        # A message begins with the pod's name, which differs each time.
        reasons = ((event.message or "").rpartition(" is forbidden: ")[2] for event in found.items)
        return tuple(f"job {job.metadata.name} gets no pods: {' '.join(reason.split())[:300]}" for reason in reasons)

    # --- the reader ---------------------------------------------------------------------------

    def has_reader(self, objects: SweepObjects, job_uid: str) -> bool:
        """Return whether the reader, the pod that reads the results, is ready. If this pod is missing, make it. If it
        has ended, delete it, so that the next call makes a new one.

        Raises:
            RunStoppedError: the pod cannot run. The message gives the reason.
        """
        document = objects.reader(job_uid)
        name = document["metadata"]["name"]
        pod = self._found(self._core.read_namespaced_pod, name)
        if pod is None:
            # CONFLICT: another command follows the sweep, too
            asked_for(self._core.create_namespaced_pod, self._namespace, document, instead={CONFLICT: None})
        elif pod.metadata.deletion_timestamp is not None or pod.status.phase in {"Failed", "Succeeded"}:
            self.delete_reader(objects)  # at once: a lost node never says that its pod has ended
        elif why := hopeless(pod):
            raise RunStoppedError(f"the records cannot be read: {why}")
        return pod is not None and pod.metadata.deletion_timestamp is None and is_ready(pod)

    def delete_reader(self, objects: SweepObjects) -> None:
        """Delete the pod that reads the results, if it exists."""
        self._found(self._core.delete_namespaced_pod, f"{objects.job_name}-reader", grace_period_seconds=0)

    def reader_address(self, objects: SweepObjects) -> AbstractContextManager[str]:
        """Return a context manager. While its block runs, a port of this machine is forwarded to the reader pod. The
        block gets the address on this machine.
        """
        return PodPort(self._configuration, self._namespace, f"{objects.job_name}-reader", READER_PORT).forwarded()

    # --- calls --------------------------------------------------------------------------------

    def _job(self, name: str) -> Any:
        return self._found(self._batch.read_namespaced_job, name)

    def _found(self, call: Callable[..., Any], name: str, **options: Any) -> Any:
        """Make a call for the object with this name, and return its result. If there is no such object, return None."""
        return asked_for(call, name, self._namespace, instead={NOT_FOUND: None}, **options)


def _options_of(job: Any) -> str:
    return str((job.metadata.annotations or {}).get(OPTIONS))


def _is_same(objects: SweepObjects, job: Any, files: Any) -> bool:
    """Return whether an existing Job is the Job of `objects`. This is true if its ConfigMap has the same files, and the
    Job was made with the same options.
    """
    has_files = files is not None and (files.data or {}) == dict(objects.files)
    return has_files and _options_of(job) == objects.options


def _state_of(job: Any, pods: Sequence[Any], waits: tuple[str, ...]) -> JobState:
    """Return the state of a Job and of its pods. `waits` has the reasons why pods do not run yet."""
    ended, reason = _end_of(job)
    running = [pod for pod in pods if pod.status.phase == "Running"]
    lost = [pod for pod in pods if pod.status.phase == "Failed"]
    failed = {str(pod.metadata.name): _last_words(pod) for pod in lost}
    refused = next((failed[pod.metadata.name] for pod in lost if _exit_code(pod) in REFUSED), "")
    stuck = refused or next(filter(None, map(hopeless, pods)), "")
    return JobState(
        uid=str(job.metadata.uid),
        ended=ended,
        reason=reason,
        pods=len(running),
        waits=waits,
        hopeless="" if running or ended == "Complete" else stuck,
        failed=failed,
    )


def _own_labels(found: Any) -> dict[str, str]:
    """Return those labels of an object that say to which sweep it belongs."""
    keys = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by")
    labels = found.metadata.labels or {}
    return {key: str(labels.get(key)) for key in keys}


def _is_of(pod: Any, job: Any) -> bool:
    """Return whether a pod belongs to this Job, and not to an earlier Job of the same name."""
    return any(found.uid == job.metadata.uid for found in pod.metadata.owner_references or [])


def _end_of(job: Any) -> tuple[str, str]:
    """Return how a Job ended (Complete or Failed) and the reason. If the Job is not finished, both texts are empty."""
    for found in job.status.conditions or []:
        if found.type in {"Complete", "Failed"} and found.status == "True":
            return str(found.type), " ".join(filter(None, (found.reason, found.message)))
    return "", ""


def _terminated(pod: Any) -> Any:
    for status in pod.status.container_statuses or []:
        if status.state.terminated is not None:
            return status.state.terminated
    return None


def _exit_code(pod: Any) -> int | None:
    ended = _terminated(pod)
    return None if ended is None else int(ended.exit_code)


def _last_words(pod: Any) -> str:
    """Return why a pod failed. This is the last line that its container printed. If there is no such line, it is the
    reason that Kubernetes gives.
    """
    ended = _terminated(pod)
    if ended is None:
        return f"pod {pod.metadata.name}: {pod.status.reason or 'failed'} {pod.status.message or ''}".strip()
    if ended.reason == "OOMKilled":
        return f"pod {pod.metadata.name} used more memory than its limit; raise --memory"
    lines = [line for line in (ended.message or "").splitlines() if line and not line.startswith("{")]
    said = lines[-1].removeprefix("error: ") if lines else f"{ended.reason} with exit code {ended.exit_code}"
    return f"pod {pod.metadata.name}: {printable(said[:400])}"
