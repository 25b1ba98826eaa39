"""What the GPS asks of where it runs: LPSs when it knows how many, and marks of what it decided."""

from collections.abc import Mapping, Sequence


class Backend:
    """A place that can give the GPS its LPSs; every call returns at once and none may fail the run.

    What is asked last holds: a later call about the same thing replaces an earlier one. This class is one machine, and
    does nothing: whoever started the GPS starts the LPSs that its status asks for, and ends all processes.
    """

    async def scale_lps(self, replicas: int) -> None:
        """Have this many LPSs running."""

    async def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> None:
        """Mark each pod, by name, with the LPSs of its devices."""

    async def record_event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Leave a note where an operator looks."""

    async def release_pods(self) -> None:
        """Give back what the run does not need any more, now that it is over."""
