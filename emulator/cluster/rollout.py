"""Compute the progress of a release's pods from Kubernetes objects: how many pods are ready, and why others are not.
The module does not call the Kubernetes API.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

REVISION = "controller-revision-hash"
GENERATION = "pod-template-generation"  # label of a DaemonSet's pods
GENERATION_OF_SET = "deprecated.daemonset.template.generation"
# Reasons for which a pod waits, and waiting longer does not help.
HOPELESS = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CrashLoopBackOff",
            "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}  # fmt: skip
# A message of kubelet while the mounts of a volume change. kubelet tries again.
PASSING = "failed to prepare subPath"
SAID_ELSEWHERE = {"FailedScheduling", "Unhealthy"}  # warnings left out: a pod's conditions say the same
OOM = "OOMKilled"  # the reason if a container used too much memory
NOT_CREATED = "FailedCreate"  # the reason of an Event about a workload whose pod Kubernetes refuses
# Refusals that pass: another program has just written the object, or the API server or one of its webhooks is away.
PASSES = re.compile(
    "already exists|object has been modified|being deleted|being terminated|"
    "calling webhook|timed? ?out|connection refused"
)
NO_CLASS = re.compile(r"storageclass\S* \S+ not found|no storage class is set")
RESOURCES = "gps.resources, lps.resources or device.resources"
REMEDIES = {
    "must specify": f"set these requests and limits in {RESOURCES}",
    "exceeded quota": f"ask for a larger quota, wait until other pods have ended, or lower {RESOURCES}",
    "storage ?class": "set gps.persistence.storageClass and lps.persistence.storageClass to a class of this Kubernetes",
    "PodSecurity": "change podSecurityContext and containerSecurityContext, or the namespace's level",
    "resources|memory|cpu|storage": f"change {RESOURCES}",
    "": "change the values that this concerns",
}
COMPONENT = "app.kubernetes.io/component"
TIERS = {"StatefulSet", "DaemonSet"}  # kinds of the objects in which the chart runs GPS, LPSs and devices
REASON_CHARACTERS = 300
NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Hold a snapshot of a release's objects, and of the warnings in its namespace."""

    sets: Sequence[Any] = ()
    daemons: Sequence[Any] = ()
    pods: Sequence[Any] = ()
    claims: Sequence[Any] = ()
    warnings: Sequence[Any] = ()

    def since(self, earlier: Iterable[Any]) -> Self:
        """Return this snapshot without the warnings in `earlier`. A warning that was repeated since then stays."""
        known = {_version(event) for event in earlier}
        return replace(self, warnings=[event for event in self.warnings if _version(event) not in known])


def _version(found: Any) -> tuple[str, str]:
    return str(found.metadata.uid), str(found.metadata.resource_version)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Hold the progress of a release's pods: which are ready, and why others are not."""

    wanted: int
    ready: int
    is_done: bool
    waiting: tuple[str, ...] = ()  # pods that exist but are not ready; those in `reasons` first
    reasons: tuple[str, ...] = ()  # why pods are not ready, or claims not bound
    refused: tuple[str, ...] = ()  # why Kubernetes makes no pod or no volume; if this lasts, waiting does not help
    hopeless: str = ""  # why a pod cannot start, if waiting does not help

    @property
    def line(self) -> str:
        """Return the progress in one line: how many pods are ready, such as 3 of 14, and why others are not."""
        return "; ".join([f"{self.ready} of {self.wanted} pods are ready", *self.reasons])


def progress(seen: Seen) -> Progress:
    """Compute the progress of the pods. Pods that are being deleted or have an earlier revision are not counted."""
    pods = current_pods(seen)
    ready = [pod for pod in pods if is_ready(pod)]
    reasons = tuple(_reasons(seen, pods))
    named = {word for reason in reasons for word in re.findall(r"[a-z0-9.-]+", reason)}
    are_rolled_out = all(map(is_set_ready, seen.sets)) and all(map(is_daemon_ready, seen.daemons))
    return Progress(
        wanted=sum(found.spec.replicas for found in seen.sets)
        + sum(found.status.desired_number_scheduled for found in seen.daemons),
        ready=len(ready),
        is_done=bool(seen.sets) and are_rolled_out,
        waiting=tuple(
            sorted((p.metadata.name for p in pods if not is_ready(p)), key=lambda name: (name not in named, name))
        ),
        reasons=reasons,
        refused=tuple(_refusals(seen, pods)),
        hopeless=next(filter(None, map(hopeless, pods)), ""),
    )


def current_pods(seen: Seen) -> list[Any]:
    """Return the pods of GPS, LPSs and devices, except pods that are being deleted or have an earlier revision."""
    left_out = {pod.metadata.uid for pod in outdated_pods(seen)}
    owned = [pod for pod in seen.pods if owner_kind(pod) in TIERS]
    return [pod for pod in owned if pod.metadata.deletion_timestamp is None and pod.metadata.uid not in left_out]


def owner_kind(pod: Any) -> str:
    """Return the kind of the object that owns a pod. If no object owns the pod, return an empty text."""
    return next((str(owner.kind) for owner in pod.metadata.owner_references or []), "")


def outdated_pods(seen: Seen) -> list[Any]:
    """Return the pods of an earlier revision. If Kubernetes has not yet processed the newest specification of a
    workload, all pods of the workload count as outdated.
    """
    newest = {found.metadata.name: _newest(found) for found in [*seen.sets, *seen.daemons]}
    owned = [(pod, next(iter(pod.metadata.owner_references or []), None)) for pod in seen.pods]
    labelled = [(pod, label) for pod, owner in owned if owner is not None and (label := newest.get(owner.name))]
    return [pod for pod, (name, value) in labelled if (pod.metadata.labels or {}).get(name) != value]


def _newest(found: Any) -> tuple[str, str] | None:
    """Return the name and value of the label that distinguishes a workload's newest pods. The value is empty while it
    is not known yet. If the workload has no such label, return None.
    """
    if not is_seen(found):
        return REVISION, ""
    if hasattr(found.spec, "replicas"):
        return REVISION, found.status.update_revision or ""
    generation = (found.metadata.annotations or {}).get(GENERATION_OF_SET)
    return (GENERATION, generation) if generation else None


# --- why not -------------------------------------------------------------------------------------


def hopeless(pod: Any) -> str:
    """Return why a pod cannot start, in the words of Kubernetes or of the pod. If the pod may still start, return an
    empty text.
    """
    for status in pod.status.container_statuses or []:
        waiting, last = status.state.waiting, status.last_state.terminated
        if waiting is not None and PASSING in (waiting.message or ""):
            continue
        if waiting is not None and waiting.reason in HOPELESS and last is not None and last.reason == OOM:
            return f"pod {pod.metadata.name} was killed because it used more memory than its limit; {_more_memory(pod)}"
        if waiting is not None and waiting.reason in HOPELESS:
            said = last.message if last is not None and last.message else waiting.message
            return f"pod {pod.metadata.name}: {waiting.reason}: {_on_one_line(said)[-400:]}"
    return ""


def _more_memory(pod: Any) -> str:
    """Return advice on how to give a pod more memory. The advice names the keys of the chart."""
    tier = (pod.metadata.labels or {}).get(COMPONENT, "TIER")
    fewer = ", or lower device.devicesPerPod" if tier == "device" else ""
    return f"raise {tier}.resources.limits.memory{fewer}"


def _reasons(seen: Seen, pods: Sequence[Any]) -> Iterable[str]:
    """Yield the reasons for which pods are not ready. Each reason is yielded once, with the names of the objects.
    Reasons come from the scheduler, and from warnings about volume claims, quotas or volumes.
    """
    yield from unscheduled(pods)
    about = {found.metadata.uid: found for found in [*seen.sets, *seen.daemons, *seen.claims, *pods]}
    over = {pod.metadata.uid for pod in pods if _has_started(pod)}
    over |= {found.metadata.uid for found in seen.sets if is_set_ready(found)}
    said: dict[str, None] = {}
    for event in seen.warnings:
        uid, is_passing = event.involved_object.uid, PASSING in (event.message or "")
        if uid in about and uid not in over and not is_passing and event.reason not in SAID_ELSEWHERE:
            said[f"{event.involved_object.kind} {event.involved_object.name}: {_on_one_line(event.message)}"] = None
    yield from list(said)[-NAMES_SHOWN:]


def _refusals(seen: Seen, pods: Sequence[Any]) -> Iterable[str]:
    """Yield the reasons for which Kubernetes refuses to make missing pods, such as a quota, or finds no class for a
    volume. While pods of the release end, yield nothing, because they may make room.
    """
    if len(pods) < len([pod for pod in seen.pods if owner_kind(pod) in TIERS]):
        return
    there = Counter(pod.metadata.owner_references[0].name for pod in pods)
    lacking = [found for found in seen.sets if there[found.metadata.name] < found.spec.replicas]
    lacking += [found for found in seen.daemons if there[found.metadata.name] < found.status.desired_number_scheduled]
    uids = {found.metadata.uid for found in lacking}
    unbound = {claim.metadata.uid for claim in seen.claims if claim.status.phase == "Pending"}
    for event in seen.warnings:
        about, said = event.involved_object, event.message or ""
        is_of_pod = about.uid in uids and event.reason == NOT_CREATED and not PASSES.search(said)
        if is_of_pod or (about.uid in unbound and NO_CLASS.search(said)):
            yield f"{about.kind} {about.name}: {_on_one_line(said)}; {_remedy(said)}"


def _remedy(said: str) -> str:
    """Return advice on what to do about a refusal of Kubernetes."""
    return next(advice for words, advice in REMEDIES.items() if re.search(words, said))


def unscheduled(pods: Sequence[Any]) -> Iterable[str]:
    """Yield each reason for which Kubernetes finds no node for pods, with the names of these pods."""
    by_reason: dict[str, list[str]] = {}
    for pod in pods:
        for found in pod.status.conditions or []:
            if found.type == "PodScheduled" and found.status == "False":
                by_reason.setdefault(_on_one_line(found.message), []).append(pod.metadata.name)
    for reason, names in sorted(by_reason.items()):
        yield f"no node can run {listed(names)}: {reason}"


def listed(names: Sequence[str]) -> str:
    """Return a text with the first few names, and the number of the other names."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _has_started(pod: Any) -> bool:
    """Return whether all containers of a pod run or have run. Then earlier warnings about starting the pod no longer
    matter.
    """
    statuses = pod.status.container_statuses
    return is_ready(pod) or (bool(statuses) and all(status.state.waiting is None for status in statuses))


def _on_one_line(text: str | None) -> str:
    return " ".join((text or "").split())[:REASON_CHARACTERS]


# --- readiness -----------------------------------------------------------------------------------


def is_ready(pod: Any) -> bool:
    """Return whether a pod is ready according to Kubernetes."""
    return any(found.type == "Ready" and found.status == "True" for found in pod.status.conditions or [])


def is_seen(found: Any) -> bool:
    """Return whether Kubernetes has already processed the newest specification of a workload."""
    return bool((found.status.observed_generation or 0) >= found.metadata.generation)


def is_set_ready(found: Any) -> bool:
    """Return whether all pods of a StatefulSet have the newest revision and are ready."""
    wanted, status = found.spec.replicas, found.status
    newest = status.update_revision == status.current_revision or (status.updated_replicas or 0) >= wanted
    return bool(is_seen(found) and newest and (status.ready_replicas or 0) >= wanted)


def is_daemon_ready(found: Any) -> bool:
    """Return whether all pods of a DaemonSet have the newest revision and are ready."""
    status = found.status
    wanted = status.desired_number_scheduled
    return bool(
        is_seen(found) and (status.updated_number_scheduled or 0) >= wanted and (status.number_ready or 0) >= wanted
    )
