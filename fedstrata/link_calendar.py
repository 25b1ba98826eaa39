"""When transfers start, end and arrive on links: pure, in whole nanoseconds and whole bits.

Nothing here waits or looks at a clock, and nothing depends on the order in which transfers are given.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

SECOND_NS = 10**9
SCALE = 1 << 32  # of rates in a shared link: a fair share is rounded down to so small a part of a bit a second
JITTER = 0x6A697474  # "jitt": tells these draws from all others
DEVICE_LINK, LPS_LINK, BEFORE = 0, 1, 2  # of whose round, or what before training, a draw is, in its address
DOWN, UP = 0, 1


def end_of(start_ns: int, bits: int, rate: int | None) -> int:
    """When the last bit has left that began at `start_ns` on a link of its own; None limits nothing."""
    return start_ns if rate is None else start_ns - (-bits * SECOND_NS // rate)


def drawn_latency(latency_ns: int, jitter_ns: int, address: Sequence[int]) -> int:
    """A transfer's latency: evenly from as much below as above, by the address of seed, link, round and direction."""
    if not jitter_ns:
        return latency_ns
    draw = np.random.default_rng([address[0], JITTER, *address[1:]]).integers(-jitter_ns, jitter_ns, endpoint=True)
    return latency_ns + int(draw)


@dataclass
class Line:
    """One direction of a link, which carries one transfer after the other."""

    rate: int | None
    free_ns: int = 0

    def carry(self, now_ns: int, bits: int) -> int:
        """When the last bit of a transfer has left that is wanted now."""
        self.free_ns = end_of(max(now_ns, self.free_ns), bits, self.rate)
        return self.free_ns


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A transfer through a shared link: when it may start, its bits, and what its own link allows."""

    start_ns: int
    bits: int
    rate: int | None


@dataclass
class _Group:
    """The flows under way whose own links are equally fast: they have one rate, and so end in the order of `target`."""

    most: int  # what their own links allow, scaled
    served: int = 0  # how much each of them has been given since the group began
    flows: list[tuple[int, int]] = field(default_factory=list)  # a heap of targets, and which flow has it


def fair_ends(flows: Sequence[Flow], capacity: int | None) -> list[int]:
    """When each flow's last bit has left a link that all share max-min fairly; each alone where nothing limits it."""
    if capacity is None:
        return [end_of(flow.start_ns, flow.bits, flow.rate) for flow in flows]
    ends = [flow.start_ns for flow in flows]
    waiting = sorted((number for number, flow in enumerate(flows) if flow.bits), key=lambda n: -flows[n].start_ns)
    groups: dict[int, _Group] = {}
    now = 0
    while waiting or groups:
        if not groups:
            now = max(now, flows[waiting[-1]].start_ns)
        while waiting and flows[waiting[-1]].start_ns <= now:
            _begin(groups, flows[waiting[-1]], waiting.pop(), capacity)
        rates = _fair_rates(groups.values(), capacity)
        until = min(now - (-(group.flows[0][0] - group.served) // rates[most]) for most, group in groups.items())
        if waiting:
            until = min(until, flows[waiting[-1]].start_ns)
        for most, group in groups.items():
            group.served += rates[most] * (until - now)
        now = until
        for group in list(groups.values()):
            _end(groups, group, now, ends)
    return ends


def _begin(groups: dict[int, _Group], flow: Flow, number: int, capacity: int) -> None:
    most = SCALE * (capacity if flow.rate is None else min(flow.rate, capacity))
    group = groups.setdefault(most, _Group(most))
    heappush(group.flows, (group.served + flow.bits * SECOND_NS * SCALE, number))


def _end(groups: dict[int, _Group], group: _Group, now: int, ends: list[int]) -> None:
    while group.flows and group.flows[0][0] <= group.served:
        ends[heappop(group.flows)[1]] = now
    if not group.flows:
        del groups[group.most]


def _fair_rates(groups: Iterable[_Group], capacity: int) -> dict[int, int]:
    """The rate of each flow of a group, scaled: its own link's, or the share that is left for those who could more."""
    ordered = sorted(groups, key=lambda group: group.most)
    left, count = capacity * SCALE, sum(len(group.flows) for group in ordered)
    rates = {}
    for group in ordered:
        rates[group.most] = min(group.most, left // count)
        if group.most <= left // count:
            left -= group.most * len(group.flows)
            count -= len(group.flows)
    return rates
