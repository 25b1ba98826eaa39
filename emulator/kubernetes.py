"""Kubernetes as the experimenter sees it: a release's pods, whether they are ready, and a way to the GPS.

The only module of the emulator that speaks to the Kubernetes API.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import urllib3

from fedstrata.errors import AddressError, RunStoppedError

INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
REVISION = "controller-revision-hash"
# What a pod waits for that no waiting will bring.
HOPELESS = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CrashLoopBackOff",
            "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}  # fmt: skip
REQUEST_S = 15
WATCH_S = 1


class Cluster:
    """One namespace of the Kubernetes cluster of the current context."""

    def __init__(self, namespace: str) -> None:
        """Raises AddressError when there is no usable context."""
        from kubernetes import client, config

        try:
            config.load_kube_config()
        except config.ConfigException as error:
            raise AddressError(f"no Kubernetes context: {error}; see kubectl config get-contexts") from None
        self.namespace = namespace
        self._core, self._apps = client.CoreV1Api(), client.AppsV1Api()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        from kubernetes import client

        try:
            yield
        except client.ApiException as error:
            raise AddressError(f"Kubernetes refused: {error.status} {error.reason}") from None
        except urllib3.exceptions.HTTPError as error:
            raise AddressError(f"Kubernetes does not answer: {' '.join(str(error).split())[:300]}") from None

    def gps_pod(self, release: str) -> tuple[str, int]:
        """Name of a release's GPS pod and its gRPC port. Raises AddressError when there is none."""
        with self._answering():
            pods = self._core.list_namespaced_pod(
                self.namespace, label_selector=f"{INSTANCE}={release},{COMPONENT}=gps", _request_timeout=REQUEST_S
            ).items
        for pod in pods:
            for port in pod.spec.containers[0].ports or []:
                if port.name == "grpc":
                    return pod.metadata.name, int(port.container_port)
        raise AddressError(
            f"release {release} has no GPS pod in namespace {self.namespace}; see helm list --all-namespaces"
        )

    def wait_ready(self, release: str, timeout_s: int) -> None:
        """Wait until every workload of a release runs its newest pods and all are ready.

        Pods of an earlier revision are deleted: most Kubernetes replace those of a StatefulSet one after the other,
        each when the one before is ready, while all of them are wanted for the new experiment.

        Raises:
            RunStoppedError: a pod cannot start, with the reason that Kubernetes or the pod itself gives.
            AddressError: the time is up; says which pods are not ready.
        """
        selector = f"{INSTANCE}={release}"
        pods: dict[str, Any] = {}
        deadline = time.monotonic() + timeout_s
        with self._answering():
            while not self._is_rolled_out(selector):
                if time.monotonic() > deadline:
                    break
                self._delete_outdated(selector)
                pods = self._watch_briefly(selector)
            else:
                return
        waiting = sorted(name for name, pod in pods.items() if not _is_ready(pod))
        raise AddressError(
            f"not ready after {timeout_s} s: {', '.join(waiting) or 'no pod was made'}; "
            f"kubectl -n {self.namespace} describe pod {' '.join(waiting[:1])}"
        )

    def _delete_outdated(self, selector: str) -> None:
        """Delete the pods of StatefulSets that are of an earlier revision than the newest."""
        from kubernetes import client

        listed = {"label_selector": selector, "_request_timeout": REQUEST_S}
        sets = self._apps.list_namespaced_stateful_set(self.namespace, **listed).items
        newest = {found.metadata.name: found.status.update_revision for found in sets if _is_seen(found)}
        for pod in self._core.list_namespaced_pod(self.namespace, **listed).items:
            owner = next((o.name for o in pod.metadata.owner_references or [] if o.kind == "StatefulSet"), None)
            revision = pod.metadata.labels.get(REVISION)
            if pod.metadata.deletion_timestamp is not None or newest.get(owner) in {None, "", revision}:
                continue
            with suppress(client.ApiException):  # gone in the meantime, or replaced: looked at again in a moment
                self._core.delete_namespaced_pod(
                    pod.metadata.name, self.namespace, body=client.V1DeleteOptions(
                        preconditions=client.V1Preconditions(uid=pod.metadata.uid)
                    ), _request_timeout=REQUEST_S,
                )  # fmt: skip

    def _watch_briefly(self, selector: str) -> dict[str, Any]:
        """The pods as they stand after a moment; raises when one of them cannot start.

        A workload's own status follows its pods' a little later, and says nothing to those who watch pods.
        """
        from kubernetes import watch

        pods: dict[str, Any] = {}
        watcher = watch.Watch()
        for event in watcher.stream(
            self._core.list_namespaced_pod, self.namespace, label_selector=selector, timeout_seconds=WATCH_S,
            _request_timeout=REQUEST_S,
        ):  # fmt: skip
            pod = event["object"]
            if event["type"] == "DELETED":
                pods.pop(pod.metadata.name, None)
                continue
            pods[pod.metadata.name] = pod
            self._check(pod)
        return pods

    def _check(self, pod: Any) -> None:
        """Raise when a pod says why it cannot start."""
        for status in pod.status.container_statuses or []:
            waiting, last = status.state.waiting, status.last_state.terminated
            if waiting is None or waiting.reason not in HOPELESS:
                continue
            said = last.message if last is not None and last.message else waiting.message
            words = " ".join((said or "").split())[-400:]
            raise RunStoppedError(f"pod {pod.metadata.name}: {waiting.reason}: {words}")

    def _is_rolled_out(self, selector: str) -> bool:
        """Whether all StatefulSets and DaemonSets have their newest pods, ready."""
        listed = {"label_selector": selector, "_request_timeout": REQUEST_S}
        sets = self._apps.list_namespaced_stateful_set(self.namespace, **listed).items
        daemons = self._apps.list_namespaced_daemon_set(self.namespace, **listed).items
        return all(_is_set_ready(found) for found in sets) and all(_is_daemon_ready(found) for found in daemons)

    @contextmanager
    def gps_address(self, release: str) -> Iterator[str]:
        """An address on this machine that leads to a release's GPS, while the block lasts."""
        pod, port = self.gps_pod(release)
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            threading.Thread(target=self._accept, args=(server, pod, port), daemon=True).start()
            yield f"127.0.0.1:{server.getsockname()[1]}"

    def _accept(self, server: socket.socket, pod: str, port: int) -> None:
        while True:
            try:
                local, _ = server.accept()
            except OSError:  # closed: the block is over
                return
            threading.Thread(target=self._forward, args=(local, pod, port), daemon=True).start()

    def _forward(self, local: socket.socket, pod: str, port: int) -> None:
        """Carry one connection through the Kubernetes API to a pod."""
        from kubernetes import client
        from kubernetes.stream import portforward

        with closing(local):
            try:
                # a client of its own: the stream replaces how its client makes requests
                core = client.CoreV1Api(client.ApiClient())
                forward = portforward(core.connect_get_namespaced_pod_portforward, pod, self.namespace, ports=str(port))
            except (client.ApiException, OSError, ValueError):
                return  # the caller sees its connection closed, and tries again
            remote = forward.socket(port)
            remote.setblocking(True)
            upward = threading.Thread(target=_pump, args=(local, remote), daemon=True)
            upward.start()
            _pump(remote, local)
            forward.close()

    def delete_claims(self, release: str) -> list[str]:
        """Delete a release's volume claims, records included; gives their names."""
        with self._answering():
            claims = self._core.list_namespaced_persistent_volume_claim(
                self.namespace, label_selector=f"{INSTANCE}={release}", _request_timeout=REQUEST_S
            ).items
            for claim in claims:
                self._core.delete_namespaced_persistent_volume_claim(
                    claim.metadata.name, self.namespace, _request_timeout=REQUEST_S
                )
        return [str(claim.metadata.name) for claim in claims]


def _is_ready(pod: Any) -> bool:
    return any(found.type == "Ready" and found.status == "True" for found in pod.status.conditions or [])


def _is_seen(found: Any) -> bool:
    """Whether a workload's status is of its newest specification."""
    return bool((found.status.observed_generation or 0) >= found.metadata.generation)


def _is_set_ready(found: Any) -> bool:
    wanted, status = found.spec.replicas, found.status
    newest = status.update_revision == status.current_revision or (status.updated_replicas or 0) >= wanted
    return bool(_is_seen(found) and newest and (status.ready_replicas or 0) >= wanted)


def _is_daemon_ready(found: Any) -> bool:
    status = found.status
    wanted = status.desired_number_scheduled
    return bool(
        _is_seen(found) and (status.updated_number_scheduled or 0) >= wanted and (status.number_ready or 0) >= wanted
    )


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Carry bytes one way until either side ends."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
