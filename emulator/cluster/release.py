"""Describe a release: its name, its namespace, and how to reach Kubernetes. All commands for a run on Kubernetes need
this description.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from fedstrata.errors import ExperimentError

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
NAME = re.compile(rf"{NAMESPACE.pattern}([.]{NAMESPACE.pattern})*")
RELEASE_MAX, NAMESPACE_MAX = 53, 63  # characters: limits of Helm and Kubernetes


@dataclass(frozen=True, kw_only=True)
class Release:
    """Hold the name of a release, its namespace, and how to reach Kubernetes. The constructor checks the names."""

    name: str
    namespace: str
    context: str | None = None  # None: the current context of the kubeconfig
    kubeconfig: Path | None = None  # None: $KUBECONFIG, or ~/.kube/config

    def __post_init__(self) -> None:
        for what, name, form, most, more in (
            ("release", self.name, NAME, RELEASE_MAX, ", dots"),
            ("namespace", self.namespace, NAMESPACE, NAMESPACE_MAX, ""),
        ):
            if len(name) > most or not form.fullmatch(name):
                raise ExperimentError(
                    f"--{what} {name[:80]!r}: a name has at most {most} lower-case letters, digits{more} and hyphens, "
                    "and begins and ends with a letter or digit"
                )
        if self.kubeconfig is not None and not self.kubeconfig.exists():
            raise ExperimentError(f"--kubeconfig {self.kubeconfig} does not exist; leave it out to use $KUBECONFIG")

    @property
    def options(self) -> str:
        """The options with which a command of `fedstrata` finds this release."""
        return f"--release {self.name} --namespace {self.namespace}"
