"""A release as `fedstrata up` and `down` meet it: a Helm and a Kubernetes that only note what they are asked, and the
objects that Kubernetes gives of it.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from emulator.cluster.helm import Helm
from emulator.cluster.release import Release
from emulator.cluster.release_objects import InstalledRelease
from emulator.cluster.up import UpRequest, load_for_cluster
from emulator.cluster.up import up as run_up
from fedstrata.experiment import Experiment
from fedstrata.v1 import gps_service_pb2 as pb
from tests.support.kept_secrets import Kept

LAB = Release(name="lab", namespace="default")
DIGITS = Path(__file__).resolve().parents[2] / "experiments" / "digits.yaml"
QUIET = Console(quiet=True)
THREE_DEVICES = "partition={kind: iid, devices: 3, examples_per_device: 9}"
SCHEDULER = "0/3 nodes are available: 3 node(s) didn't match node selector."
QUOTA = 'create Pod lab-lps-0 in StatefulSet lab-lps failed error: pods "lab-lps-0" is forbidden: exceeded quota: small'


def experiment(*overrides: str) -> Experiment:
    """One of three devices, and so of three LPSs at the most."""
    return load_for_cluster(DIGITS, (THREE_DEVICES, *overrides), None)


def up(*values: str, of: Experiment | None = None, **more: Any) -> None:
    """`fedstrata up` of the release, with these values."""
    run_up(LAB, UpRequest(experiment=of or experiment(), value_overrides=values, **more), QUIET)


class Noted:
    """What was asked of Helm and of Kubernetes, in order."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, chart: str | None = "fedstrata-0.1.0", claims: Sequence[str] = ()
    ) -> None:
        self.calls: list[str] = []
        self.upgraded: dict[str, Any] = {}
        monkeypatch.setattr(Helm, "chart", lambda _: chart)
        monkeypatch.setattr(Helm, "revision", lambda _: int(chart is not None))
        self.kept: dict[str, Any] = {"lps": {"env": []}, "device": {"devicesPerPod": 5}}
        monkeypatch.setattr(Helm, "values", lambda _: self.upgraded or self.kept)
        monkeypatch.setattr(Helm, "check", lambda *_: None)
        monkeypatch.setattr(Helm, "upgrade", lambda _, path, values: self.upgraded.update(values))
        monkeypatch.setattr(Helm, "uninstall", lambda _: self.calls.append("uninstall"))
        monkeypatch.setattr("emulator.cluster.up.status", self._noting("status", pb.RunStatus(phase="failed")))
        for name, answer in (
            ("wait_gone", None),
            ("delete_tests", None),
            ("wait_ready", None),
            ("warnings", []),
            ("gps_pods", []),
            ("delete_claims", [*claims]),
            ("claims", [*claims]),
            ("may", True),
            ("kubernetes_version", "v1.34.1"),
        ):
            monkeypatch.setattr(InstalledRelease, name, self._noting(name, answer))
        monkeypatch.setattr(InstalledRelease, "__init__", lambda *_: None)
        self.secrets = Kept()
        monkeypatch.setattr(InstalledRelease, "secrets", self.secrets)

    def _noting(self, name: str, answer: object) -> Any:
        def note(*_: object, **__: object) -> object:
            self.calls.append(name)
            return answer

        return note


def raising(error: BaseException) -> Any:
    """What is called instead of something that fails."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def a_set(name: str = "lab-lps", *, wanted: int = 3, ready: int = 3, seen: int = 2, updated: int = 3) -> Any:
    status = SimpleNamespace(
        observed_generation=seen, ready_replicas=ready, updated_replicas=updated,
        current_revision="old", update_revision="new",
    )  # fmt: skip
    metadata = SimpleNamespace(name=name, uid=f"uid-{name}", generation=2, annotations=None)
    return SimpleNamespace(metadata=metadata, spec=SimpleNamespace(replicas=wanted), status=status)


def a_pod(
    name: str, *, owner: str = "lab-lps", revision: str = "new", ready: bool = True, going: bool = False,
    waiting: str = "", message: str = "", last: str = "", ended: str = "", unscheduled: str = "",
    kind: str = "StatefulSet",
) -> Any:  # fmt: skip
    conditions = [SimpleNamespace(type="Ready", status=str(ready), message=None)]
    if unscheduled:
        conditions.append(SimpleNamespace(type="PodScheduled", status="False", message=unscheduled))
    state = SimpleNamespace(waiting=SimpleNamespace(reason=waiting, message=message) if waiting else None)
    terminated = SimpleNamespace(message=last, reason=ended) if last or ended else None
    container = SimpleNamespace(state=state, last_state=SimpleNamespace(terminated=terminated))
    metadata = SimpleNamespace(
        name=name, uid=f"uid-{name}", labels={"controller-revision-hash": revision},
        deletion_timestamp="2026-01-01T00:00:00Z" if going else None,
        owner_references=[SimpleNamespace(kind=kind, name=owner)] if owner else None,
    )  # fmt: skip
    return SimpleNamespace(
        metadata=metadata, status=SimpleNamespace(conditions=conditions, container_statuses=[container])
    )


def a_warning(
    kind: str, name: str, message: str, *, reason: str = "FailedCreate", uid: str = "", times: int = 1
) -> Any:
    about = SimpleNamespace(kind=kind, name=name, uid=uid or f"uid-{name}")
    metadata = SimpleNamespace(uid=f"event-{name}-{message}", resource_version=f"{times}")
    return SimpleNamespace(metadata=metadata, involved_object=about, message=message, reason=reason)


def a_claim(name: str, phase: str = "Pending") -> Any:
    return SimpleNamespace(
        metadata=SimpleNamespace(name=name, uid=f"uid-{name}", deletion_timestamp=None),
        status=SimpleNamespace(phase=phase),
    )
