"""Read and write the Secrets of a release, and turn failures of the Kubernetes API into readable errors."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedstrata.errors import AccountError, AddressError, CertificateError, FedstrataError

REQUEST_S = 15  # time limit of a request to the Kubernetes API
WRITES = 10  # tries to write a Secret that other programs also write
OF_CERTIFICATES = {"fedstrata.io/holds": "certificate"}  # label of Secrets with certificates
MADE_BY = {"fedstrata.io/made-by": "fedstrata-up"}  # annotation of Secrets that `fedstrata up` may replace
OF_CERT_MANAGER = "cert-manager.io/certificate-name"  # annotation of Secrets that cert-manager writes
NOT_FOUND, CONFLICT, FORBIDDEN = 404, 409, 403
INVALID = {400, 422}  # status codes for an object that cannot be read, or has a wrong value
AS_ANSWERED: Mapping[int, FedstrataError | None] = {}
HOW_TO_GET_RIGHTS = "Ask your administrator for the Roles in helm/fedstrata/rights"


def asked(
    call: Callable[..., Any],
    *arguments: Any,
    instead: Mapping[int, FedstrataError | None] = AS_ANSWERED,
    invalid: type[FedstrataError] = AddressError,
    **options: Any,
) -> Any:
    """Make a call of the Kubernetes API with a method of its client, and return the result.

    `instead` maps a status with which the API may fail to the error that is raised in this case. If it maps the status
    to None, return None.

    Raises:
        FedstrataError: the errors of `answering`.
    """
    from kubernetes import client

    with answering(call.__self__.api_client.configuration.host, invalid):  # type: ignore[attr-defined]  # a method
        try:
            return call(*arguments, _request_timeout=REQUEST_S, **options)
        except client.ApiException as error:
            if error.status not in instead:
                raise
            other = instead[error.status]
    if other is not None:
        raise other
    return None


@contextmanager
def answering(host: str, invalid: type[FedstrataError] = AddressError) -> Iterator[None]:
    """Run a block that calls the Kubernetes API.

    Raises:
        AccountError: this account lacks a right.
        AddressError: the API refuses for another reason, or does not answer. If an object in the call is not valid, the
            error has the class `invalid`.
    """
    import urllib3
    from kubernetes import client

    try:
        yield
    except client.ApiException as error:
        said = message_of(error)
        if lacking_right(said):
            raise AccountError(f"this account lacks a right on Kubernetes: {said}. {HOW_TO_GET_RIGHTS}") from None
        kind = AccountError if error.status == FORBIDDEN else invalid if error.status in INVALID else AddressError
        raise kind(f"Kubernetes refused: {said}") from None
    except urllib3.exceptions.HTTPError as error:
        cause = getattr(error, "reason", None) or error  # if there were several attempts, the cause of the last
        raise AddressError(
            f"Kubernetes at {host} does not answer: {sentence(cause)}; see kubectl cluster-info"
        ) from None


def message_of(error: Any) -> str:
    """Return the text in which the Kubernetes API gives the reason of an error, such as the right that is missing."""
    try:
        return sentence(json.loads(error.body)["message"])
    except (ValueError, TypeError, KeyError):  # for instance the page of a proxy
        return f"{error.status} {error.reason}"


def lacking_right(said: str) -> bool:
    """Return whether a message of the Kubernetes API says that the account lacks a right."""
    return re.search(r"is forbidden: User .* cannot ", said) is not None


def sentence(error: object) -> str:
    """Return the text of an error on one line, without the full stop at its end. If the text begins with a Python
    object, such as `<HTTPSConnection …>: `, this part is removed.
    """
    return " ".join(str(error).split()).rpartition(">: ")[2].removesuffix(".")[:500]


class KubernetesSecrets:
    """Read and write the Secrets with one release's certificates."""

    def __init__(self, core: Any, namespace: str, labels: Mapping[str, str]) -> None:
        """Set `core`, the client of the API's core group, and `labels`, which all objects of the release have."""
        self._core = core
        self._namespace = namespace
        self._labels = {**labels, **OF_CERTIFICATES}

    def ensure_namespace(self) -> None:
        """Make the release's namespace if it is missing. The Secrets are written before Helm is called, so Helm would
        make the namespace too late.
        """
        body = {"metadata": {"name": self._namespace}}
        # FORBIDDEN: without this right, the namespace exists, or `create` fails
        asked(self._core.create_namespace, body, instead={CONFLICT: None, FORBIDDEN: None})

    def read(self, name: str) -> dict[str, bytes] | None:
        """Return the content of a Secret. If the Secret does not exist, return None.

        Raises:
            AccountError: this account may not read the Secret.
        """
        found = self._found(name)
        return None if found is None else _content(found)

    def _found(self, name: str) -> Any:
        """Return a Secret as a Kubernetes object. If the Secret does not exist, return None."""
        forbidden = AccountError(
            f"this account may not read Secret {name} in namespace {self._namespace}, which has the needed "
            "certificate; ask your administrator for the verb get on it"
        )
        instead = {NOT_FOUND: None, FORBIDDEN: forbidden}
        return asked(self._core.read_namespaced_secret, name, self._namespace, instead=instead)

    def check_replaceable(self, name: str) -> None:
        """Check that `fedstrata up` may replace the Secret with this name. If another program has made the Secret,
        raise CertificateError.
        """
        found = self._found(name)
        if found is not None:
            self._check_ours(found)

    def _check_ours(self, found: Any) -> None:
        name = found.metadata.name
        if not is_ours(found.metadata, self._labels):
            raise CertificateError(
                f"fedstrata up has not made Secret {name} in namespace {self._namespace}, and does not replace it; set "
                "tls.mode to secret (or to cert-manager, if it made the Secret), or delete the Secret and run "
                "fedstrata up again"
            )

    def create(self, name: str, data: Mapping[str, bytes]) -> bool:
        """Make a Secret of the release, and return True. If a Secret with this name exists, leave it unchanged and
        return False.

        Raises:
            AddressError: there is no such namespace, and this account may not make one.
        """
        no_namespace = AddressError(
            f"there is no namespace {self._namespace}, and this account may not make it; ask your administrator for "
            "it, or give another with --namespace"
        )
        secret, instead = self._secret(name, data), {NOT_FOUND: no_namespace, CONFLICT: None}
        return asked(self._core.create_namespaced_secret, self._namespace, secret, instead=instead) is not None

    def write(self, name: str, data: Mapping[str, bytes]) -> bool:
        """Make a Secret of the release, or replace a Secret that `fedstrata up` made. Return whether the Secret is new.

        Raises:
            CertificateError: another program has made a Secret with this name. That Secret stays unchanged.
        """
        return self.change(name, lambda _: data)

    def change(self, name: str, changed: Callable[[dict[str, bytes]], Mapping[str, bytes]]) -> bool:
        """Write a Secret like `write`, but with a content that depends on the present content: `changed` gets the
        present content (empty without a Secret), and returns the new content. If another program changes the Secret
        meanwhile, begin again.
        """
        for _ in range(WRITES):
            found = self._found(name)
            if found is not None:
                self._check_ours(found)
            data = changed({} if found is None else _content(found))
            secret = self._secret(name, data)
            if found is not None and found.type != secret.type:  # which cannot be changed
                self.delete(name)
                found = None
            if found is None:
                if self.create(name, data):
                    return True
                continue
            secret.metadata.resource_version = found.metadata.resource_version
            replace, instead = self._core.replace_namespaced_secret, {CONFLICT: None, NOT_FOUND: None}
            if asked(replace, name, self._namespace, secret, instead=instead) is not None:
                return False
        raise AddressError(f"other programs write Secret {name} all the time; run the command again")

    def _secret(self, name: str, data: Mapping[str, bytes]) -> Any:
        from kubernetes import client

        return client.V1Secret(
            metadata=client.V1ObjectMeta(name=name, labels=self._labels, annotations=MADE_BY),
            type="Opaque",
            data={key: base64.b64encode(value).decode() for key, value in data.items()},
        )

    def names(self) -> list[str]:
        """Return the names of all Secrets with the release's certificates. `fedstrata up` or cert-manager may have made
        them.
        """
        return [str(found.metadata.name) for found in self._listed()]

    def made_here(self) -> list[str]:
        """Return the names of the release's Secrets that `fedstrata up` has made."""
        return [str(found.metadata.name) for found in self._listed() if is_ours(found.metadata, self._labels)]

    def _listed(self) -> list[Any]:
        selector = ",".join(f"{key}={value}" for key, value in self._labels.items())
        return list(asked(self._core.list_namespaced_secret, self._namespace, label_selector=selector).items)

    def delete(self, name: str) -> None:
        """Delete a Secret if it exists."""
        asked(self._core.delete_namespaced_secret, name, self._namespace, instead={NOT_FOUND: None})


def _content(found: Any) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (found.data or {}).items()}


def is_ours(metadata: Any, labels: Mapping[str, str]) -> bool:
    """Return whether `fedstrata up` made a Secret for the release. If cert-manager has taken the Secret over since,
    return False.
    """
    noted = metadata.annotations or {}
    of_release = labels.items() <= (metadata.labels or {}).items()
    return of_release and MADE_BY.items() <= noted.items() and OF_CERT_MANAGER not in noted
