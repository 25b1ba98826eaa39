"""Find a release's objects on Kubernetes, and connect to its GPS.

In `emulator`, only four modules call the Kubernetes API: this module, `secrets.py`, `forward.py` and
`emulator/sweep_jobs/api.py`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from emulator.cluster.forward import PodPort
from emulator.cluster.release import Release
from emulator.cluster.release_certificates import tls_of_secret
from emulator.cluster.rollout import (
    COMPONENT,
    TIERS,
    Progress,
    Seen,
    hopeless,
    listed,
    outdated_pods,
    owner_kind,
    progress,
)
from emulator.cluster.secrets import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    REQUEST_S,
    KubernetesSecrets,
    answering,
    asked,
    sentence,
)
from emulator.shipped.extras import needed
from fedstrata.errors import AddressError, CertificateError, RunStoppedError
from fedstrata.process.waiting import pass_time
from fedstrata.trust.security import OPEN, Security, TlsSecurity

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
LOOK_S = 1
OPERATOR_CERTIFICATE = "fedstrata.io/operator-certificate"  # an annotation of the GPS's pod that names the Secret
REFUSED_S = 15.0  # a refusal that lasts so long is final; Kubernetes has repeated its attempt several times by then
GPS_START_S = 30.0  # how long a replaced GPS may take until it runs


class InstalledRelease:
    """Find the Kubernetes objects of a release: its pods, volume claims and Secrets."""

    def __init__(self, release: Release) -> None:
        """Connect to the Kubernetes of a release.

        Raises:
            AddressError: the kubeconfig has no usable context.
            MissingPackageError: the Kubernetes client is not installed.
        """
        client = needed("kubernetes.client")
        self.release, self.configuration = release, _configuration(release)
        api = client.ApiClient(self.configuration)
        self._core, self._apps = client.CoreV1Api(api), client.AppsV1Api(api)
        self._namespace = release.namespace
        self._labels = {NAME: "fedstrata", INSTANCE: release.name}
        self._selector = ",".join(f"{key}={value}" for key, value in self._labels.items())

    def kubernetes_version(self) -> str | None:
        """Return the version of Kubernetes, such as v1.34.1. Return None if this account may not ask for it."""
        from kubernetes import client

        found = asked(client.VersionApi(self._core.api_client).get_code, instead={FORBIDDEN: None})
        return None if found is None else str(found.git_version)

    # --- what this account may do --------------------------------------------------------------

    def may(self, verb: str, resource: str) -> bool:
        """Return whether this account may apply a verb, such as create, to a core resource in the namespace."""
        from kubernetes import client

        what = {"namespace": self._namespace, "verb": verb, "resource": resource}
        body = {"spec": {"resourceAttributes": what}}
        review = client.AuthorizationV1Api(self._core.api_client).create_self_subject_access_review
        return bool(asked(review, body).status.allowed)

    # --- its pods -----------------------------------------------------------------------------

    def wait_ready(self, timeout_s: int, tell: Callable[[str], None], earlier: Sequence[Any] = ()) -> None:
        """Wait until every workload of the release runs its newest pods, and all these pods are ready. `tell` is called
        with the progress. `earlier` has the warnings from before this installation or upgrade, which are ignored.

        Pods of an earlier revision are deleted, because all pods must have the new experiment at the same time. Most
        Kubernetes versions would replace the pods of a StatefulSet one by one, and wait for each new pod.

        Raises:
            RunStoppedError: a pod cannot be made or cannot start, or there is no volume for it. The message has the
                reason that Kubernetes or the pod gives.
            AddressError: the pods are not ready in time. The message has the reasons.
        """
        deadline = time.monotonic() + timeout_s
        told = ""
        refused_since: dict[str, float] = {}
        while True:
            seen = self.look().since(earlier)
            found = progress(seen)
            if found.is_done:
                return
            refused_since = {why: refused_since.get(why, time.monotonic()) for why in found.refused}
            lasting = [why for why, since in refused_since.items() if time.monotonic() - since >= REFUSED_S]
            if found.hopeless or lasting:
                raise RunStoppedError(found.hopeless or lasting[0])
            if found.line != told:
                told = found.line
                tell(told)
            if time.monotonic() > deadline:
                raise self._too_late(found, timeout_s)
            self._delete_outdated(seen)
            pass_time(LOOK_S)

    def _too_late(self, found: Progress, timeout_s: int) -> AddressError:
        waiting = f"; kubectl -n {self._namespace} describe pod {found.waiting[0]}" if found.waiting else ""
        return AddressError(f"the pods are not ready after {timeout_s} s: {found.line}{waiting}")

    def look(self) -> Seen:
        """Return the release's objects, and the warnings in its namespace."""

        def ours(call: Callable[..., Any]) -> Sequence[Any]:
            return list(asked(call, self._namespace, label_selector=self._selector).items)

        return Seen(
            sets=ours(self._apps.list_namespaced_stateful_set),
            daemons=ours(self._apps.list_namespaced_daemon_set),
            pods=ours(self._core.list_namespaced_pod),
            claims=ours(self._core.list_namespaced_persistent_volume_claim),
            warnings=self.warnings(),
        )

    def gps_pods(self) -> list[Any]:
        """Return the pods of the GPS: one, or none."""
        return [pod for pod in self.look().pods if (pod.metadata.labels or {}).get(COMPONENT) == "gps"]

    def warnings(self) -> list[Any]:
        """Return the Events with warnings in the namespace, and the Events about claims for which there is no volume.
        If Kubernetes refuses to list Events, return an empty list.
        """
        from kubernetes import client

        found: list[Any] = []
        for selector in ("type=Warning", "type=Normal,reason=FailedBinding"):
            with answering(self.configuration.host), suppress(client.ApiException):
                found += self._core.list_namespaced_event(
                    self._namespace, field_selector=selector, _request_timeout=REQUEST_S
                ).items
        return found

    def _delete_outdated(self, seen: Seen) -> None:
        """Delete those pods of StatefulSets that have an earlier revision than the newest."""
        newest = {found.metadata.name for found in seen.sets if found.status.update_revision}
        for pod in outdated_pods(seen):
            owner = pod.metadata.owner_references[0].name
            if pod.metadata.deletion_timestamp is not None or owner not in newest:
                continue
            self._delete_pod(pod)

    def _delete_pod(self, pod: Any) -> None:
        """Delete a pod, but not a later pod of the same name."""
        from kubernetes import client

        options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=pod.metadata.uid))
        delete, ended = self._core.delete_namespaced_pod, {CONFLICT: None, NOT_FOUND: None}  # it may end meanwhile
        asked(delete, pod.metadata.name, self._namespace, body=options, instead=ended)

    def wait_gone(self, timeout_s: int, tell: Callable[[str], None]) -> None:
        """Wait until the release's pods and its deleted volume claims no longer exist.

        Raises:
            AddressError: objects still exist after `timeout_s` seconds. The message names them.
        """
        deadline = time.monotonic() + timeout_s
        told = ""
        while left := self._going():
            line = f"waiting for the end of {listed(left)}"
            if line != told:
                told = line
                tell(line)
            if time.monotonic() > deadline:
                raise AddressError(f"not deleted after {timeout_s} s: {', '.join(left)}; kubectl describe says why")
            pass_time(LOOK_S)

    def _going(self) -> list[str]:
        seen = self.look()
        claims = [f"claim {c.metadata.name}" for c in seen.claims if c.metadata.deletion_timestamp is not None]
        owned = [f"pod {pod.metadata.name}" for pod in seen.pods if owner_kind(pod) in {*TIERS, "Job"}]
        return claims + owned

    def delete_tests(self) -> None:
        """Delete the pod of `helm test`, which an uninstallation does not delete."""
        for pod in self.look().pods:
            if (pod.metadata.labels or {}).get(COMPONENT) == "test":
                self._delete_pod(pod)

    # --- its claims ---------------------------------------------------------------------------

    def claims(self) -> list[str]:
        """Return the names of the release's volume claims that are not being deleted."""
        return [str(c.metadata.name) for c in self.look().claims if c.metadata.deletion_timestamp is None]

    def delete_claims(self) -> list[str]:
        """Delete the release's volume claims, and with them the records. Return the names of the claims."""
        names = self.claims()
        for name in names:
            asked(self._core.delete_namespaced_persistent_volume_claim, name, self._namespace)
        return names

    # --- its Secrets --------------------------------------------------------------------------

    @property
    def secrets(self) -> KubernetesSecrets:
        """The Secrets with the release's certificates."""
        return KubernetesSecrets(self._core, self._namespace, self._labels)


class GpsAccess:
    """Reach the GPS of an installed release: find its pod, the operator's certificate, and an address."""

    def __init__(self, installed: InstalledRelease) -> None:
        self._installed = installed
        self._release = installed.release

    @contextmanager
    def of_operator(self) -> Iterator[Security]:
        """Yield the security settings with which the operator calls the GPS. They have a certificate if the release's
        pods use TLS. Otherwise they are `OPEN`.

        Raises:
            AccountError: this account may not read the certificate.
            CertificateError: the certificate is missing or not usable.
        """
        name = (self._gps().metadata.annotations or {}).get(OPERATOR_CERTIFICATE)
        if name is None:
            yield OPEN
            return
        found = self._installed.secrets.read(name)
        if found is None:
            raise CertificateError(
                f"namespace {self._release.namespace} has no Secret {name}; run fedstrata up, which makes it"
            )
        with tls_of_secret(found, name) as tls:
            yield TlsSecurity(tls)

    def pod(self, port: str = "grpc") -> tuple[str, int]:
        """Return the name of the running GPS pod, and the number of its port with the name `port`.

        Raises:
            AddressError: no GPS pod runs, or the pod has no such port.
            RunStoppedError: the GPS pod ends after each start, or cannot start.
        """
        pod = self._gps()
        return pod.metadata.name, _port_of(pod, port)

    def _gps(self) -> Any:
        """Return the running GPS pod. If it is just being replaced, wait a moment for the new pod.

        Raises:
            AddressError: there is no GPS pod, or it does not run. The message gives the reason.
            RunStoppedError: the GPS pod ends after each start, or cannot start. The message gives the reason.
        """
        deadline = time.monotonic() + GPS_START_S
        while True:
            pods = self._installed.gps_pods()
            if not pods:
                raise AddressError(
                    f"release {self._release.name} has no GPS pod in namespace {self._release.namespace}; "
                    "helm list --all-namespaces shows all releases"
                )
            running = [p for p in pods if p.status.phase == "Running" and p.metadata.deletion_timestamp is None]
            if running:
                if why := hopeless(running[0]):
                    raise RunStoppedError(f"the GPS does not run: {why}")
                return running[0]
            if time.monotonic() > deadline:
                reasons = progress(self._installed.look()).reasons
                command = f"kubectl -n {self._release.namespace} describe pod {pods[0].metadata.name}"
                why = "; ".join(reasons) or f"{command} says why"
                raise AddressError(f"the GPS's pod {pods[0].metadata.name} is {pods[0].status.phase}: {why}")
            pass_time(LOOK_S)

    def address(self, port: str = "grpc") -> AbstractContextManager[str]:
        """Return a context manager. While its block runs, a port of this machine is forwarded to a named port of the
        release's GPS. The block gets the address on this machine.

        Raises:
            AddressError: no GPS runs, or it cannot be reached.
        """
        pod, number = self.pod(port)
        return PodPort(self._installed.configuration, self._release.namespace, pod, number).forwarded()


def _configuration(release: Release) -> Any:
    """Return the address of the release's Kubernetes, and the credentials for it. Raises AddressError if the kubeconfig
    has no usable context.
    """
    from kubernetes import client, config

    found = client.Configuration()
    try:
        config.load_kube_config(
            config_file=str(release.kubeconfig) if release.kubeconfig else None,
            context=release.context,
            client_configuration=found,
        )
    except config.ConfigException as error:
        raise AddressError(
            f"no Kubernetes context: {sentence(error)}; kubectl config get-contexts shows all contexts"
        ) from None
    except (TypeError, AttributeError, LookupError):  # the client does not check the file's structure
        raise AddressError(
            "the kubeconfig has another structure than kubectl writes; give another with --kubeconfig"
        ) from None
    except Exception as error:  # the file cannot be read, or is not YAML
        raise AddressError(
            f"the kubeconfig cannot be read: {sentence(error)}; give another with --kubeconfig"
        ) from None
    return found


def _port_of(pod: Any, name: str) -> int:
    """Return the number of a pod's named port. Raises AddressError if the pod has no such port."""
    for port in pod.spec.containers[0].ports or []:
        if port.name == name:
            return int(port.container_port)
    raise AddressError(f"pod {pod.metadata.name} has no port called {name}; was another chart installed?")
