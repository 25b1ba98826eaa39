"""The virtual clock at a parent: what a round of its children takes, from bytes that were serialised and modelled work.

An LPS works out its devices' part of an LPS round, the GPS the LPSs' part of a global round; both in nanoseconds since
training began. Only a round's own transfers count: what had to be sent again after a fault does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from fedstrata.clock.calendar import DEVICE_LINK, DOWN, LPS_ASKED, LPS_LINK, UP, Flow
from fedstrata.clock.course import AnyLink, LinkCourses
from fedstrata.clock.round import (
    LAST_NS,
    Beside,
    Child,
    Exchanged,
    Way,
    answers_of,
    answers_there,
    check_clock_at,
    flow_of,
    latency_of,
    models_there,
    round_times,
    updates_of,
    ways_asked,
    ways_of,
)
from fedstrata.errors import PayloadError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import SharedRates
from fedstrata.experiment.rates import end_of
from fedstrata.methods import Moment, make_method
from fedstrata.streams.streams import asks_in_training
from fedstrata.v1 import rounds_pb2 as pb

__all__ = ["Beside", "DeviceTimeline", "Exchanged", "LpsTimeline"]

SPREAD, EXPONENTIAL = 0x73707264, 0x6578706F  # "sprd", "expo": tell these draws from all others
NOBODY = Beside()


class DeviceTimeline:
    """How long LPS rounds take."""

    def __init__(self, experiment: Experiment) -> None:
        self._seed = experiment.seed
        courses = LinkCourses(experiment)
        self._common, self._links = courses.of_devices()
        self._drawn: dict[int, AnyLink] = {}
        self.shared = courses.shared()
        self._compute = experiment.compute
        self._factors = self._compute.factors() if self._compute is not None else {}
        self._per_example: dict[int, Fraction] = {}
        self._answers_trained = asks_in_training(make_method(experiment)) is Moment.TRAINED

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

    def answering_ns(self, index: int, lps_round: int, examples: int) -> int:
        """How long a device takes for its answer in an LPS round that it has trained on so many examples for."""
        if self._answers_trained:
            return self.compute_ns(index, lps_round, examples)
        return self.training_ns(index, examples)

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
            Child(
                name=name, link=self.link(indexes[name]), index=indexes[name], busy_ns=0, exchanged=each,
                free_ns=free.get(name, 0),
            )
            for name, each in sorted(offered.items())
        ]  # fmt: skip
        there = models_there(children, begins_ns, self.address(lps_round), self.shared)
        return {child.name: at_ns for child, at_ns in zip(children, there, strict=True)}

    def answered_ns(
        self,
        lps_round: int,
        begins_ns: int,
        asked: Mapping[str, Exchanged],
        indexes: Mapping[str, int],
        *,
        free: Mapping[str, int] | None = None,
        there: Mapping[str, int] | None = None,
    ) -> int:
        """When the last answer in an LPS round is at the LPS; `asked` has what went to and fro for answers alone.

        Raises:
            RunStoppedError: in more than 73 years.
        """
        children = self.children(lps_round, asked, indexes, free)
        address = self.address(lps_round)
        had = self._had(children, begins_ns, address, there)
        answered_ns = max(answers_there(children, had, address, self.shared), default=begins_ns)
        check_clock_at(answered_ns)
        return answered_ns

    def address(self, lps_round: int) -> list[int]:
        """Of an LPS round's draws."""
        return [self._seed, DEVICE_LINK, lps_round]

    def children(
        self,
        lps_round: int,
        exchanged: Mapping[str, Exchanged],
        indexes: Mapping[str, int],
        free: Mapping[str, int] | None,
    ) -> list[Child]:
        """The devices of a round by name."""
        children = []
        for name, each in sorted(exchanged.items()):
            index, work = indexes[name], each.work
            busy_ns = self.compute_ns(index, lps_round, work.examples)
            first_ns = self.answering_ns(index, lps_round, work.answer_examples)
            child = Child(
                name=name, link=self.link(index), index=index, busy_ns=busy_ns, exchanged=each,
                free_ns=(free or {}).get(name, 0), first_ns=first_ns,
            )  # fmt: skip
            children.append(child)
        return children

    def _had(
        self, children: Sequence[Child], begins_ns: int, address: Sequence[int], there: Mapping[str, int] | None
    ) -> list[int]:
        """When each child has its model, unless `there` says so."""
        if there is None:
            return models_there(children, begins_ns, address, self.shared)
        return [there[child.name] for child in children]

    def missed(
        self,
        lps_round: int,
        begins_ns: int,
        index: int,
        exchanged: Exchanged,
        *,
        free_ns: int,
        there_ns: int,
        goes_on_ns: int | None = None,
    ) -> tuple[int, pb.Flow]:
        """When an update is back, by its device's own link, and what its way was: of one that may miss a deadline.

        Raises:
            PayloadError: in more than 73 years; whoever says so is refused.
        """
        children = self.children(lps_round, {"": exchanged}, {"": index}, {"": free_ns})
        (child,), address = children, self.address(lps_round)
        (way,) = self.ways(children, begins_ns, [there_ns], address, goes_on_ns)
        latency_ns = latency_of(child.link, way.ready_ns, address, index, UP)
        back_ns = end_of(way.ready_ns, 8 * exchanged.up_bytes, child.link.course("up")) + latency_ns
        check_ever(max(back_ns, child.busy_ns + way.up_ns), exchanged.work)
        return back_ns, flow_of(child, begins_ns, way.down_ns, way.up_ns + back_ns - way.ready_ns)

    def missed_answer(
        self, lps_round: int, begins_ns: int, index: int, exchanged: Exchanged, *, free_ns: int, there_ns: int
    ) -> tuple[int, pb.Flow]:
        """The same of an answer; `exchanged` has what went to and fro for it alone. Raises PayloadError likewise."""
        children = self.children(lps_round, {"": exchanged}, {"": index}, {"": free_ns})
        (child,) = children
        (at_ns,) = answers_there(children, [there_ns], self.address(lps_round), self.shared)
        check_ever(at_ns, exchanged.work)
        only = replace(child, busy_ns=child.first_ns)
        return at_ns, flow_of(only, begins_ns, there_ns - begins_ns, at_ns - there_ns - child.first_ns)

    def ways(
        self,
        children: Sequence[Child],
        begins_ns: int,
        had: Sequence[int],
        address: Sequence[int],
        goes_on_ns: int | None,
        *,
        beside: Sequence[Flow] = (),
    ) -> list[Way]:
        """Of devices that have the model, as they are about to send their updates; `beside` are others' answers."""
        if goes_on_ns is None:
            return ways_of(children, begins_ns, had)
        answered = answers_there(children, had, address, self.shared, beside=beside)
        return ways_asked(children, begins_ns, had, answered, address=address, goes_on_ns=goes_on_ns)

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
        goes_on_ns: int | None = None,
        beside: Beside = NOBODY,
    ) -> pb.RoundTimes:
        """An LPS round, of what went between the LPS and its devices; `indexes` are theirs.

        `free` says from when on those listen that are not there as it begins. With a deadline `there` says when each
        had the model, and `ends_ns` when the round ended for those who are late. With a question `goes_on_ns` says when
        the LPS has heard of the plan. `beside` are those who were on a shared link up, and for whom `there` is said.
        """
        mine, address = self.children(lps_round, exchanged, indexes, free), self.address(lps_round)
        others = self.children(lps_round, beside.updates, indexes, free)
        asked = self.children(lps_round, beside.answers, indexes, free)
        had, had_beside, had_asked = (self._had(each, begins_ns, address, there) for each in (mine, others, asked))
        ways = self.ways(
            [*mine, *others], begins_ns, [*had, *had_beside], address, goes_on_ns, beside=answers_of(asked, had_asked)
        )
        uploads = updates_of(others, ways[len(mine) :])
        return round_times(mine, begins_ns, ways[: len(mine)], address, self.shared, ends_ns=ends_ns, beside=uploads)


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
        return sent + latency_of(link, begins_ns, address, number, DOWN)

    def bundled_ns(self, cluster_id: str, global_round: int, answered_ns: int, bundle_bytes: int) -> int:
        """When the answers of an LPS's devices are at the GPS, the last of which is at the LPS at a time."""
        number = _number(cluster_id)
        link, address = self._link(number), [self._seed, LPS_ASKED, global_round]
        sent = end_of(answered_ns, 8 * bundle_bytes, link.course("up"))
        return sent + latency_of(link, answered_ns, address, number, UP)

    def told_ns(self, cluster_id: str, global_round: int, planned_ns: int) -> int:
        """When an LPS has heard of the plan that is made of the answers in a global round: a latency later."""
        number = _number(cluster_id)
        address = [self._seed, LPS_ASKED, global_round]
        return planned_ns + latency_of(self._link(number), planned_ns, address, number, DOWN)

    def round(self, global_round: int, begins_ns: int, exchanged: Mapping[str, Exchanged]) -> pb.RoundTimes:
        """A global round, of what went between the GPS and the LPSs, by cluster."""
        children = [
            Child(
                name=name, link=self._link(number := _number(name)), index=number, busy_ns=each.work.busy_ns,
                exchanged=each,
            )
            for name, each in sorted(exchanged.items())
        ]  # fmt: skip
        address, shared = [self._seed, LPS_LINK, global_round], SharedRates()
        ways = ways_of(children, begins_ns, models_there(children, begins_ns, address, shared))
        return round_times(children, begins_ns, ways, address, shared)


def check_ever(back_ns: int, work: pb.Work) -> None:
    """Raise PayloadError where work is not done before the clock ends."""
    if back_ns >= LAST_NS:
        raise PayloadError(f"trained on {work.examples} examples, which takes more than 73 years of the virtual clock")


def _number(cluster_id: str) -> int:
    return int(cluster_id.rpartition("-")[2])
