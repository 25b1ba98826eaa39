"""The cohort of an LPS round: the devices that an LPS asks for an update."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from heapq import nsmallest
from itertools import chain

from fedstrata.experiment import Experiment
from fedstrata.methods.first_draws import first_draws

COHORT = 0x636F686F  # "coho": second number of these draws' addresses; in a device's draws it is the index


def cohort(members: Sequence[int], participation: int | float | None, seed: int, lps_round: int) -> list[int]:
    """Return the indexes, ascending, of the devices of an LPS that take part in a round.

    Each device draws one random number. The devices with the smallest numbers take part. `participation` says how many:
    an int is their number, and a float their share of this LPS's devices, rounded up. None means all of these devices.
    The cohort does not depend on other LPSs.
    """
    count = cohort_size(len(members), participation)
    if count == len(members):
        return sorted(members)
    draws = first_draws((seed, COHORT, lps_round), members)
    return sorted(device for _, device in nsmallest(count, zip(draws, members, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Cohorts:
    """Hold the cohort of each round, for runs in which one LPS serves all devices from the first round to the last."""

    asked: tuple[frozenset[int], ...]  # devices that each LPS round asks
    most: tuple[int, ...]  # by LPS round: the most rounds up to this one in which one device took part


@lru_cache(maxsize=4, typed=True)  # 1 is one device, and 1.0 is all devices
def cohorts(devices: int, participation: int | float, seed: int, lps_rounds: int) -> Cohorts:
    """Return the cohorts of the first `lps_rounds` LPS rounds. They are drawn from the devices 0 to `devices - 1`."""
    asked = tuple(frozenset(cohort(range(devices), participation, seed, number)) for number in range(lps_rounds))
    often: Counter[int] = Counter()
    most = []
    for there in asked:
        often.update(there)
        most.append(max(often.values()))
    return Cohorts(asked=asked, most=tuple(most))


def cohort_of_file(experiment: Experiment, lps_round: int) -> list[int]:
    """Return the indexes, ascending, of the devices that all LPSs together ask in a round. Only the experiment file
    decides, even if devices turn out absent, late or moved. Without `training.participation`, return an empty list.
    """
    training, topology, newcomers = experiment.training, experiment.topology, experiment.newcomers
    if training.participation is None:
        return []
    is_early = newcomers and lps_round < (newcomers.from_global_round - 1) * training.lps_rounds_per_global_round
    absent = experiment.newcomer_indexes if is_early else frozenset()
    count, lps = experiment.device_count, topology.lps if topology else 1
    homes = (topology and topology.devices) or [range(home, count, lps) for home in range(lps)]
    there = [[device for device in home if device not in absent] for home in homes]
    asked = [cohort(home, training.participation, experiment.seed, lps_round) for home in there]
    return sorted(chain.from_iterable(asked))


def cohort_size(members: int, participation: int | float | None) -> int:
    """Return the size of a cohort. A share is treated as an exact decimal number, so a share of 0.1 of 30 devices is 3
    devices, not 4.
    """
    if participation is None:
        return members
    if isinstance(participation, float):
        return math.ceil(Fraction(repr(participation)) * members)
    return min(participation, members)
