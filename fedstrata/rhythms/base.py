"""The interface of a rhythm: when a parent closes a round and makes its next model.

A child trains the model of a round, and its update arrives in this round or in a later one. Until a round has taken the
update, the child is at work. No decision depends on the values of an update. So in virtual time, the times of a run
follow from its experiment file.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Contributed:
    """Describe an update that arrives in a round. Staleness and gap are counted in rounds."""

    staleness: int  # number of rounds since the round of the model that the child trained
    gap: int  # number of rounds since the round that took the child's last update, at least 1


class Rhythm:
    """Define when a parent closes a round."""

    def period_ns(self, took_ns: Sequence[int]) -> int:
        """Return the length of a round in nanoseconds, or 0 if rounds have no fixed length. `took_ns` has, for each
        child of the first round, the time from the beginning of the round until its update arrives.
        """
        return 0

    def closes_ns(self, opened_ns: int, arrivals_ns: Sequence[int], period_ns: int) -> int:
        """Return when a round closes. All updates that have arrived by then are part of the round.

        Args:
            opened_ns: time at which the round opened.
            arrivals_ns: times at which the updates of all children at work arrive, ascending; at least one. In real
                time, updates that have not arrived yet have a time in the far future.
            period_ns: the result of the method `period_ns` in the first round.
        """
        raise NotImplementedError
