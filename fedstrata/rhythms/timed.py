"""Rounds of a fixed length, also called semi-asynchronous."""

from collections.abc import Sequence

from fedstrata.experiment.sections import TimedSettings
from fedstrata.rhythms.base import Rhythm

PARTS = 6  # rounds in the longest work of a child, if the period is automatic


class Timed(Rhythm):
    """Close a round after a fixed time. If no update has arrived by then, close it with the first update. Close it
    earlier if all updates have arrived.
    """

    def __init__(self, settings: TimedSettings) -> None:
        self._period = settings.period

    def period_ns(self, took_ns: Sequence[int]) -> int:
        if isinstance(self._period, int):
            return self._period
        return max(1, max(took_ns, default=0) // PARTS)

    def closes_ns(self, opened_ns: int, arrivals_ns: Sequence[int], period_ns: int) -> int:
        planned_ns = max(opened_ns + period_ns, arrivals_ns[0])
        return max(opened_ns, min(planned_ns, arrivals_ns[-1]))
