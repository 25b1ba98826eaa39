"""The sums that a parent collects in one round: one vector for all children, or one vector per stream.

A stream is a set of values that are averaged over the same devices. The routes of a child define the streams to which
its values are added, and its weight in each stream.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.tensors.exact_sum import ExactSum

Values = NDArray[Any]  # float32 values, or partial sums in int64
Fold = Callable[[ExactSum, int, Any, int], None]  # called with a sum, the first position, values, and their weight


@dataclass(frozen=True, kw_only=True)
class Route:
    """Define where one range of a child's payload is added: the stream, the position in the stream, and the weight."""

    place: slice  # range of values in the payload
    stream: int
    offset: int  # position in the stream's vector
    weight: int


class Sums(Protocol):
    """Define the sums to which children's updates are added.

    `weights` are the numbers that a child states in its update: its number of examples, or one weight per stream.
    """

    def check(self, child_id: str, weights: Sequence[int]) -> None:
        """Check the weights that a child states. Raises PayloadError if they are impossible for this child."""

    def fold(self, child_id: str, start: int, values: Values, weights: Sequence[int]) -> None:
        """Add values of a payload. `start` is the position of the first value in the payload.

        Raises:
            PayloadError: a value is refused. Nothing is added.
        """

    def count(self, child_id: str, weights: Sequence[int]) -> None:
        """Add the child's weights to the total weights. This is called after the child's whole payload was added."""

    def clear(self) -> None:
        """Reset the sums to zero."""


class OneSum:
    """Sum the whole updates of all children in one vector. Each update is weighted by the child's number of
    examples.
    """

    def __init__(self, size: int, children: Mapping[str, int], fold: Fold = ExactSum.fold) -> None:
        """Set the length of the vector, and for each child the largest number of examples that it may state. `fold` is
        the function that adds values to a sum.
        """
        self._most = children
        self._fold = fold
        self.total = ExactSum(size, max(1, sum(children.values())))

    def check(self, child_id: str, weights: Sequence[int]) -> None:
        """Check that the child states one weight, from 1 up to its largest number of examples. Raises PayloadError if
        it does not.
        """
        if len(weights) != 1 or not 0 < weights[0] <= self._most[child_id]:
            raise PayloadError(
                f"{child_id} states the weights {list(weights)}; expected one, from 1 to {self._most[child_id]}"
            )

    def fold(self, child_id: str, start: int, values: Values, weights: Sequence[int]) -> None:
        """Add values of an update, weighted by the child's examples. `start` is the position of the first value in the
        update.
        """
        self._fold(self.total, start, values, weights[0])

    def count(self, child_id: str, weights: Sequence[int]) -> None:
        """Add the child's number of examples to the total number of examples."""
        self.total.count(weights[0])

    def clear(self) -> None:
        """Reset the sum to zero."""
        self.total.clear()

    @property
    def totals(self) -> Sequence[ExactSum]:
        """The sum, as a list of one."""
        return (self.total,)


class RoutedSums:
    """Sum several streams at an LPS. The plan gives each device routes, which say to which streams the device's update
    is added, and with which weights.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        routes: Mapping[str, Sequence[Route]],
        examples: Mapping[str, int],
        fold: Fold = ExactSum.fold,
    ) -> None:
        """Set the size of each stream, and the routes and the number of examples of each child.

        `fold` is the function that adds values to a sum.
        """
        self._fold = fold
        self._routes = routes
        self._examples = examples
        self._weights = {child: {route.stream: route.weight for route in found} for child, found in routes.items()}
        most = [sum(weights.get(stream, 0) for weights in self._weights.values()) for stream in range(len(sizes))]
        self.streams = [ExactSum(size, max(1, weight)) for size, weight in zip(sizes, most, strict=True)]
        self.counted: set[str] = set()

    @property
    def weights(self) -> list[int]:
        """The total weight of all children in each stream."""
        return [stream.num_examples for stream in self.streams]

    def weight(self, child_id: str, stream: int) -> int:
        """Return the weight of a child in a stream."""
        return self._weights[child_id].get(stream, 0)

    def check(self, child_id: str, weights: Sequence[int]) -> None:
        """Check that the child states the number of examples with which it enrolled. Raises PayloadError if it does
        not.
        """
        if list(weights) != [self._examples[child_id]]:
            raise PayloadError(
                f"{child_id} states the weights {list(weights)}; expected one, {self._examples[child_id]}"
            )

    def fold(self, child_id: str, start: int, values: Values, weights: Sequence[int]) -> None:
        """Add values of an update to every stream in the child's routes. `start` is the position of the first value in
        the update.
        """
        stop = start + len(values)
        for route in self._routes[child_id]:
            first, last = max(start, route.place.start), min(stop, route.place.stop)
            if first < last:
                at = route.offset + first - route.place.start
                self._fold(self.streams[route.stream], at, values[first - start : last - start], route.weight)

    def count(self, child_id: str, weights: Sequence[int]) -> None:
        """Add the child's weight in each stream of its routes to the total weight of the stream."""
        for stream, weight in self._weights[child_id].items():
            self.streams[stream].count(weight)
        self.counted.add(child_id)

    def clear(self) -> None:
        """Reset the sums to zero."""
        self.counted.clear()
        for stream in self.streams:
            stream.clear()

    @property
    def totals(self) -> Sequence[ExactSum]:
        """The sums of all streams."""
        return self.streams


class PartialSums:
    """Sum several streams at the GPS. For each stream, an LPS sends a sum or mean over its devices, and the total
    weight of these devices.
    """

    def __init__(self, sizes: Sequence[int], most: Mapping[str, Sequence[int]], *, is_exact: bool) -> None:
        """Set `most`, the largest weight of each LPS in each stream. If `is_exact` is true, LPSs send sums, otherwise
        means.
        """
        self._most = most
        self._is_exact = is_exact
        totals = [max(1, sum(weights[stream] for weights in most.values())) for stream in range(len(sizes))]
        self.streams = [ExactSum(size, total) for size, total in zip(sizes, totals, strict=True)]
        self._starts = [sum(sizes[:stream]) for stream in range(len(sizes) + 1)]

    def check(self, child_id: str, weights: Sequence[int]) -> None:
        """Check that the LPS states a weight for each stream, from 0 up to the weight of all its devices. Raises
        PayloadError if it does not.
        """
        most = self._most[child_id]
        if len(weights) != len(most) or not all(0 <= w <= m for w, m in zip(weights, most, strict=True)):
            raise PayloadError(f"{child_id} states the weights {list(weights)[:8]}; expected at most {list(most)[:8]}")

    def fold(self, child_id: str, start: int, values: Values, weights: Sequence[int]) -> None:
        """Add values from the payload of an LPS. The payload has the values of all streams, one stream after another.
        `start` is the position of the first given value in the payload.
        """
        stop = start + len(values)
        for number, stream in enumerate(self.streams):
            first, last = max(start, self._starts[number]), min(stop, self._starts[number + 1])
            if first >= last:
                continue
            here, at = values[first - start : last - start], first - self._starts[number]
            if self._is_exact:
                stream.fold_sums(at, here, weights[number])
            elif weights[number]:
                stream.fold(at, here, weights[number])

    def count(self, child_id: str, weights: Sequence[int]) -> None:
        """Add the LPS's weight in each stream to the total weight of the stream."""
        for stream, weight in zip(self.streams, weights, strict=True):
            if weight:
                stream.count(weight)

    def clear(self) -> None:
        """Reset the sums to zero."""
        for stream in self.streams:
            stream.clear()
