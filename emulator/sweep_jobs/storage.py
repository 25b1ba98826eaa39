"""Define where the pods of a sweep store the runs: on a volume claim that all pods mount, or in a bucket."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Document = dict[str, Any]
CLAIM = "/claim"  # where pods mount the claim: data sets are in data/, sweeps in sweeps/
TMP = "/tmp"  # noqa: S108  # in pods: a folder of the pod


class PodStorage(Protocol):
    """Define the parts of the Kubernetes objects that depend on the storage of the sweep's runs."""

    def options(self) -> Mapping[str, str | None]:
        """Return the options with which the user chose the storage."""

    def is_shared(self, ask: Callable[[str], bool]) -> bool:
        """Return whether several nodes can use the storage at the same time. For a volume claim, return the result of
        `ask`, called with the name of the claim.
        """

    def arguments(self, name: str) -> list[str]:
        """Return the arguments with which `fedstrata sweep` in a pod finds the runs of the sweep `name` in this
        storage.
        """

    def environment(self) -> Document:
        """Return the environment variables of a container, as the keys `env` and `envFrom` of its specification."""

    def volumes(self) -> list[tuple[Document, str]]:
        """Return the volumes of a pod, each with the folder at which the container mounts the volume."""


@dataclass(frozen=True)
class ClaimStorage:
    """Store the runs on a PersistentVolumeClaim."""

    claim: str

    def options(self) -> Mapping[str, str | None]:
        return {"claim": self.claim}

    def is_shared(self, ask: Callable[[str], bool]) -> bool:
        return ask(self.claim)

    def arguments(self, name: str) -> list[str]:
        return ["--out", f"{CLAIM}/sweeps/{name}"]

    def environment(self) -> Document:
        return {"env": [{"name": "FEDSTRATA_DATA", "value": f"{CLAIM}/data"}]}

    def volumes(self) -> list[tuple[Document, str]]:
        return [({"name": "claim", "persistentVolumeClaim": {"claimName": self.claim}}, CLAIM)]


@dataclass(frozen=True)
class BucketStorage:
    """Store the runs in a bucket. The environment variables for its server and credentials come from a Secret."""

    address: str
    secret: str | None  # None: the bucket accepts the pods' own identity

    def options(self) -> Mapping[str, str | None]:
        return {"to": self.address, "secret": self.secret}

    def is_shared(self, ask: Callable[[str], bool]) -> bool:
        return True

    def arguments(self, name: str) -> list[str]:
        return ["--out", f"{TMP}/{name}", "--to", self.address]

    def environment(self) -> Document:
        secrets = [{"secretRef": {"name": self.secret}}] if self.secret else []
        return {"env": [{"name": "FEDSTRATA_DATA", "value": f"{TMP}/data"}], "envFrom": secrets}

    def volumes(self) -> list[tuple[Document, str]]:
        return []
