"""The streams of a run: over which devices each tensor is averaged, and where each stream is in the vectors that are
sent.

A tensor belongs to the model or is a table. Tables are additional tensors of a method, such as scores of public
examples.

A channel is a set of tensors that are averaged over the same devices. Its reach says over which devices. A stream holds
the current values of a channel. A channel with reach EVERYWHERE has one stream for all devices. A channel with reach
CLUSTER has one stream per cluster. The tensors of a channel with reach DEVICE stay on each device, so it has no stream.

If each cluster has an LPS of its own, this LPS keeps the cluster's streams, and only streams with reach EVERYWHERE go
to the GPS. If clusters span LPSs, the GPS keeps all streams, and every LPS sends a partial sum of each stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.methods.base import Channel, Method, Plan, Reach
from fedstrata.process.quoting import quoted
from fedstrata.rules import Route
from fedstrata.streams.homes import spans_lps
from fedstrata.tensors.layout import Flat, Layout, TensorSpec

if TYPE_CHECKING:
    from fedstrata.models import Model

MODEL_PART = "model"  # name of the only part of a cluster's model
UPDATE_PART = "update"  # name of the only part of an update, or of an aggregate of the shared layers
WEIGHT_GRID = 1 << 20  # a plan's shares are rounded to multiples of 1 / WEIGHT_GRID, so that their sums are exact


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Describe one stream: the current values of a channel, for all devices or for a cluster."""

    channel: str
    cluster: int | None  # None: the stream of all devices
    tensors: Layout
    counts_absent: bool  # whether devices that do not take part count in the mean

    @property
    def name(self) -> str:
        """The name of the part of a payload that has this stream."""
        return self.channel if self.cluster is None else f"{self.cluster}/{self.channel}"


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Hold the channels of a run, with the layouts of their tensors."""

    model: Layout  # layout of the whole model on a device
    channels: tuple[Channel, ...]
    spans: bool  # whether clusters span LPSs
    _without: "dict[tuple[str, ...], Streams]" = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = [tensor for channel in self.channels for tensor in channel.tensors.tensors]
        of_model = [tensor.name for tensor in named if tensor.name in self.model.names]
        if sorted(of_model) != sorted(self.model.names):
            raise PluginError(
                f"a method's channels must name each tensor of the model once; the model has "
                f"{', '.join(self.model.names)}, and the channels name "
                f"{', '.join(sorted(tensor.name for tensor in named)) or 'none'}"
            )
        known = {*self.model.tensors, *self.tables.tensors}
        if len(named) != len(known) or known != set(named):
            raise PluginError(
                "a method's channels name a tensor twice, or a tensor of the model with another shape: "
                f"{', '.join(map(str, named))}"
            )

    @cached_property
    def tables(self) -> Layout:
        """The layout of the tables of all channels, channel by channel."""
        tensors = (tensor for channel in self.channels for tensor in channel.tensors.tensors)
        return Layout(tuple(tensor for tensor in tensors if tensor.name not in self.model.names))

    @cached_property
    def whole(self) -> Layout:
        """The layout of all tensors with which a device begins a round: first the model's tensors, then the tables."""
        return Layout((*self.model.tensors, *self.tables.tensors)) if self.tables.tensors else self.model

    def with_tables(self, weights: Flat, tables: Mapping[str, NDArray[Any]] | None = None) -> Flat:
        """Return one vector with the model's weights and the tables. If `tables` is None, all tables are 0, as at the
        start of a run.

        Raises:
            PluginError: the given tables are not the tables of the method's channels.
        """
        if tables is None:
            tables = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in self.tables.tensors}
        shapes = {tensor.name: tensor.shape for tensor in self.tables.tensors}
        given = {name: np.shape(table) for name, table in tables.items()}
        if given != shapes:
            raise PluginError(f"the outcome of local training has tables {given}; the method's channels have {shapes}")
        return np.concatenate([weights, self.tables.flatten(tables)]) if tables else weights

    def without(self, names: Iterable[str]) -> "Streams":
        """Return the streams of a run in which these tensors are no longer sent, but stay on devices.

        Raises:
            PayloadError: the run has no such tensor.
        """
        gone = tuple(names)
        if not gone:
            return self
        known = self._without.get(gone)
        if known is None:
            if unknown := set(gone) - set(self.whole.names):
                raise PayloadError(
                    f"the plan withdraws tensors that the model does not have: {quoted(*sorted(unknown))}"
                )
            channels = [
                replace(each, tensors=each.tensors.select(name for name in each.tensors.names if name not in gone))
                for each in self.channels
            ]
            home = Channel(name="withdrawn", tensors=self.whole.select(gone), reach=Reach.DEVICE)
            self._without.clear()  # an earlier round's streams; tensors are never sent again
            known = self._without[gone] = Streams(model=self.model, channels=(*channels, home), spans=self.spans)
        return known

    def _of(self, *reaches: Reach) -> Layout:
        names = [name for channel in self.channels if channel.reach in reaches for name in channel.tensors.names]
        return self.whole.select(names)

    @cached_property
    def everywhere(self) -> Layout:
        """The layout of the tensors that are averaged over all devices, in the model's order."""
        return self._of(Reach.EVERYWHERE)

    @cached_property
    def travelling(self) -> Layout:
        """The layout of the tensors that a device receives and sends, in the model's order."""
        return self._of(Reach.EVERYWHERE, Reach.CLUSTER)

    @cached_property
    def runs(self) -> list[tuple[int, bool]]:
        """Consecutive pieces of a vector with the layout `travelling`. Each entry has the number of values of a piece,
        and whether absent devices count in the mean of these values.
        """
        counting = {t for each in self.channels if each.counts_absent for t in each.tensors.names}
        parts = groupby(self.travelling.tensors, lambda tensor: tensor.name in counting)
        return [(sum(tensor.size for tensor in part), counts) for counts, part in parts] or [(0, False)]

    @cached_property
    def own(self) -> Layout:
        """The layout of the tensors that never leave a device, in the model's order."""
        return self._of(Reach.DEVICE)

    def vector(self, clusters: int | Sequence[int]) -> "VectorLayout":
        """Return the layout of the vector of all streams. If `clusters` is an integer, the vector has this many
        clusters. If it is a sequence, the vector has the clusters with these numbers.
        """
        return VectorLayout(self, range(clusters) if isinstance(clusters, int) else clusters)


class VectorLayout:
    """Describe the vector of all streams. The streams for all devices come first, then the streams of each cluster,
    cluster by cluster.

    For example, a model has a tensor `base` with 3 values and reach EVERYWHERE, and a tensor `head` with 2 values and
    reach CLUSTER. With two clusters, values 0 to 2 of the vector are `base`, values 3 and 4 are `0/head`, the head of
    cluster 0, and values 5 and 6 are `1/head`.
    """

    def __init__(self, streams: Streams, clusters: Sequence[int]) -> None:
        """Set `clusters`, the numbers of the clusters in ascending order."""
        self.clusters = clusters
        self.travelling = streams.travelling
        self._channels = streams.channels

    @cached_property
    def streams(self) -> list[Stream]:
        """The streams in the order in which the vector has them."""
        everywhere = [(channel, None) for channel in self._channels if channel.reach is Reach.EVERYWHERE]
        apart = [channel for channel in self._channels if channel.reach is Reach.CLUSTER]
        return [
            Stream(channel=c.name, cluster=number, tensors=c.tensors, counts_absent=c.counts_absent)
            for c, number in [*everywhere, *((each, number) for number in self.clusters for each in apart)]
        ]

    @property
    def parts(self) -> list[tuple[str, Layout]]:
        """The parts of a payload with all streams: the name and the layout of each part."""
        return [(stream.name, stream.tensors) for stream in self.streams]

    @cached_property
    def tensors(self) -> Layout:
        """The layout of the vector. The names of a cluster's tensors begin with the cluster's number."""
        return Layout(
            tuple(
                tensor
                if stream.cluster is None
                else TensorSpec(name=f"{stream.cluster}/{tensor.name}", shape=tensor.shape)
                for stream in self.streams
                for tensor in stream.tensors.tensors
            )
        )

    @property
    def sizes(self) -> list[int]:
        """The number of values of each stream."""
        return [stream.tensors.size for stream in self.streams]

    @cached_property
    def places(self) -> list[slice]:
        """The slice of each stream in the vector."""
        stops = list(accumulate(self.sizes))
        return [slice(stop - size, stop) for size, stop in zip(self.sizes, stops, strict=True)]

    def whole(self, examples: Mapping[int, int]) -> list[int]:
        """Return, for each stream, the sum of the weights that the updates of all its devices have in the mean.
        `examples` maps each cluster to the sum for the cluster's devices.
        """
        return [sum(n for cluster, n in examples.items() if each.cluster in {None, cluster}) for each in self.streams]

    @property
    def counts(self) -> list[bool]:
        """Return, for each stream, whether absent devices count in its mean."""
        return [each.counts_absent for each in self.streams]

    def place(self, channel: str, cluster: int | None) -> slice:
        """Return the slice of one stream. For the stream of all devices, `cluster` is None."""
        return self._place_of[channel, cluster]

    @cached_property
    def _place_of(self) -> dict[tuple[str, int | None], slice]:
        return {(each.channel, each.cluster): place for each, place in zip(self.streams, self.places, strict=True)}

    def of_cluster(self, cluster: int) -> list[slice]:
        """Return the slices of the vector that have the tensors of a cluster's devices. Tensors that never leave a
        device are not included. The slices are in the model's order.
        """
        starts = dict(zip(self.tensors.names, self.tensors.starts, strict=True))
        found: list[slice] = []
        for tensor in self.travelling.tensors:
            start = starts[tensor.name] if tensor.name in starts else starts[f"{cluster}/{tensor.name}"]
            if found and found[-1].stop == start:
                found[-1] = slice(found[-1].start, start + tensor.size)
            else:
                found.append(slice(start, start + tensor.size))
        return found

    def routes(self, cluster: int, num_examples: int, shares: Mapping[str, Mapping[int, int]]) -> list[Route]:
        """Return the routes of a device's update: to which stream each range of the update is added, and with which
        weight.

        `shares` has the weights that the plan sets for this device, in the form that `shares_of` returns.
        """
        found = []
        for number, weight in enumerate(self.weights(cluster, num_examples, shares)):
            if weight:
                offset = 0
                for place in self._ranges[number]:
                    found.append(Route(place=place, stream=number, offset=offset, weight=weight))
                    offset += place.stop - place.start
        return found

    @cached_property
    def _ranges(self) -> list[list[slice]]:
        """The ranges of a device's update that belong to each stream."""
        return [self.travelling.slices_of(stream.tensors) for stream in self.streams]

    def weights(self, cluster: int, num_examples: int, shares: Mapping[str, Mapping[int, int]]) -> list[int]:
        """Return the weight with which a device's update is added to each stream.

        `shares` has the weights that the plan sets for this device, in the form that `shares_of` returns. In a channel
        that is not in `shares`, the weight is `num_examples` in the stream for all devices or for the device's own
        cluster, and 0 in other streams.
        """
        return [
            shares[stream.channel].get(stream.cluster or 0, 0)
            if stream.channel in shares
            else num_examples * (stream.cluster in {None, cluster})
            for stream in self.streams
        ]


def shares_of(plan: Plan, device_index: int) -> dict[str, dict[int, int]]:
    """Return the weights of a device's update that the plan sets. The outer key is the name of a channel. The inner key
    is the number of the stream's cluster, or 0 if the stream is for all devices. The values are integers in units of
    2⁻²⁰. Weights that are 0 are left out.
    """
    return {
        channel: {
            stream: weight
            for stream, shares in enumerate(streams)
            if (weight := round(shares.get(device_index, 0.0) * WEIGHT_GRID))
        }
        for channel, streams in plan.weights.items()
    }


def streams_of(experiment: Experiment, method: Method, model: "Model") -> Streams:
    """Return the streams of an experiment. Raises PluginError if a method's channels do not match the model's
    tensors.
    """
    channels = method.channels(model)
    if method.clusters_known != 1 and any(channel.counts_absent for channel in channels):
        raise PluginError(
            f"method {experiment.method.name} has several clusters and a channel with counts_absent; set counts_absent "
            "only in methods with one cluster"
        )
    streams = Streams(model=model.layout, channels=channels, spans=spans_lps(experiment, method))
    return streams.without(model.at_home)
