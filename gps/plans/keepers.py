"""The streams that the GPS keeps between global rounds, and how they change.

A stream is a set of values that are averaged over the same devices. A plan that is made in a global round can change
the number of clusters, and can withdraw tensors. So a global round has vectors of three forms:

- The vector at the start, which LPSs receive, has the tensors and clusters of the plan at the start.
- LPSs' updates and their sums have the tensors of the plan at the start, and the clusters of the plan at the end.
- The vector at the start of the next global round has the tensors and clusters of the plan at the end.

`Plans` says which plan a global round has at its start and end.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstrata.clock.asynchronous import weighing_of
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import AnyServerOptimiser
from fedstrata.methods import Channel, Method, Plan, Reach
from fedstrata.models import Model
from fedstrata.rounds import Offer
from fedstrata.rpc.payload import Acceptance
from fedstrata.rules import AS_STATED, Gathering, of_streams, of_updates
from fedstrata.rules.registry import gps_rule, sends_sums
from fedstrata.store import AnyModel
from fedstrata.store.model_file import pieces_of
from fedstrata.store.model_view import ModelView
from fedstrata.streams.streams import UPDATE_PART, Streams, VectorLayout, shares_of
from fedstrata.tensors import Flat, Layout
from gps.devices.roster import Device
from gps.plans.places import Places


@dataclass(frozen=True, kw_only=True)
class PieceChange:
    """Hold how one piece of a vector changes in a global round. `start` and `stop` are the piece's position in the
    vector before the change. `update` is the piece's mean update. If `update` is None, the piece keeps its values.
    """

    start: int
    stop: int
    update: Flat | None
    share: float  # of all examples, that took part
    is_absolute: bool = False  # whether the mean is of weights, not of differences
    counts_absent: bool = False  # whether absent devices count in the mean, which the optimiser then leaves alone


def kept_at_gps(streams: Streams) -> Streams:
    """Return the streams that the GPS keeps.

    If clusters span LPSs, the GPS keeps all streams. Otherwise the GPS keeps one stream with the layers that all
    devices share, and each LPS keeps the other layers of its cluster.
    """
    if streams.spans:
        return streams
    shared = Channel(name=UPDATE_PART, tensors=streams.everywhere, reach=Reach.EVERYWHERE)
    return Streams(model=streams.everywhere, channels=(shared,), spans=False)


class Keeper:
    """Compute the streams at the GPS: their layout and initial values, the form of LPSs' updates, and how the streams
    change in a global round.
    """

    def __init__(
        self, experiment: Experiment, method: Method, model: Model, streams: Streams, places: Places, *, folder: Path
    ) -> None:
        """Set the objects of the run. `folder` is for updates that do not stay in memory."""
        self._folder = folder
        self._experiment = experiment
        self._method = method
        self._model = model
        self._streams = streams
        self._kept = kept_at_gps(streams)
        self._places = places
        self._plans = places.plans
        self._rounds = experiment.training.lps_rounds_per_global_round
        self._is_exact = sends_sums(experiment, spans=streams.spans)
        self._rule = gps_rule(experiment, are_partial=self._is_exact)
        # The weight of an exact sum is the divisor of an LPS's round, and not a number of examples.
        self._weighing = weighing_of(experiment.training.rounds) if self._is_exact else AS_STATED
        self._acceptances: dict[tuple[int, Layout], Acceptance] = {}  # by number of clusters and layout
        self.is_fetched_first = streams.spans  # whether LPSs fetch the initial model, instead of computing it

    @property
    def optimiser(self) -> AnyServerOptimiser:
        """The settings of the optimiser that applies the mean update of a global round."""
        own = self._method.server_optimiser if self._kept.spans else None
        return own or self._experiment.training.gps_optimiser

    def _at_start(self, global_round: int) -> VectorLayout:
        """Return the layout of the vector at the start of a global round."""
        plan = self._plans.at_start(global_round)
        return self._kept.without(plan.withdrawn).vector(len(plan.clusters))

    def _of_updates(self, global_round: int) -> VectorLayout:
        """Return the layout of LPSs' updates in a global round."""
        sent = self._kept.without(self._plans.at_start(global_round).withdrawn)
        return sent.vector(len(self._plans.at_end(global_round).clusters))

    def layout(self, global_round: int) -> Layout:
        """Return the tensors of the vector at the start of a global round."""
        return self._at_start(global_round).tensors

    def initial(self) -> Iterator[Flat]:
        """Yield the vector at the start of the first global round, in pieces.

        Each cluster's streams have their own initial weights. Streams for all devices have the initial weights of the
        first cluster.
        """
        for stream in self._at_start(0).streams:
            whole = self._streams.with_tables(self._method.initial(self._model, stream.cluster or 0))
            for place in self._streams.whole.slices_of(stream.tensors):
                yield whole[place]

    def offer(self, model: AnyModel, global_round: int) -> Offer:
        """Return the message (an `Offer`) with the vector for the LPSs. If clusters span LPSs, the message also has the
        name and the layout of each stream's part of the vector. From the plan, it has the number of clusters, the
        models that each cluster's devices receive, the tensors that are no longer sent, and arrays for all devices.
        """
        if not self._kept.spans:
            return Offer(model)
        plan = self._plans.at_start(global_round)
        return Offer(
            model,
            clusters=len(plan.clusters),
            parts=self._at_start(global_round).parts,
            offers=plan.offers,
            withdrawn=plan.withdrawn,
            told=self._plans.told(plan),
        )

    def acceptance(self, global_round: int) -> Acceptance:
        """Return the required form of LPSs' updates in a global round. Updates that arrive after the deadline must have
        this form, too.

        If clusters span LPSs, an LPS's update has one part per stream. If a global round has one LPS round, and the
        rules of LPSs and of the GPS are both means, the parts are exact sums of the devices' updates (see
        `sends_sums`). Otherwise the parts are changes of the streams.
        """
        updates = self._of_updates(global_round)
        key = len(updates.clusters), updates.travelling
        if key not in self._acceptances:
            encoding = "exact" if self._is_exact else self._experiment.links.lps_gps.up
            self._acceptances[key] = Acceptance(updates.tensors, encoding, updates.parts)
        return self._acceptances[key]

    def sums(self, children: Mapping[str, int], global_round: int) -> Gathering:
        """Return an object that gathers the aggregates of a global round. `children` has each LPS's number
        of examples in one LPS round.

        If each LPS has a cluster of its own, an LPS's weight is its number of examples, summed over the LPS rounds of
        the global round. If clusters span LPSs, an LPS has a separate weight for each stream.
        """
        updates, rule = self._of_updates(global_round), self._rule.in_round(global_round)
        if not self._kept.spans:
            weights = {name: self._rounds * examples for name, examples in children.items()}
            return of_updates(rule, updates.tensors.size, weights, self._folder)
        plan = self._plans.at_end(global_round)
        most = {home: self._most(self._places.joined(home, global_round), plan, updates) for home in children}
        return of_streams(rule, updates.sizes, most, self._folder)

    def _most(self, joined: Sequence[Device], plan: Plan, updates: VectorLayout) -> list[int]:
        """Return the largest possible weight of an LPS in each stream: the sum of the weights of all its devices in
        the global round (`joined`), times the number of LPS rounds. With asynchronous rounds and a step below 1, an
        exact sum can have a larger weight.
        """
        devices: list[tuple[int, int, dict[str, dict[int, int]]]]  # cluster, examples, shares
        weight = self._places.weight
        members = [(device, device.cluster or 0) for device in joined]
        if plan.weights:
            devices = [(cluster, weight(each), shares_of(plan, each.device_index)) for each, cluster in members]
        else:  # one entry per cluster with the sum of its devices' weights
            examples: Counter[int] = Counter()
            for device, cluster in members:
                examples[cluster] += weight(device)
            devices = [(cluster, count, {}) for cluster, count in examples.items()]
        weights = [updates.weights(cluster, count, shares) for cluster, count, shares in devices]
        sums = [sum(each[number] for each in weights) for number in range(len(updates.streams))]
        return [self._rounds * self._weighing.largest(each) for each in sums]

    def changes(self, sums: Gathering, global_round: int) -> Iterator[PieceChange]:
        """Yield how the vector changes in a global round, piece by piece, in the order of the changed vector.

        The mean update of a stream is added to the stream. If the plan has `weights` for a stream, the stream is
        instead replaced by the weighted mean of the devices' values. A stream without devices keeps its values.

        Raises:
            NoUpdatesError: every LPS has a cluster of its own, and no LPS has sent an update.
        """
        before, plan = self._at_start(global_round), self._plans.at_end(global_round)
        gathered = {
            (stream.channel, stream.cluster): (stream.tensors, total, share)
            for stream, total, share in zip(
                self._of_updates(global_round).streams, sums.totals, sums.taking_part, strict=True
            )
        }
        for stream in self._at_start(global_round + 1).streams:
            tensors, total, share = gathered[stream.channel, stream.cluster]
            parent = stream.cluster
            if parent is not None and plan.parents:
                parent = plan.parents[parent]
            start = before.place(stream.channel, parent).start
            is_mixed = self._is_exact and stream.channel in plan.weights
            for place in tensors.slices_of(stream.tensors):  # all tensors that are not withdrawn
                for a, b in pieces_of(place.stop - place.start):
                    first, last = place.start + a, place.start + b
                    mean = total.mean(first, last) if total.num_examples or not self._kept.spans else None
                    yield PieceChange(
                        start=start + first, stop=start + last, update=mean, share=share,
                        is_absolute=is_mixed, counts_absent=stream.counts_absent,
                    )  # fmt: skip

    def models(self, model: AnyModel, global_round: int) -> dict[str, AnyModel]:
        """Return, by cluster name, the models at the start of a global round. If the LPSs keep the models, the result
        is empty.
        """
        if not self._kept.spans:
            return {}
        vector = self._at_start(global_round)
        return {
            self._places.cluster_name(number): ModelView(model, vector.of_cluster(number), vector.travelling)
            for number in vector.clusters
        }
