"""Decide which device is at which LPS, so that a round costs least.

First, `modelled` solves a linear model: the links that devices share are busy at least as long as their bits take. It
is a mixed-integer program for HiGHS (scipy.optimize.milp). Then `improved` moves and exchanges devices, and keeps each
change after which a round costs no more by the clock. Nothing depends on how fast the machine is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Placement = tuple[tuple[int, ...], ...]  # devices of each LPS
Key = tuple[float, ...]  # of a placement; the least is the best
Judge = Callable[[Sequence[Sequence[int]]], Key]
Floats = NDArray[np.float64]

GAP, NODES = 0.005, 200  # at which HiGHS stops: relative gap to its bound, and nodes of its search
THRESHOLDS = 12  # times after which the model counts the bits that a link still has to carry
TRIES = 3000  # changes that `improved` tries at most


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """Hold how many devices each LPS has room for, the LPSs at which each device may be, nearest first, and how many
    devices each LPS needs.
    """

    capacities: Sequence[int]
    allowed: Sequence[Sequence[int]]
    least: int

    def permits(self, placement: Sequence[Sequence[int]]) -> bool:
        """Return whether each LPS has enough devices, not too many, and only devices that may be there."""
        return all(
            self.least <= len(group) <= most and all(number in self.allowed[index] for index in group)
            for number, (group, most) in enumerate(zip(placement, self.capacities, strict=True))
        )

    def numbered(self) -> Placement:
        """Return the placement without `topology.devices`: device i at LPS i modulo the number of LPSs."""
        lps = len(self.capacities)
        return tuple(tuple(range(number, len(self.allowed), lps)) for number in range(lps))

    def nearest(self) -> Placement:
        """Return the placement of a simple rule: in index order, each device goes to the first of its LPSs with room.
        If all its LPSs are full, it goes to the first.
        """
        groups: list[list[int]] = [[] for _ in self.capacities]
        for index, near in enumerate(self.allowed):
            free = [number for number in near if len(groups[number]) < self.capacities[number]]
            groups[free[0] if free else near[0]].append(index)
        return tuple(map(tuple, groups))


@dataclass(frozen=True, kw_only=True)
class Load:
    """Describe one shared link in a round, with an entry per device."""

    seconds: Floats  # for which the device keeps the whole link busy
    besides: Floats  # seconds of the round that pass besides, before or after the device uses the link


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Hold a placement, and the seconds of a round that no placement can undercut if times have no random part and
    rounds ask all devices.
    """

    placement: Placement
    bound: float


def modelled(rooms: Rooms, loads: Sequence[Load], alone_s: float) -> Modelled | None:
    """Return the placement with the shortest round in the linear model. `alone_s` is how long the slowest device takes
    if no other uses the links. If the rooms permit no placement, return None.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    pairs = [(index, number) for index, allowed in enumerate(rooms.allowed) for number in sorted(allowed)]
    devices, places = (np.array(each) for each in zip(*pairs, strict=True))
    columns, count, lps = np.arange(len(pairs)), len(rooms.allowed), len(rooms.capacities)

    def each_once(rows: NDArray[np.int64], number: int) -> csr_array:
        return csr_array((np.ones(len(pairs)), (rows, columns)), shape=(number, len(pairs) + 1))

    rules = [
        LinearConstraint(each_once(devices, count), 1, 1),
        LinearConstraint(each_once(places, lps), rooms.least, np.array(rooms.capacities)),
    ]
    for load in loads:
        for least in np.unique(np.quantile(load.besides, np.linspace(0, 1, THRESHOLDS), method="lower")):
            late = load.besides[devices] >= least
            rows = csr_array(
                (
                    np.concatenate((load.seconds[devices[late]], -np.ones(lps))),
                    (
                        np.concatenate((places[late], np.arange(lps))),
                        np.concatenate((columns[late], np.full(lps, len(pairs)))),
                    ),
                ),
                shape=(lps, len(pairs) + 1),
            )
            rules.append(LinearConstraint(rows, -np.inf, -least))
    only_time = np.zeros(len(pairs) + 1)
    only_time[-1] = 1
    lower, upper = np.zeros_like(only_time), np.ones_like(only_time)
    lower[-1], upper[-1] = alone_s, np.inf
    found = milp(
        only_time, constraints=rules, integrality=1 - only_time, bounds=Bounds(lower, upper),
        options={"mip_rel_gap": GAP, "node_limit": NODES},
    )  # fmt: skip
    if found.x is None:
        return None
    groups: list[list[int]] = [[] for _ in range(lps)]
    for (index, number), share in zip(pairs, found.x, strict=False):
        if share > 0.5:
            groups[number].append(index)
    return Modelled(placement=tuple(map(tuple, groups)), bound=float(found.mip_dual_bound))


def improved(start: Placement, rooms: Rooms, judge: Judge, goes_on: Callable[[], bool]) -> Placement:
    """Try random changes and keep each that does not cost more, for at most `TRIES` tries and while `goes_on` returns
    True.
    """
    drawn, best, key = np.random.default_rng(0), start, judge(start)
    for _ in range(TRIES):
        if not goes_on():
            break
        changed = _changed(best, rooms, drawn)
        if rooms.permits(changed) and (now := judge(changed)) <= key:
            best, key = changed, now
    return best


def _changed(placement: Placement, rooms: Rooms, drawn: np.random.Generator) -> Placement:
    """Return the placement after a random device has gone to another LPS that it may use. If this LPS is full, and else
    in half of the cases, a device of this LPS comes back in exchange.
    """
    groups = [list(group) for group in placement]
    index = int(drawn.integers(len(rooms.allowed)))
    here = next(number for number, group in enumerate(groups) if index in group)
    there = rooms.allowed[index][int(drawn.integers(len(rooms.allowed[index])))]
    if there != here:
        is_full = len(groups[there]) == rooms.capacities[there]
        if is_full or drawn.random() < 0.5:
            back = groups[there][int(drawn.integers(len(groups[there])))]
            groups[there].remove(back)
            groups[here].append(back)
        groups[here].remove(index)
        groups[there].append(index)
    return tuple(map(tuple, groups))
