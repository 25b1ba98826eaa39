"""The virtual clock at a parent: what a round of its children takes, from bytes that were serialised and modelled work.

An LPS works out its devices' part of an LPS round, the GPS the LPSs' part of a global round; both in nanoseconds since
training began. Only a round's own transfers count: what had to be sent again after a fault does not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedstrata.errors import RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.link_calendar import DEVICE_LINK, DOWN, LPS_LINK, UP, Flow, drawn_latency, fair_ends
from fedstrata.link_course import AnyLink, AnyShared, LinkCourses
from fedstrata.link_rates import end_of
from fedstrata.link_settings import SharedRates
from fedstrata.v1 import rounds_pb2 as pb

SPREAD, EXPONENTIAL = 0x73707264, 0x6578706F  # "sprd", "expo": tell these draws from all others
LAST_NS = 1 << 61  # 73 years: where a timeline, or the sum of a round's times, ends before int64 does


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """What went between a parent and one child in a round, in bytes, and what the child says that it has done."""

    down_bytes: int
    up_bytes: int
    work: pb.Work
    stream: int = 0  # which of the round's models the child was sent


@dataclass(frozen=True, kw_only=True)
class _Child:
    """A child in a round: the address of its link's draws, and how long it is busy."""

    name: str
    link: AnyLink
    index: int
    busy_ns: int
    exchanged: Exchanged
    free_ns: int = 0  # from when on it listens


class DeviceTimeline:
    """How long LPS rounds take."""

    def __init__(self, experiment: Experiment) -> None:
        self._seed = experiment.seed
        courses = LinkCourses(experiment)
        self._common, self._links = courses.of_devices()
        self._drawn: dict[int, AnyLink] = {}
        self._shared = courses.shared()
        self._compute = experiment.compute
        self._factors = self._compute.factors() if self._compute is not None else {}
        self._per_example: dict[int, Fraction] = {}

    def link(self, index: int) -> AnyLink:
        """The link of a device."""
        if index not in self._drawn:
            self._drawn[index] = self._links.get(index, self._common).drawn([self._seed, DEVICE_LINK, index])
        return self._drawn[index]

    def compute_ns(self, index: int, lps_round: int, examples: int) -> int:
        """How long a device computes in an LPS round whose training goes through so many examples."""
        compute = self._compute
        if compute is None:
            return 0
        busy = self.training_ns(index, examples) + (compute.minimum or 0)
        if compute.exponential is not None:
            draws = np.random.default_rng([self._seed, EXPONENTIAL, lps_round, index])
            busy += round(draws.exponential(compute.exponential))
        return busy

    def training_ns(self, index: int, examples: int) -> int:
        """How long a device takes to train on so many examples alone."""
        if self._compute is None or self._compute.per_example is None:
            return 0
        if index not in self._per_example:
            self._per_example[index] = self._compute.per_example * self._factor(index)
        return round(self._per_example[index] * examples)

    def _factor(self, index: int) -> Fraction:
        """How many times as long as the reference a device takes; to a millionth, which no machine rounds otherwise."""
        factor = self._factors.get(index, 1.0)
        if self._compute is not None and self._compute.spread is not None:
            normal = np.random.default_rng([self._seed, SPREAD, index]).standard_normal()
            factor *= float(np.exp(self._compute.spread.lognormal * normal))
        return Fraction(round(factor * 10**6), 10**6)

    def arrivals(
        self,
        lps_round: int,
        begins_ns: int,
        offered: Mapping[str, Exchanged],
        free: Mapping[str, int],
        indexes: Mapping[str, int],
    ) -> dict[str, int]:
        """When each device has an LPS round's model; `free` says from when on those listen that are still busy."""
        children = [
            _Child(
                name=name, link=self.link(indexes[name]), index=indexes[name], busy_ns=0, exchanged=each,
                free_ns=free.get(name, 0),
            )
            for name, each in sorted(offered.items())
        ]  # fmt: skip
        there = _there(children, begins_ns, [self._seed, DEVICE_LINK, lps_round], self._shared)
        return {child.name: at_ns for child, at_ns in zip(children, there, strict=True)}

    def back_ns(self, lps_round: int, index: int, there_ns: int, work: pb.Work, up_bytes: int) -> int:
        """When the update of a device is at its LPS, by its own link, that has the model at a time."""
        link, ready_ns = self.link(index), there_ns + self.compute_ns(index, lps_round, work.examples)
        latency_ns = _latency(link, ready_ns, [self._seed, DEVICE_LINK, lps_round], index, UP)
        return end_of(ready_ns, 8 * up_bytes, link.course("up")) + latency_ns

    def missed(
        self, lps_round: int, begins_ns: int, index: int, exchanged: Exchanged, *, free_ns: int, there_ns: int
    ) -> tuple[int, pb.Flow]:
        """When an update is back, by its device's own link, and what its way was: of one that may miss a deadline."""
        busy_ns = self.compute_ns(index, lps_round, exchanged.work.examples)
        back_ns = self.back_ns(lps_round, index, there_ns, exchanged.work, exchanged.up_bytes)
        child = _Child(
            name="", link=self.link(index), index=index, busy_ns=busy_ns, exchanged=exchanged, free_ns=free_ns
        )
        return back_ns, _flow(child, begins_ns, there_ns - begins_ns, back_ns - there_ns - busy_ns)

    def round(
        self,
        lps_round: int,
        begins_ns: int,
        exchanged: Mapping[str, Exchanged],
        indexes: Mapping[str, int],
        *,
        free: Mapping[str, int] | None = None,
        there: Mapping[str, int] | None = None,
        ends_ns: int | None = None,
    ) -> pb.RoundTimes:
        """An LPS round, of what went between the LPS and its devices; `indexes` are theirs.

        `free` says from when on those listen that are not there as it begins. With a deadline `there` says when each
        had the model, and `ends_ns` when the round ended for those who are late.
        """
        children = [
            _Child(
                name=name,
                link=self.link(indexes[name]),
                index=indexes[name],
                busy_ns=self.compute_ns(indexes[name], lps_round, each.work.examples),
                exchanged=each,
                free_ns=(free or {}).get(name, 0),
            )
            for name, each in exchanged.items()
        ]
        address = [self._seed, DEVICE_LINK, lps_round]
        return _round_times(children, begins_ns, address, self._shared, there=there, ends_ns=ends_ns)


class LpsTimeline:
    """How long global rounds take, and when a model is at an LPS."""

    def __init__(self, experiment: Experiment) -> None:
        self._seed = experiment.seed
        self._courses = LinkCourses(experiment)
        self._links: dict[int, AnyLink] = {}

    def _link(self, number: int) -> AnyLink:
        if number not in self._links:
            self._links[number] = self._courses.of_lps(number).drawn([self._seed, LPS_LINK, number])
        return self._links[number]

    def arrival_ns(self, cluster_id: str, global_round: int, begins_ns: int, payload_bytes: int) -> int:
        """When the model of a global round that begins at a time is at the LPS of a cluster."""
        number = _number(cluster_id)
        link, address = self._link(number), [self._seed, LPS_LINK, global_round]
        sent = end_of(begins_ns, 8 * payload_bytes, link.course("down"))
        return sent + _latency(link, begins_ns, address, number, DOWN)

    def round(self, global_round: int, begins_ns: int, exchanged: Mapping[str, Exchanged]) -> pb.RoundTimes:
        """A global round, of what went between the GPS and the LPSs, by cluster."""
        children = [
            _Child(
                name=name, link=self._link(number := _number(name)), index=number, busy_ns=each.work.busy_ns,
                exchanged=each,
            )
            for name, each in exchanged.items()
        ]  # fmt: skip
        return _round_times(children, begins_ns, [self._seed, LPS_LINK, global_round], SharedRates())


def _number(cluster_id: str) -> int:
    return int(cluster_id.rpartition("-")[2])


def _latency(link: AnyLink, start_ns: int, address: Sequence[int], index: int, direction: int) -> int:
    """The latency of a transfer that starts at a time."""
    now = link.at(start_ns)
    return drawn_latency(now.latency, now.jitter, [*address, index, direction])


def _there(children: Sequence[_Child], begins_ns: int, address: Sequence[int], shared: AnyShared) -> list[int]:
    """When each child has its model."""
    return [
        end + _latency(child.link, max(begins_ns, child.free_ns), address, child.index, DOWN)
        if child.exchanged.down_bytes
        else end
        for child, end in zip(children, _sent(children, begins_ns, shared), strict=True)
    ]


def _round_times(
    children: Iterable[_Child],
    begins_ns: int,
    address: Sequence[int],
    shared: AnyShared,
    *,
    there: Mapping[str, int] | None = None,
    ends_ns: int | None = None,
) -> pb.RoundTimes:
    """A round in which every child fetches, works and sends; it ends as the last update arrives, or at a time."""
    children = sorted(children, key=lambda child: child.name)
    had = _there(children, begins_ns, address, shared) if there is None else [there[child.name] for child in children]
    ready = [arrival + child.busy_ns for child, arrival in zip(children, had, strict=True)]
    uploads = [
        Flow(start_ns=start, bits=8 * child.exchanged.up_bytes, rate=child.link.course("up"))
        for child, start in zip(children, ready, strict=True)
    ]
    back = [
        end + _latency(child.link, upload.start_ns, address, child.index, UP)
        for child, upload, end in zip(children, uploads, fair_ends(uploads, shared.up_rate), strict=True)
    ]
    ends_ns = max(back, default=begins_ns) if ends_ns is None else ends_ns
    if ends_ns >= LAST_NS or (ends_ns - begins_ns) * len(back) >= LAST_NS:
        raise RunStoppedError(
            "the virtual clock passes 73 years, or a round's waits together do; raise the rates of links"
        )
    return pb.RoundTimes(
        begins_ns=begins_ns,
        ends_ns=ends_ns,
        ready_ns=ends_ns,
        down_ns=sum(had) - begins_ns * len(had),
        compute_ns=sum(child.busy_ns for child in children),
        up_ns=sum(back) - sum(ready),
        waiting_ns=ends_ns * len(back) - sum(back),
        children=len(children),
        slowest=next((child.name for child, at in zip(children, back, strict=True) if at == max(back)), ""),
        flows=[
            _flow(child, begins_ns, at - begins_ns, over - start)
            for child, at, start, over in zip(children, had, ready, back, strict=True)
        ],
    )


def _flow(child: _Child, begins_ns: int, down_ns: int, up_ns: int) -> pb.Flow:
    """What a round was worked out from, of one child, and how long its parts took."""
    had = child.exchanged
    return pb.Flow(
        child=child.index,
        down_bytes=had.down_bytes,
        up_bytes=had.up_bytes,
        examples=had.work.examples,
        stream=had.stream,
        down_ns=down_ns,
        compute_ns=child.busy_ns,
        up_ns=up_ns,
        away_ns=max(0, child.free_ns - begins_ns),
    )


def _sent(children: Sequence[_Child], begins_ns: int, shared: AnyShared) -> list[int]:
    """When the last bit of each child's model has left its parent; a broadcast is over for all at once."""
    flows = [
        Flow(start_ns=max(begins_ns, each.free_ns), bits=8 * each.exchanged.down_bytes, rate=each.link.course("down"))
        for each in children
    ]
    if not shared.broadcast:
        return fair_ends(flows, shared.down_rate)
    alone = fair_ends(flows, None)
    bits = {child.exchanged.stream: 0 for child in children}
    for child, flow in zip(children, flows, strict=True):
        bits[child.exchanged.stream] = max(bits[child.exchanged.stream], flow.bits)
    begins_ns = min((flow.start_ns for flow in flows), default=begins_ns)
    streams = [Flow(start_ns=begins_ns, bits=size, rate=None) for size in bits.values()]
    over = dict(zip(bits, fair_ends(streams, shared.down_rate), strict=True))
    return [max(end, over[child.exchanged.stream]) for child, end in zip(children, alone, strict=True)]
