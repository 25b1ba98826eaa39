"""When transfers start, end and arrive on links: pure, in whole nanoseconds and whole bits.

Nothing here waits or looks at a clock, and nothing depends on the order in which transfers are given.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from fedstrata.experiment.quantities import FASTEST
from fedstrata.experiment.rates import SECOND_NS, AnyRate, end_of, rate_at

SCALE = 1 << 32  # of rates in a shared link: a fair share is rounded down to so small a part of a bit a second
JITTER = 0x6A697474  # "jitt": tells these draws from all others
# of whose round, or of what before training or asked in a round, a draw is, in its address
DEVICE_LINK, LPS_LINK, BEFORE, DEVICE_ASKED, LPS_ASKED = 0, 1, 2, 3, 4
DOWN, UP = 0, 1
WHOLE_LINK = -1  # in place of a flow's number


def drawn_latency(latency_ns: int, jitter_ns: int, address: Sequence[int]) -> int:
    """A transfer's latency: evenly from as much below as above, by the address of seed, link, round and direction."""
    if not jitter_ns:
        return latency_ns
    draw = np.random.default_rng([address[0], JITTER, *address[1:]]).integers(-jitter_ns, jitter_ns, endpoint=True)
    return latency_ns + int(draw)


@dataclass
class Line:
    """One direction of a link, which carries one transfer after the other."""

    rate: AnyRate
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
    rate: AnyRate


@dataclass
class _Group:
    """The flows under way whose own links are equally fast: they have one rate, and so end in the order of `target`."""

    most: int  # what their own links allow, scaled
    served: int = 0  # how much each of them has been given since the group began
    flows: list[tuple[int, int]] = field(default_factory=list)  # a heap of targets, and which flow has it


@dataclass
class _UnderWay:
    """A flow in a shared link."""

    group: _Group
    since: int  # what the group had been given as the flow began, or would have been
    marks: Sequence[int]  # in bits, ascending, the last its end
    passed: int = 0  # how many of them

    @property
    def target(self) -> int:
        """What the group will have been given when the next mark is passed."""
        return self.since + self.marks[self.passed] * SECOND_NS * SCALE


class FairLink:
    """A link that all flows under way share max-min fairly; who begins and who gives up is told as it happens."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._now = 0
        self._groups: dict[int, _Group] = {}
        self._flows: dict[int, _UnderWay] = {}
        self._rates: dict[int, int] | None = None  # by group, scaled; None: to be worked out

    def begin(self, number: int, marks: Sequence[int], rate: int | None) -> None:
        """Let a flow begin now, whose own link has this rate; `marks` are bits at which its passing is noted."""
        group = self._group(rate)
        self._enter(number, _UnderWay(group, group.served, marks))

    def change(self, number: int, rate: int | None) -> None:
        """Let the own link of a flow, if it is under way, have another rate from now on."""
        flow = self._flows.get(number)
        if flow is not None:
            served = flow.group.served - flow.since
            self._leave(number, flow)
            flow.group = self._group(rate)
            flow.since = flow.group.served - served
            self._enter(number, flow)

    def resize(self, capacity: int) -> None:
        """Let the link have another rate from now on."""
        self._capacity, self._rates = capacity, None

    def drop(self, number: int) -> None:
        """Let a flow go before its end, if it is under way; the others share what it leaves."""
        flow = self._flows.pop(number, None)
        if flow is not None:
            self._leave(number, flow)

    def has(self, number: int) -> bool:
        """Whether a flow is under way."""
        return number in self._flows

    def carried(self, number: int) -> int:
        """How many whole bits of a flow under way have gone over the link."""
        flow = self._flows[number]
        return (flow.group.served - flow.since) // (SECOND_NS * SCALE)

    def _group(self, rate: int | None) -> _Group:
        most = SCALE * (FASTEST if rate is None else rate)
        return self._groups.setdefault(most, _Group(most))

    def _enter(self, number: int, flow: _UnderWay) -> None:
        self._flows[number] = flow
        heappush(flow.group.flows, (flow.target, number))
        self._rates = None

    def _leave(self, number: int, flow: _UnderWay) -> None:
        flow.group.flows = [each for each in flow.group.flows if each[1] != number]
        heapify(flow.group.flows)
        self._rates = None
        self._forget_if_empty(flow.group)

    def next_ns(self) -> int | None:
        """When the next mark is passed if nothing changes before; None where no flow is under way, or none moves."""
        rates = self._rates_now()
        return min(
            (
                self._now - (-(group.flows[0][0] - group.served) // rates[most])
                for most, group in self._groups.items()
                if rates[most]
            ),
            default=None,
        )

    def advance(self, until_ns: int) -> list[tuple[int, int]]:
        """Let time go by, not backwards; gives the flows that have passed a mark, in order, and when."""
        passed: list[tuple[int, int]] = []
        while (at_ns := self.next_ns()) is not None and at_ns <= until_ns:
            self._serve(at_ns)
            for group in list(self._groups.values()):
                self._pass_marks(group, passed)
        self._serve(max(self._now, until_ns))
        return passed

    def _serve(self, until_ns: int) -> None:
        if self._groups:
            rates = self._rates_now()
            for most, group in self._groups.items():
                group.served += rates[most] * (until_ns - self._now)
        self._now = until_ns

    def _pass_marks(self, group: _Group, passed: list[tuple[int, int]]) -> None:
        while group.flows and group.flows[0][0] <= group.served:
            _, number = heappop(group.flows)
            passed.append((number, self._now))
            flow = self._flows[number]
            flow.passed += 1
            if flow.passed < len(flow.marks):
                heappush(group.flows, (flow.target, number))
            else:
                del self._flows[number]
                self._rates = None
        self._forget_if_empty(group)

    def _forget_if_empty(self, group: _Group) -> None:
        if not group.flows:
            self._groups.pop(group.most, None)

    def _rates_now(self) -> dict[int, int]:
        if self._rates is None:
            self._rates = _fair_rates(self._groups.values(), self._capacity)
        return self._rates


def fair_ends(flows: Sequence[Flow], capacity: AnyRate) -> list[int]:
    """When each flow's last bit has left a link that all share max-min fairly; each alone where nothing limits it."""
    if capacity is None:
        return [end_of(flow.start_ns, flow.bits, flow.rate) for flow in flows]
    return _Sharing(flows, capacity).ends()


def carried_by(flows: Sequence[Flow], capacity: AnyRate, until_ns: int) -> list[tuple[int | None, int]]:
    """When each flow has left a link that all share, None where it has not by a time, and how many of its bits have."""
    return _Sharing(flows, capacity).carried_by(until_ns)


class _Sharing:
    """Flows through a shared link, from the first start to the last end."""

    def __init__(self, flows: Sequence[Flow], capacity: AnyRate) -> None:
        self._flows = flows
        self._capacity = capacity
        self._link = FairLink(0)
        self._changes = [(flow.start_ns, number) for number, flow in enumerate(flows) if flow.bits]
        self._to_begin = len(self._changes)
        if self._changes:
            self._changes.append((min(self._changes)[0], WHOLE_LINK))
        heapify(self._changes)
        self._begun: set[int] = set()

    def ends(self) -> list[int]:
        """When each flow has ended."""
        passed = self._go_through(None)
        while (next_ns := self._link.next_ns()) is not None:
            passed += self._link.advance(next_ns)
        ends = [flow.start_ns for flow in self._flows]
        for number, at_ns in passed:
            ends[number] = at_ns
        return ends

    def carried_by(self, until_ns: int) -> list[tuple[int | None, int]]:
        """When each flow has ended, None where it has not by a time, and its bits by then."""
        over = dict(self._go_through(until_ns) + self._link.advance(until_ns))
        found: list[tuple[int | None, int]] = []
        for number, flow in enumerate(self._flows):
            if number in over or (not flow.bits and flow.start_ns <= until_ns):
                found.append((over.get(number, flow.start_ns), flow.bits))
            else:
                found.append((None, self._link.carried(number) if self._link.has(number) else 0))
        return found

    def _go_through(self, until_ns: int | None) -> list[tuple[int, int]]:
        """Let happen what changes up to a time, or all that matters; gives the flows that have ended, and when."""
        passed: list[tuple[int, int]] = []
        while self._changes and (until_ns is None or self._changes[0][0] <= until_ns):
            at_ns, number = heappop(self._changes)
            passed += self._link.advance(at_ns)
            if not self._to_begin and len(passed) == len(self._begun):
                break
            self._change(at_ns, number)
        return passed

    def _change(self, at_ns: int, number: int) -> None:
        """Begin a flow, or let its own link, or the shared one, have another rate."""
        rate, next_ns = rate_at(self._capacity if number == WHOLE_LINK else self._flows[number].rate, at_ns)
        if number == WHOLE_LINK:
            self._link.resize(FASTEST if rate is None else rate)
        elif number not in self._begun:
            self._begun.add(number)
            self._to_begin -= 1
            self._link.begin(number, (self._flows[number].bits,), rate)
        elif self._link.has(number):
            self._link.change(number, rate)
        else:
            return
        if next_ns is not None:
            heappush(self._changes, (next_ns, number))


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
