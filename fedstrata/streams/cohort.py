"""The cohort of an LPS round: which of its devices an LPS asks for an update."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from heapq import nsmallest

from fedstrata.streams.first_draws import first_draws

COHORT = 0x636F686F  # "coho": tells these draws from a device's, whose second number is its index


def cohort(members: Sequence[int], participation: int | float | None, seed: int, lps_round: int) -> list[int]:
    """Return the indexes, ascending, of the devices of an LPS that take part in a round.

    Each device draws one random number. The devices with the smallest numbers take part: `participation` is their
    number, or their share, rounded up; None means all devices. The cohort depends only on this LPS's devices, not on
    other LPSs.
    """
    count = cohort_size(len(members), participation)
    if count == len(members):
        return sorted(members)
    draws = first_draws([seed, COHORT, lps_round], members)
    return sorted(device for _, device in nsmallest(count, zip(draws, members, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Cohorts:
    """Hold the cohort of each round, for runs in which one LPS serves all devices from the first round to the last."""

    asked: tuple[frozenset[int], ...]  # by LPS round
    most: tuple[int, ...]  # by LPS round, how often any of them has taken part once it is over


@lru_cache(maxsize=4)
def cohorts(devices: int, participation: int | float, seed: int, lps_rounds: int) -> Cohorts:
    """Return the cohorts of the first `lps_rounds` rounds, drawn from this number of devices."""
    asked = tuple(frozenset(cohort(range(devices), participation, seed, number)) for number in range(lps_rounds))
    often: Counter[int] = Counter()
    most = []
    for there in asked:
        often.update(there)
        most.append(max(often.values()))
    return Cohorts(asked=asked, most=tuple(most))


def cohort_size(members: int, participation: int | float | None) -> int:
    """Return the size of a cohort. A share is treated as a decimal number, so 0.1 of 30 devices is 3."""
    if participation is None:
        return members
    if isinstance(participation, float):
        return math.ceil(Fraction(repr(participation)) * members)
    return min(participation, members)
