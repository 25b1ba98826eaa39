"""Rounds with a fixed number of updates.

FedBuff: John Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022. With a buffer of
one update: FedAsync, Cong Xie et al., "Asynchronous Federated Optimization", 2019.
"""

from collections.abc import Sequence

from fedstrata.rhythms.base import Rhythm


class Buffered(Rhythm):
    """Close a round when a given number of updates, or the updates of all children at work, have arrived."""

    def __init__(self, updates: int) -> None:
        self._updates = updates

    def closes_ns(self, opened_ns: int, arrivals_ns: Sequence[int], period_ns: int) -> int:
        return max(opened_ns, arrivals_ns[min(self._updates, len(arrivals_ns)) - 1])
