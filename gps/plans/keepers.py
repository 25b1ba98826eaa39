"""What the GPS keeps between global rounds, and how it moves: the layers shared everywhere, or all streams."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedstrata.experiment import Experiment
from fedstrata.methods import Method
from fedstrata.models import Model
from fedstrata.rounds import Offer
from fedstrata.rpc.payload import Acceptance
from fedstrata.store import AnyModel
from fedstrata.store.model_file import pieces_of
from fedstrata.store.model_view import ModelView
from fedstrata.streams.streams import UPDATE_PART, Streams
from fedstrata.tensors import Flat, Layout, OneSum, PartialSums, Sums
from gps.plans.plan import Plans


@dataclass(frozen=True, kw_only=True)
class Move:
    """A piece: where it stood in the vector that a global round started from, and its mean update, if there is one."""

    start: int
    stop: int
    update: Flat | None
    is_absolute: bool = False  # whether the mean is of whole values and not of differences


class Keeper(Protocol):
    """One way of keeping what global rounds start from."""

    is_fetched_first: bool  # whether LPSs fetch what the first global round starts from, or make it themselves

    def layout(self, global_round: int) -> Layout:
        """Of the vector that a global round starts from."""

    def initial(self) -> Iterator[Flat]:
        """The vector that the first global round starts from, in pieces."""

    def offer(self, model: AnyModel, global_round: int) -> Offer:
        """What LPSs fetch."""

    def acceptance(self, global_round: int) -> Acceptance:
        """What LPSs send in a global round, by the newest plan that it has; an aggregate that is late, too."""

    def sums(self, children: Mapping[str, int], global_round: int) -> Sums:
        """Where what LPSs send in a global round is gathered, by the plan as it is now."""

    def moves(self, model: AnyModel, sums: Sums, global_round: int) -> Iterator[Move]:
        """How what this global round started from moves, in pieces of what the next one starts from."""

    def models(self, model: AnyModel, global_round: int) -> dict[str, AnyModel]:
        """The clusters' models, by name, that the GPS has as a global round begins."""


class SharedKeeper:
    """The layers that are shared everywhere; the rest of each cluster's model is kept by its LPS."""

    is_fetched_first = False

    def __init__(self, experiment: Experiment, method: Method, model: Model, streams: Streams, part: str) -> None:
        self._experiment = experiment
        self._method = method
        self._model = model
        self._streams = streams
        self._layout = streams.everywhere
        self._rounds = experiment.training.lps_rounds_per_global_round
        self._acceptance = Acceptance(self._layout, experiment.links.lps_gps.up, part)

    def layout(self, global_round: int) -> Layout:
        """The shared layers, always."""
        return self._layout

    def initial(self) -> Iterator[Flat]:
        """The shared layers of the initial weights."""
        initial = self._streams.with_tables(self._method.initial(self._model, 0))
        return (initial[place] for place in self._streams.whole.slices_of(self._layout))

    def offer(self, model: AnyModel, global_round: int) -> Offer:
        """The shared layers."""
        return Offer(model)

    def acceptance(self, global_round: int) -> Acceptance:
        """Updates of the shared layers."""
        return self._acceptance

    def sums(self, children: Mapping[str, int], global_round: int) -> OneSum:
        """One sum, each LPS by the examples of all of its LPS rounds."""
        return OneSum(self._layout.size, {name: self._rounds * examples for name, examples in children.items()})

    def moves(self, model: AnyModel, sums: Sums, global_round: int) -> Iterator[Move]:
        """The shared layers by the mean update."""
        if not isinstance(sums, OneSum):
            raise TypeError(f"shared layers are gathered in one sum, not in {type(sums).__name__}")
        return (Move(start=a, stop=b, update=sums.total.mean(a, b)) for a, b in pieces_of(self._layout.size))

    def models(self, model: AnyModel, global_round: int) -> dict[str, AnyModel]:
        """None: each LPS reports its own."""
        return {}


class StreamsKeeper:
    """All streams of all clusters."""

    is_fetched_first = True

    def __init__(self, experiment: Experiment, method: Method, model: Model, streams: Streams, plans: Plans) -> None:
        self._experiment = experiment
        self._method = method
        self._model = model
        self._streams = streams
        self._plans = plans
        self._rounds = experiment.training.lps_rounds_per_global_round
        self._is_exact = self._rounds == 1
        self._acceptances: dict[tuple[int, Layout], Acceptance] = {}  # by the number of clusters, and what travels

    def _clusters(self, global_round: int) -> int:
        return len(self._plans.before(global_round).clusters)

    def _at(self, global_round: int) -> Streams:
        """The streams as a global round begins; what is sent up in it is of the same tensors."""
        return self._streams.without(self._plans.before(global_round).withdrawn if self._plans.is_made else ())

    def layout(self, global_round: int) -> Layout:
        """All streams of as many clusters as there are as the global round begins."""
        return self._at(global_round).layout(self._clusters(global_round))

    def initial(self) -> Iterator[Flat]:
        """Each cluster's initial weights; what is shared everywhere is that of the first."""
        for stream in self._at(0).streams(self._clusters(0)):
            whole = self._streams.with_tables(self._method.initial(self._model, stream.cluster or 0))
            for place in self._streams.whole.slices_of(stream.tensors):
                yield whole[place]

    def offer(self, model: AnyModel, global_round: int) -> Offer:
        """All streams, and what goes with them."""
        plan = self._plans.before(global_round)
        clusters = len(plan.clusters)
        return Offer(
            model,
            clusters=clusters,
            parts=self._at(global_round).parts(clusters),
            offers=plan.offers,
            withdrawn=plan.withdrawn,
            told=self._plans.told(plan),
        )

    def acceptance(self, global_round: int) -> Acceptance:
        """A part of every stream: exact sums, or differences where LPSs have had rounds of their own."""
        clusters = self._clusters(global_round + 1) if self._plans.is_made else 0
        streams = self._at(global_round)
        key = clusters, streams.travelling
        if key not in self._acceptances:
            encoding = "exact" if self._is_exact else self._experiment.links.lps_gps.up
            self._acceptances[key] = Acceptance(streams.layout(clusters), encoding, streams.parts(clusters))
        return self._acceptances[key]

    def sums(self, children: Mapping[str, int], global_round: int) -> PartialSums:
        """A sum for every stream."""
        clusters, streams = self._plans.cluster_count, self._at(global_round)
        sizes = [stream.tensors.size for stream in streams.streams(clusters)]
        return PartialSums(sizes, {home: self._most(home, clusters) for home in children}, is_exact=self._is_exact)

    def _most(self, home: str, clusters: int) -> list[int]:
        """The largest weights that the devices of an LPS can have in every stream, over all of its LPS rounds."""
        total = [0] * len(self._streams.streams(clusters))
        for device in self._plans.members(home):
            weights = self._streams.weights(
                device.cluster or 0, clusters, self._plans.weight(device), self._plans.shares(device)
            )
            total = [before + self._rounds * weight for before, weight in zip(total, weights, strict=True)]
        return total

    def moves(self, model: AnyModel, sums: Sums, global_round: int) -> Iterator[Move]:
        """Each stream by its mean update; a mixed one to its mean, and one that nobody is in not at all."""
        if not isinstance(sums, PartialSums):
            raise TypeError(f"streams are gathered in partial sums, not in {type(sums).__name__}")
        before, streams = self._clusters(global_round), self._at(global_round)
        starts = {
            (stream.channel, stream.cluster): place.start
            for stream, place in zip(streams.streams(before), streams.places(before), strict=True)
        }
        plan = self._plans.before(global_round + 1)
        following = self._at(global_round + 1).streams(len(plan.clusters))
        gathered = {
            (stream.channel, stream.cluster): (stream.tensors, total)
            for stream, total in zip(streams.streams(len(plan.clusters)), sums.streams, strict=True)
        }
        for stream in following:
            tensors, total = gathered[stream.channel, stream.cluster]
            parent = stream.cluster
            if parent is not None and plan.parents:
                parent = plan.parents[parent]
            start = starts[stream.channel, parent]
            is_mixed = self._is_exact and stream.channel in plan.weights
            for place in tensors.slices_of(stream.tensors):  # all of it, but for what is withdrawn now
                for a, b in pieces_of(place.stop - place.start):
                    first, last = place.start + a, place.start + b
                    mean = total.mean(first, last) if total.num_examples else None
                    yield Move(start=start + first, stop=start + last, update=mean, is_absolute=is_mixed)

    def models(self, model: AnyModel, global_round: int) -> dict[str, AnyModel]:
        """Every cluster's."""
        clusters, streams = self._clusters(global_round), self._at(global_round)
        return {
            self._plans.cluster_name(number): ModelView(model, streams.of_cluster(number, clusters), streams.travelling)
            for number in range(clusters)
        }


def keeper_of(experiment: Experiment, method: Method, model: Model, streams: Streams, plans: Plans) -> Keeper:
    """What the GPS keeps in this experiment."""
    if streams.spans:
        return StreamsKeeper(experiment, method, model, streams, plans)
    return SharedKeeper(experiment, method, model, streams, UPDATE_PART)
