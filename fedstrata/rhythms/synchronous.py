"""Rounds in which the parent waits for all children."""

from collections.abc import Sequence

from fedstrata.rhythms.base import Rhythm


class Synchronous(Rhythm):
    """Close a round when the last update has arrived."""

    def closes_ns(self, opened_ns: int, arrivals_ns: Sequence[int], period_ns: int) -> int:
        return max(opened_ns, arrivals_ns[-1])
