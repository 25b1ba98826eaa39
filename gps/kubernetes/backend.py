"""What the GPS asks of where it runs: LPSs when it knows how many, and marks of what it decided."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Backend(Protocol):
    """A place that can give the GPS its LPSs; every call returns at once and none may fail the run.

    What is asked last holds: a later call about the same thing replaces an earlier one.
    """

    async def scale_lps(self, replicas: int) -> None:
        """Have this many LPSs running."""

    async def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> None:
        """Mark each pod, by name, with the LPSs of its devices."""

    async def record_event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Leave a note where an operator looks."""

    async def release_pods(self) -> None:
        """Give back what the run does not need any more, now that it is over."""


class LocalBackend:
    """On one machine: whoever started the GPS watches its status and starts the LPSs that it asks for there."""

    async def scale_lps(self, replicas: int) -> None:
        """Do nothing: the status says how many are wanted."""

    async def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> None:
        """Do nothing: processes carry no labels."""

    async def record_event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Do nothing: the log says the same."""

    async def release_pods(self) -> None:
        """Do nothing: whoever started the processes ends them."""
