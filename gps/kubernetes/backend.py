"""What the GPS asks of the system in which it runs: a number of LPSs, labels for pods, and Events."""

from collections.abc import Mapping, Sequence


class Backend:
    """Define a system that can start LPSs for the GPS. Every call returns at once, and no call may end the run.

    A later call about the same thing replaces an earlier one. This class is for one machine and does nothing: the
    program that started the GPS also starts the LPSs that the GPS's status names, and ends all processes.
    """

    async def scale_lps(self, replicas: int) -> None:
        """Request that this number of LPSs run."""

    async def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> None:
        """Label each pod, by name, with the LPSs of its devices."""

    async def record_event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Write an Event for the operator."""

    async def release_pods(self) -> None:
        """Stop the pods that the run no longer needs."""
