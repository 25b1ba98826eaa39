"""Places in which the pods of a sweep keep the runs: a volume claim that all pods mount, or a bucket."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Document = dict[str, Any]
CLAIM = "/claim"  # where pods mount the claim: data sets are in data/, sweeps in sweeps/
TMP = "/tmp"  # noqa: S108  # in pods: a folder of the pod


class PodStorage(Protocol):
    """Define what the Kubernetes objects of a sweep say about the place of its runs."""

    def options(self) -> Mapping[str, str | None]:
        """Return the options with which the user chose the storage."""

    def is_shared(self, ask: Callable[[str], bool]) -> bool:
        """Return whether several nodes can use the place at once. `ask` answers this for a volume claim."""

    def arguments(self, name: str) -> list[str]:
        """Return the arguments of `fedstrata sweep` in pods for the place of a sweep."""

    def environment(self) -> Document:
        """Return the keys of a container for its environment variables."""

    def volumes(self) -> list[tuple[Document, str]]:
        """Return the volumes of a pod, each with the folder of its mount."""


@dataclass(frozen=True)
class ClaimStorage:
    """Keep the runs on a PersistentVolumeClaim."""

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
    """Keep the runs in a bucket. The variables for its server and credentials come from a Secret."""

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
