"""The requests of the GPS to the system in which it runs: a number of LPSs, labels for pods, and Events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Hold the state of a run, as the operator sees it."""

    phase: str
    global_round: int
    global_rounds: int
    reason: str  # why the run has failed; empty if it has not


class Backend:
    """Define the requests of the GPS to the system in which it runs. Each call returns before its request is carried
    out. A failed request does not end the run.

    A later request replaces an earlier request of the same kind; only Events do not replace each other. This base class
    is for one machine, and does nothing. On one machine, the program that started the GPS reads from the GPS's status
    how many LPSs are needed. This program starts the LPSs, and ends all processes.
    """

    job = ""  # the name of the Kubernetes Job that ends with the run

    def scale_lps(self, replicas: int) -> None:
        """Request that this number of LPSs run."""

    def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> None:
        """Give each pod a label with the LPSs of its devices. `lps_ids` has these LPSs by the name of the pod."""

    def show(self, standing: Standing) -> None:
        """Show the operator the state of the run."""

    def record_event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Write an Event for the operator."""

    def release_pods(self) -> None:
        """Stop the pods that the run no longer needs."""
