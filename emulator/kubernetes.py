"""Kubernetes as the experimenter sees it: a release's objects, and a way to the GPS.

With `emulator/forward.py` the only module of the emulator that speaks to the Kubernetes API.
"""

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import urllib3

from emulator.forward import PodPort
from emulator.place import Release
from emulator.release_certificates import tls_of_secret
from emulator.rollout import COMPONENT, Progress, Seen, listed, outdated_pods, progress
from fedstrata.errors import AddressError, CertificateError, RunStoppedError
from fedstrata.link import pass_time
from fedstrata.trust.files import TlsFiles

OURS = "app.kubernetes.io/name=fedstrata"
INSTANCE = "app.kubernetes.io/instance"
REQUEST_S = 15
LOOK_S = 1
OPERATOR_CERTIFICATE = "fedstrata.io/operator-certificate"  # of the GPS's pod: which Secret holds it
OF_CERTIFICATES = {"fedstrata.io/holds": "certificate"}  # label of their Secrets
NOT_FOUND, CONFLICT, FORBIDDEN = 404, 409, 403
GPS_START_S = 30.0  # how long a GPS that has just been replaced may take to run


class InstalledRelease:
    """What Kubernetes knows of a release: its pods, its claims and a way to its GPS."""

    def __init__(self, release: Release) -> None:
        """Raises AddressError when there is no usable context."""
        from kubernetes import client, config

        self._release = release
        self._configuration = client.Configuration()
        try:
            config.load_kube_config(
                config_file=str(release.kubeconfig) if release.kubeconfig else None,
                context=release.context,
                client_configuration=self._configuration,
            )
        except config.ConfigException as error:
            raise AddressError(f"no Kubernetes context: {_sentence(error)}; see kubectl config get-contexts") from None
        except (TypeError, AttributeError, LookupError):  # the client takes the file for what it should be
            raise AddressError(
                "the kubeconfig is not one, as kubectl writes it; give another with --kubeconfig"
            ) from None
        except Exception as error:  # it cannot be read, or is not YAML
            raise AddressError(
                f"the kubeconfig cannot be read: {_sentence(error)}; give another with --kubeconfig"
            ) from None
        api = client.ApiClient(self._configuration)
        self._core, self._apps = client.CoreV1Api(api), client.AppsV1Api(api)
        self._namespace = release.namespace
        self._selector = f"{OURS},{INSTANCE}={release.name}"

    @contextmanager
    def _answering(self) -> Iterator[None]:
        from kubernetes import client

        try:
            yield
        except client.ApiException as error:
            raise AddressError(f"Kubernetes refused: {error.status} {error.reason}") from None
        except urllib3.exceptions.HTTPError as error:
            cause = getattr(error, "reason", None) or error  # of the last attempt, where there were several
            where = self._configuration.host
            raise AddressError(
                f"Kubernetes at {where} does not answer: {_sentence(cause)}; see kubectl cluster-info"
            ) from None

    # --- its pods -----------------------------------------------------------------------------

    def wait_ready(self, timeout_s: int, tell: Callable[[str], None]) -> None:
        """Wait until every workload of the release runs its newest pods and all are ready; tells how far they are.

        Pods of an earlier revision are deleted: most Kubernetes replace those of a StatefulSet one after the other,
        each when the one before is ready, while all of them are wanted for the new experiment.

        Raises:
            RunStoppedError: a pod cannot start, with the reason that Kubernetes or the pod itself gives.
            AddressError: the time is up; says which pods are not ready and why.
        """
        deadline = time.monotonic() + timeout_s
        told = ""
        while True:
            seen = self._look()
            found = progress(seen)
            if found.is_done:
                return
            if found.hopeless:
                raise RunStoppedError(found.hopeless)
            if found.line != told:
                told = found.line
                tell(told)
            if time.monotonic() > deadline:
                raise self._too_late(found, timeout_s)
            self._delete_outdated(seen)
            pass_time(LOOK_S)

    def _too_late(self, found: Progress, timeout_s: int) -> AddressError:
        waiting = f"; kubectl -n {self._namespace} describe pod {found.waiting[0]}" if found.waiting else ""
        return AddressError(f"not ready after {timeout_s} s: {found.line}{waiting}")

    def _look(self) -> Seen:
        """The release's objects, and the namespace's warnings."""
        ours = {"label_selector": self._selector, "_request_timeout": REQUEST_S}
        with self._answering():
            return Seen(
                sets=self._apps.list_namespaced_stateful_set(self._namespace, **ours).items,
                daemons=self._apps.list_namespaced_daemon_set(self._namespace, **ours).items,
                pods=self._core.list_namespaced_pod(self._namespace, **ours).items,
                claims=self._core.list_namespaced_persistent_volume_claim(self._namespace, **ours).items,
                warnings=self._warnings(),
            )

    def _warnings(self) -> list[Any]:
        """The namespace's warnings; none where the account may not list Events."""
        from kubernetes import client

        try:
            listed = self._core.list_namespaced_event(
                self._namespace, field_selector="type=Warning", _request_timeout=REQUEST_S
            )
        except client.ApiException:
            return []
        return list(listed.items)

    def _delete_outdated(self, seen: Seen) -> None:
        """Delete the pods of StatefulSets that are of an earlier revision than the newest."""
        from kubernetes import client

        newest = {found.metadata.name for found in seen.sets if found.status.update_revision}
        for pod in outdated_pods(seen):
            owner = pod.metadata.owner_references[0].name
            if pod.metadata.deletion_timestamp is not None or owner not in newest:
                continue
            with self._answering(), suppress(client.ApiException):  # gone meanwhile: looked at again soon
                self._core.delete_namespaced_pod(
                    pod.metadata.name, self._namespace, body=client.V1DeleteOptions(
                        preconditions=client.V1Preconditions(uid=pod.metadata.uid)
                    ), _request_timeout=REQUEST_S,
                )  # fmt: skip

    def wait_gone(self, timeout_s: int, tell: Callable[[str], None], *, pods: bool) -> None:
        """Wait until what is being deleted of the release is gone: claims, and with `pods` all pods.

        Raises:
            AddressError: the time is up; says what is left.
        """
        deadline = time.monotonic() + timeout_s
        told = ""
        while left := self._going(pods=pods):
            line = f"waiting for the end of {listed(left)}"
            if line != told:
                told = line
                tell(line)
            if time.monotonic() > deadline:
                raise AddressError(f"not gone after {timeout_s} s: {', '.join(left)}; kubectl describe says why")
            pass_time(LOOK_S)

    def _going(self, *, pods: bool) -> list[str]:
        seen = self._look()
        claims = [f"claim {c.metadata.name}" for c in seen.claims if c.metadata.deletion_timestamp is not None]
        owned = [f"pod {pod.metadata.name}" for pod in seen.pods if pod.metadata.owner_references]
        return claims + (owned if pods else [])

    def delete_tests(self) -> None:
        """Delete the pod of `helm test`, which an uninstallation leaves."""
        with self._answering():
            self._core.delete_collection_namespaced_pod(
                self._namespace, label_selector=f"{self._selector},{COMPONENT}=test", _request_timeout=REQUEST_S
            )

    # --- its claims ---------------------------------------------------------------------------

    def claims(self) -> list[str]:
        """Names of the release's volume claims that stay."""
        return [str(c.metadata.name) for c in self._look().claims if c.metadata.deletion_timestamp is None]

    def delete_claims(self) -> list[str]:
        """Delete the release's volume claims, records included; gives their names."""
        names = self.claims()
        with self._answering():
            for name in names:
                self._core.delete_namespaced_persistent_volume_claim(name, self._namespace, _request_timeout=REQUEST_S)
        return names

    # --- its Secrets --------------------------------------------------------------------------

    def ensure_namespace(self) -> None:
        """Make the release's namespace, if it is not there; Helm would make it too late for Secrets."""
        from kubernetes import client

        with self._answering():
            try:
                self._core.create_namespace({"metadata": {"name": self._namespace}}, _request_timeout=REQUEST_S)
            except client.ApiException as error:
                if error.status not in {CONFLICT, FORBIDDEN}:  # who may not make one has one
                    raise

    def read_secret(self, name: str) -> dict[str, bytes] | None:
        """What a Secret holds; None where there is none. Raises AddressError where this account may not read it."""
        from kubernetes import client

        with self._answering():
            try:
                found = self._core.read_namespaced_secret(name, self._namespace, _request_timeout=REQUEST_S)
            except client.ApiException as error:
                if error.status == FORBIDDEN:
                    raise AddressError(
                        f"this account may not read Secret {name} in namespace {self._namespace}, which holds the "
                        "certificate that is needed here; ask for the verb get on it"
                    ) from None
                if error.status != NOT_FOUND:
                    raise
                return None
        return {key: base64.b64decode(value) for key, value in (found.data or {}).items()}

    def write_secret(self, name: str, data: Mapping[str, bytes]) -> None:
        """Make a Secret of the release that holds a certificate, or put this in its place."""
        from kubernetes import client

        labels = dict(part.split("=") for part in self._selector.split(",")) | OF_CERTIFICATES
        secret = client.V1Secret(
            metadata=client.V1ObjectMeta(name=name, labels=labels),
            type="Opaque",
            data={key: base64.b64encode(value).decode() for key, value in data.items()},
        )
        with self._answering():
            try:
                self._core.create_namespaced_secret(self._namespace, secret, _request_timeout=REQUEST_S)
            except client.ApiException as error:
                if error.status != CONFLICT:
                    raise
                self._core.replace_namespaced_secret(name, self._namespace, secret, _request_timeout=REQUEST_S)

    def certificate_secrets(self) -> list[str]:
        """Names of the release's Secrets that hold certificates, whoever made them."""
        selector = ",".join([self._selector, *(f"{key}={value}" for key, value in OF_CERTIFICATES.items())])
        with self._answering():
            found = self._core.list_namespaced_secret(
                self._namespace, label_selector=selector, _request_timeout=REQUEST_S
            )
        return [str(secret.metadata.name) for secret in found.items]

    def delete_secret(self, name: str) -> None:
        """Delete a Secret, if it is there."""
        from kubernetes import client

        with self._answering():
            try:
                self._core.delete_namespaced_secret(name, self._namespace, _request_timeout=REQUEST_S)
            except client.ApiException as error:
                if error.status != NOT_FOUND:
                    raise

    def delete_certificates(self) -> None:
        """Delete the Secrets of the release's certificates, its authority's key included."""
        for name in self.certificate_secrets():
            self.delete_secret(name)

    @contextmanager
    def operator_tls(self) -> Iterator[TlsFiles | None]:
        """The operator's certificate of the release, while the block lasts; None where its pods speak in the clear.

        Raises:
            AddressError: this account may not read it. CertificateError: it is not there, or not to be used.
        """
        name = (self._gps().metadata.annotations or {}).get(OPERATOR_CERTIFICATE)
        if name is None:
            yield None
            return
        found = self.read_secret(name)
        if found is None:
            raise CertificateError(f"namespace {self._namespace} has no Secret {name}; fedstrata up makes it")
        with tls_of_secret(found, name) as tls:
            yield tls

    # --- the way to the GPS -------------------------------------------------------------------

    def gps_pod(self, port: str = "grpc") -> tuple[str, int]:
        """Name of the running GPS pod, and its port. Raises AddressError as `_gps` does."""
        pod = self._gps()
        return pod.metadata.name, _port_of(pod, port)

    def _gps(self) -> Any:
        """The running GPS pod; waits for a moment for one that has just been replaced.

        Raises:
            AddressError: there is none, or it does not run; says why.
        """
        deadline = time.monotonic() + GPS_START_S
        while True:
            seen = self._look()
            pods = [pod for pod in seen.pods if (pod.metadata.labels or {}).get(COMPONENT) == "gps"]
            if not pods:
                raise AddressError(
                    f"release {self._release.name} has no GPS pod in namespace {self._namespace}; "
                    "see helm list --all-namespaces"
                )
            running = [p for p in pods if p.status.phase == "Running" and p.metadata.deletion_timestamp is None]
            if running:
                return running[0]
            if time.monotonic() > deadline:
                why = "; ".join(progress(seen).reasons) or f"kubectl describe pod {pods[0].metadata.name} says why"
                raise AddressError(f"the GPS's pod {pods[0].metadata.name} is {pods[0].status.phase}: {why}")
            pass_time(LOOK_S)

    @contextmanager
    def gps_address(self, port: str = "grpc") -> Iterator[str]:
        """An address on this machine that leads to a port of the release's GPS, while the block lasts.

        Raises:
            AddressError: there is no GPS that runs, or this account may not forward ports.
        """
        pod, number = self.gps_pod(port)
        with PodPort(self._configuration, self._namespace, pod, number).forwarded() as address:
            yield address


def _sentence(error: object) -> str:
    """A reason on one line, without the full stop and the object that it is about."""
    return " ".join(str(error).split()).rpartition(">: ")[2].removesuffix(".")[:300]


def _port_of(pod: Any, name: str) -> int:
    """The number of a pod's port. Raises AddressError when it has none."""
    for port in pod.spec.containers[0].ports or []:
        if port.name == name:
            return int(port.container_port)
    raise AddressError(f"pod {pod.metadata.name} has no port called {name}; it is not of this chart")
