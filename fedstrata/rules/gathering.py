"""The updates that a parent gathers in one round, stream by stream.

A stream is a set of values that are averaged over the same devices. The routes of a child define the streams that get
its values. The parent's rule makes one `Total` per stream. `Gathering` passes the values of each stream to its `Total`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

from fedstrata.errors import PayloadError
from fedstrata.rules.base import Rule, Total, Values
from fedstrata.rules.mean import exact
from fedstrata.rules.weighing import AS_STATED, Weighing


@dataclass(frozen=True, kw_only=True)
class Route:
    """Define to which stream a range of a child's payload is added, at which position, and with which weight."""

    place: slice  # range of values in the payload
    stream: int
    offset: int  # position in the stream's vector
    weight: int = 0  # at an LPS of several streams: the child's weight in the stream, by the plan


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Hold, for each child of a round, the streams to which its values are added, and its weights."""

    sizes: Sequence[int]  # number of values of each stream
    most: Sequence[int]  # the largest sum of all children's weights in each stream
    routes: Mapping[str, Sequence[Route]]  # by child, the routes of its values
    allowed: Mapping[str, Sequence[range]]  # by child, the weights that it may state
    expected: Callable[[str], str]  # returns the weights that a child may state, in words
    planned: Mapping[str, Sequence[int]] = field(default_factory=dict)  # weights in each stream, if not as stated

    def check(self, child_id: str, stated: Sequence[int]) -> None:
        """Raise PayloadError if the child cannot have the weights that it states in its update."""
        allowed = self.allowed[child_id]
        if len(stated) != len(allowed) or not all(map(range.__contains__, allowed, stated)):
            raise PayloadError(f"{child_id} states the weights {list(stated)[:8]}; expected {self.expected(child_id)}")

    def weights(self, child_id: str, stated: Sequence[int]) -> Sequence[int]:
        """Return the child's weight in each stream."""
        if self.planned:
            return self.planned[child_id]
        return stated if len(stated) == len(self.sizes) else [*stated] * len(self.sizes)


class Gathering:
    """Gather the updates of one round."""

    def __init__(
        self,
        rule: Rule,
        shares: Shares,
        folder: Path,
        *,
        whole: Sequence[int] = (),
        counts: Sequence[bool] = (),
        weighing: Weighing = AS_STATED,
    ) -> None:
        """Set the parent's rule, the children's shares, and a folder for values that do not stay in memory.

        `whole` has the weight of all devices in each stream; empty means that all take part. `counts` says in which
        streams absent devices count in the mean; empty means in none. `weighing` has the factors of the weights.
        """
        self._shares = shares
        self._weighing = weighing
        self.sizes = shares.sizes
        self.counts = counts or [False] * len(shares.sizes)  # whether absent devices count in each stream's mean
        self._whole = whole
        self._counted = (
            [weight * counts for weight, counts in zip(whole, counts, strict=True)]
            if counts
            else [0] * len(shares.sizes)
        )
        most = [weighing.largest(max(each)) for each in zip(shares.most, self._counted, strict=True)]
        self.totals = [
            rule.in_stream(stream).total(size, max(1, limit), folder)
            for stream, (size, limit) in enumerate(zip(shares.sizes, most, strict=True))
        ]
        self.accepted: dict[str, Sequence[int]] = {}  # weights in each stream, by accepted child

    @property
    def weights(self) -> list[int]:
        """The total weight of all accepted children in each stream."""
        return [total.num_examples for total in self.totals]

    @property
    def examples(self) -> list[int]:
        """The number of examples for which the combined update of each stream stands."""
        return [self._weighing.examples(self._stated(each), weight) for each, weight in enumerate(self.weights)]

    @property
    def taking_part(self) -> list[float]:
        """The accepted children's share in the weight of all devices, for each stream."""
        if not self._whole:
            return [1.0] * len(self.totals)
        return [total.num_examples / (whole or 1) for total, whole in zip(self.totals, self._whole, strict=True)]

    @property
    def factors(self) -> dict[str, float]:
        """The factor of each child's update, if the rule chooses factors; otherwise empty. With several streams, this
        is the mean of the child's factors, weighted by the sizes of the streams.
        """
        of_child: dict[str, list[tuple[int, float]]] = {}
        for size, total in zip(self.sizes, self.totals, strict=True):
            for child_id, factor in total.factors.items() if size else ():
                of_child.setdefault(child_id, []).append((size, factor))
        return {
            child_id: sum(size * factor for size, factor in found) / sum(size for size, _ in found)
            for child_id, found in sorted(of_child.items())
        }

    def check(self, child_id: str, stated: Sequence[int]) -> None:
        """Check the weights that a child states. Raises PayloadError if they are impossible for this child."""
        self._shares.check(child_id, stated)

    def take(self, child_id: str, start: int, values: Values, stated: Sequence[int]) -> None:
        """Take the next values of a payload. `start` is the position of the first value in the payload.

        Raises:
            PayloadError: a value is refused.
        """
        stop, weights = start + len(values), self._weighed(child_id, stated)
        for route in self._shares.routes[child_id]:
            first, last = max(start, route.place.start), min(stop, route.place.stop)
            if first < last:
                at = route.offset + first - route.place.start
                here = values[first - start : last - start]
                self.totals[route.stream].take(child_id, at, here, weights[route.stream])

    def accept(self, child_id: str, stated: Sequence[int]) -> None:
        """Accept a child's update, after its whole payload was taken."""
        self.accepted[child_id] = weights = self._weighed(child_id, stated)
        for total, weight in zip(self.totals, weights, strict=True):
            if weight:
                total.accept(child_id, weight)

    def _weighed(self, child_id: str, stated: Sequence[int]) -> Sequence[int]:
        factor, weights = self._weighing.factor(child_id), self._shares.weights(child_id, stated)
        return weights if factor == 1 else [factor * weight for weight in weights]

    def forget(self, child_id: str) -> bool:
        """Remove a child's values, and return True. If a total cannot do this, return False. The caller must then
        `clear` everything.
        """
        if not all(total.forget(child_id) for total in self.totals):
            return False
        self.accepted.pop(child_id, None)
        return True

    def clear(self) -> None:
        """Remove all values."""
        self.accepted.clear()
        for total in self.totals:
            total.clear()

    async def settle(self) -> None:
        """Finish the computation of the round, after the last update. If absent devices count in the mean of a stream,
        or the divisor of a stream is larger than the sum of its weights, add zeros. Raises the errors of
        `Total.settle`.
        """
        for number, total in enumerate(exact(self.totals)):
            stated, weighed = self._stated(number), total.num_examples
            whole = self._whole[number] if self._whole else stated
            least = max(self._counted[number], self._weighing.divisor(stated, weighed, whole))
            if total.num_examples < least:
                total.add_zeros(least - total.num_examples)
        waiting = [total for total in self.totals if not total.is_settled]
        if waiting:
            await asyncio.to_thread(_settle, waiting)

    def _stated(self, stream: int) -> int:
        """Return the sum of the weights that accepted children have stated in a stream."""
        accepted = self.accepted.items()
        return sum(weights[stream] // self._weighing.factor(child_id) for child_id, weights in accepted)


def _settle(totals: Sequence[Total]) -> None:
    for total in totals:
        total.settle()


def _in_order(sizes: Sequence[int]) -> list[Route]:
    """Return the routes of a payload that has all streams, one after another."""
    places = pairwise(accumulate(sizes, initial=0))
    return [Route(place=slice(start, stop), stream=number, offset=0) for number, (start, stop) in enumerate(places)]


def of_updates(rule: Rule, size: int, most: Mapping[str, int], folder: Path) -> Gathering:
    """Return an object that gathers one vector of `size` values from each child. `most` maps the id of a child to the
    largest number of examples that the child may state.
    """
    return of_parts(rule, [size], most, folder)


def of_parts(
    rule: Rule,
    sizes: Sequence[int],
    most: Mapping[str, int],
    folder: Path,
    *,
    whole: Sequence[int] = (),
    counts: Sequence[bool] = (),
    weighing: Weighing = AS_STATED,
) -> Gathering:
    """Return an object that gathers one vector from each child, like `of_updates`. The vector consists of streams with
    these sizes, one after another. `whole`, `counts` and `weighing` are described in `Gathering`.
    """
    shares = Shares(
        sizes=sizes,
        most=[sum(most.values())] * len(sizes),
        routes=dict.fromkeys(most, _in_order(sizes)),
        allowed={child: [range(1, limit + 1)] for child, limit in most.items()},
        expected=lambda child: f"one, from 1 to {most[child]}",
    )
    return Gathering(rule, shares, folder, whole=whole, counts=counts, weighing=weighing)


def routed_shares(sizes: Sequence[int], routes: Mapping[str, Sequence[Route]], examples: Mapping[str, int]) -> Shares:
    """Return the shares of an LPS's devices in several streams. `sizes` has the size of each stream. `routes` maps each
    device's id to its routes in the plan, and `examples` maps the id to the device's number of examples.
    """
    by_stream = {child: {route.stream: route.weight for route in found} for child, found in routes.items()}
    planned = {child: [found.get(each, 0) for each in range(len(sizes))] for child, found in by_stream.items()}
    return Shares(
        sizes=sizes,
        most=[sum(weights[each] for weights in planned.values()) for each in range(len(sizes))],
        routes=routes,
        allowed={child: [range(count, count + 1)] for child, count in examples.items()},
        expected=lambda child: f"one, {examples[child]}",
        planned=planned,
    )


def of_streams(rule: Rule, sizes: Sequence[int], most: Mapping[str, Sequence[int]], folder: Path) -> Gathering:
    """Return an object that gathers several streams at the GPS. `most` maps the id of an LPS to the largest weight that
    this LPS may state for each stream.
    """
    shares = Shares(
        sizes=sizes,
        most=[sum(weights[each] for weights in most.values()) for each in range(len(sizes))],
        routes=dict.fromkeys(most, _in_order(sizes)),
        allowed={lps_id: [range(limit + 1) for limit in weights] for lps_id, weights in most.items()},
        expected=lambda lps_id: f"at most {list(most[lps_id])[:8]}",
    )
    return Gathering(rule, shares, folder, whole=shares.most)
