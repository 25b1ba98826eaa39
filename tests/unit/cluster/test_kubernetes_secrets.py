"""Secrets of certificates at a Kubernetes that keeps them in memory: whose are replaced, and what is said of others."""

import json
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client

from emulator.cluster.secrets import KubernetesSecrets, answering
from fedstrata.errors import AccountError, AddressError, CertificateError

LABELS = {"app.kubernetes.io/name": "fedstrata", "app.kubernetes.io/instance": "lab"}
OURS = {**LABELS, "fedstrata.io/holds": "certificate"}
BY_UP = {"fedstrata.io/made-by": "fedstrata-up"}
BY_CERT_MANAGER = {"cert-manager.io/certificate-name": "lab-tls-gps"}
GPS = "lab-tls-gps"
FIRST, SECOND = {"tls.key": b"first"}, {"tls.key": b"second"}


class Core:
    """The calls of the API's core group that are made here, with the statuses that Kubernetes answers."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.versions = count()
        self.forbidden: set[str] = set()
        self.has_namespace = True
        self.api_client = SimpleNamespace(configuration=SimpleNamespace(host="http://kubernetes"))

    def _check(self, verb: str, name: str | None = None) -> None:
        if verb in self.forbidden:
            raise client.ApiException(status=403, reason="Forbidden")
        if not self.has_namespace or (name is not None and name not in self.kept):
            raise client.ApiException(status=404, reason="Not Found")

    def create_namespace(self, _body: object, **_: object) -> None:
        if "make namespaces" in self.forbidden:
            raise client.ApiException(status=403, reason="Forbidden")
        if self.has_namespace:
            raise client.ApiException(status=409, reason="Conflict")
        self.has_namespace = True

    def read_namespaced_secret(self, name: str, _namespace: str, **_: object) -> Any:
        self._check("get", name)
        return self.kept[name]

    def create_namespaced_secret(self, _namespace: str, secret: Any, **_: object) -> Any:
        self._check("create")
        if secret.metadata.name in self.kept:
            raise client.ApiException(status=409, reason="Conflict")
        secret.metadata.resource_version = f"{secret.metadata.name} {next(self.versions)}"
        self.kept[secret.metadata.name] = secret
        return secret

    def replace_namespaced_secret(self, name: str, _namespace: str, secret: Any, **_: object) -> Any:
        self._check("update", name)
        if self.kept[name].type != secret.type:
            raise client.ApiException(status=422, reason="Unprocessable Entity")
        if secret.metadata.resource_version not in {None, self.kept[name].metadata.resource_version}:
            raise client.ApiException(status=409, reason="Conflict")
        secret.metadata.resource_version = f"{name} {next(self.versions)}"
        self.kept[name] = secret
        return secret

    def delete_namespaced_secret(self, name: str, _namespace: str, **_: object) -> None:
        self._check("delete", name)
        del self.kept[name]

    def list_namespaced_secret(self, _namespace: str, *, label_selector: str, **_: object) -> Any:
        self._check("list")
        wanted = dict(part.split("=") for part in label_selector.split(",")).items()
        return SimpleNamespace(items=[s for s in self.kept.values() if wanted <= (s.metadata.labels or {}).items()])


def a_secret(labels: dict[str, str] | None, kind: str, annotations: dict[str, str] | None) -> Any:
    metadata = client.V1ObjectMeta(name=GPS, labels=labels, annotations=annotations)
    return client.V1Secret(metadata=metadata, type=kind, data={})


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def secrets(core: Core) -> KubernetesSecrets:
    return KubernetesSecrets(core, "garden", LABELS)


def test_what_was_made_here_is_replaced_and_found_again(secrets: KubernetesSecrets) -> None:
    assert secrets.write(GPS, FIRST)
    secrets.check_replaceable(GPS)
    assert not secrets.write(GPS, SECOND)
    assert not secrets.create(GPS, FIRST)
    assert secrets.read(GPS) == SECOND
    assert secrets.names() == secrets.made_here() == [GPS]
    secrets.delete(GPS)
    secrets.delete(GPS)
    assert secrets.read(GPS) is None


@pytest.mark.parametrize(
    ("labels", "kind", "annotations"),
    [
        (None, "Opaque", None),
        (OURS, "kubernetes.io/tls", BY_CERT_MANAGER),
        ({**OURS, "app.kubernetes.io/instance": "other"}, "Opaque", BY_UP),
        (OURS, "Opaque", {**BY_UP, **BY_CERT_MANAGER}),
    ],
    ids=["by hand", "by cert-manager", "of another release", "taken over by cert-manager"],
)
def test_what_others_have_made_stays_and_is_named(
    core: Core, secrets: KubernetesSecrets, labels: dict[str, str], kind: str, annotations: dict[str, str]
) -> None:
    theirs = core.kept[GPS] = a_secret(labels, kind, annotations)
    for attempt in (lambda: secrets.check_replaceable(GPS), lambda: secrets.write(GPS, SECOND)):
        with pytest.raises(CertificateError, match=r"Secret lab-tls-gps in namespace garden.* set tls\.mode to"):
            attempt()
    assert core.kept == {GPS: theirs}
    assert secrets.made_here() == []


def test_one_of_ours_of_another_type_is_made_anew_since_a_type_cannot_change(
    core: Core, secrets: KubernetesSecrets
) -> None:
    core.kept[GPS] = a_secret(OURS, "kubernetes.io/tls", BY_UP)
    assert secrets.write(GPS, SECOND)
    assert core.kept[GPS].type == "Opaque"
    assert secrets.read(GPS) == SECOND


@pytest.mark.parametrize("before", [{}, FIRST])
def test_of_two_changes_at_once_none_is_lost(secrets: KubernetesSecrets, before: dict[str, bytes]) -> None:
    if before:
        secrets.write(GPS, before)
    others = iter(["theirs", "another's"])

    def changed(had: dict[str, bytes]) -> dict[str, bytes]:
        if name := next(others, ""):
            secrets.change(GPS, lambda theirs: {**theirs, name: b""})
        return {**had, "mine": b""}

    secrets.change(GPS, changed)
    assert secrets.read(GPS) == {**before, "theirs": b"", "another's": b"", "mine": b""}


def test_a_namespace_that_is_not_there_and_may_not_be_made_is_named(core: Core, secrets: KubernetesSecrets) -> None:
    core.has_namespace, core.forbidden = False, {"make namespaces"}
    secrets.ensure_namespace()
    with pytest.raises(AddressError, match="there is no namespace garden, and this account may not make it"):
        secrets.write(GPS, FIRST)
    core.forbidden = set()
    secrets.ensure_namespace()
    assert secrets.write(GPS, FIRST)


def test_what_an_account_may_not_do_is_told_apart_from_a_kubernetes_that_is_away(
    core: Core, secrets: KubernetesSecrets
) -> None:
    core.forbidden = {"get", "list"}
    with pytest.raises(AccountError, match="this account may not read Secret lab-tls-gps in namespace garden"):
        secrets.read(GPS)
    with pytest.raises(AccountError, match="Kubernetes refused: 403 Forbidden"):
        secrets.names()


def answered(status: int, body: str | None) -> str:
    """What is told of an error of the API."""
    error = client.ApiException(status=status, reason="Forbidden")
    error.body = body
    with pytest.raises((AccountError, AddressError)) as told, answering("https://kubernetes"):
        raise error
    return f"{type(told.value).__name__}: {told.value}"


def test_the_apis_own_text_is_told() -> None:
    lacking = 'daemonsets.apps is forbidden: User "ann" cannot list resource "daemonsets" in the namespace "fl"'
    roles = "Ask your administrator for the Roles in helm/fedstrata/rights"
    for status, said, told in (
        (403, lacking, f"AccountError: this account lacks a right on Kubernetes: {lacking}. {roles}"),
        (403, 'secrets "x" is forbidden: exceeded quota: small', 'AccountError: Kubernetes refused: secrets "x" is '
                                                                 "forbidden: exceeded quota: small"),
        (500, "etcdserver: request\n timed out.", "AddressError: Kubernetes refused: etcdserver: request timed out"),
    ):  # fmt: skip
        assert answered(status, json.dumps({"kind": "Status", "message": said})) == told


@pytest.mark.parametrize("body", [None, "", "<html>", "[]", "{}", '"text"'])
def test_an_answer_without_a_text_is_told_by_its_number(body: str | None) -> None:
    assert answered(403, body) == "AccountError: Kubernetes refused: 403 Forbidden"
