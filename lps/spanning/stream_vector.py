"""The vector of all streams at an LPS: what devices get of it, how it moves, and what goes up."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedstrata.rounds import Offer
from fedstrata.rpc.payload import PartLayouts, parts_header
from fedstrata.store import AnyModel, ModelInMemory
from fedstrata.store.model_file import pieces_of
from fedstrata.store.model_view import ModelView
from fedstrata.streams.streams import Streams
from fedstrata.tensors import Flat, PayloadCodec, RoutedSums
from fedstrata.tensors.codec import AnyEncoding
from fedstrata.v1 import tensors_pb2


class StreamVector:
    """The values of all streams of so many clusters, and how many examples have moved each since the GPS sent them."""

    def __init__(
        self,
        streams: Streams,
        clusters: int,
        flat: Flat,
        named: Sequence[Sequence[int]] = (),
        moved_by: Sequence[int] = (),
    ) -> None:
        """`named` has, by cluster, those whose models its devices are offered, where it is not all."""
        self._streams = streams
        self._named = named
        self.clusters = clusters
        self.layout = streams.layout(clusters)
        self.places = streams.places(clusters)
        self.flat = flat
        self.weights = list(moved_by) or [0] * len(self.places)

    def offers(self, *, of_all: bool, **told: Any) -> dict[int, Offer]:
        """What the devices of each cluster start from: its model, all streams, or those of clusters named for it.

        `told` goes with each of them, as fields of an Offer.
        """
        source = ModelInMemory(self.layout, self.flat, {"format": "fedstrata"})
        if of_all and self._named:
            return {c: self._of_some(source, c, offered, told) for c, offered in enumerate(self._named)}
        if of_all:
            parts = self._streams.parts(self.clusters)
            return {
                c: Offer(source, cluster=c, clusters=self.clusters, parts=parts, **told) for c in range(self.clusters)
            }
        return {c: Offer(self._of_cluster(source, c), cluster=c, **told) for c in range(self.clusters)}

    def _of_cluster(self, source: AnyModel, cluster: int) -> AnyModel:
        return ModelView(source, self._streams.of_cluster(cluster, self.clusters), self._streams.travelling)

    def _of_some(self, source: AnyModel, cluster: int, offered: Sequence[int], told: Mapping[str, Any]) -> Offer:
        names = {stream.name for stream in self._streams.streams(offered)}
        streams = zip(self._streams.streams(self.clusters), self.places, strict=True)
        places = [place for stream, place in streams if stream.name in names]
        view = ModelView(source, places, self._streams.layout(offered))
        parts = self._streams.parts(offered)
        return Offer(view, cluster=cluster, clusters=self.clusters, offered=offered, parts=parts, **told)

    def moved(self, sums: RoutedSums) -> "StreamVector":
        """This vector plus the mean update of each stream, whose weight grows by that of the update; a stream without
        one stays."""
        flat = self.flat.copy()
        for place, stream in zip(self.places, sums.streams, strict=True):
            if stream.num_examples:
                for start, stop in pieces_of(place.stop - place.start):
                    flat[place.start + start : place.start + stop] += stream.mean(start, stop)
        weights = [before + now for before, now in zip(self.weights, sums.weights, strict=True)]
        return StreamVector(self._streams, self.clusters, flat, self._named, weights)


class Upward(Protocol):
    """What an LPS sends up of its streams, by stretches."""

    def codec(self, encoding: AnyEncoding) -> PayloadCodec:
        """How it travels."""

    def header(self, codec: PayloadCodec, parts: PartLayouts) -> tensors_pb2.PayloadHeader:
        """What announces it: each stream's part with its weight."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The elements [start, stop)."""


class UpwardSums:
    """Exact partial sums of one LPS round."""

    def __init__(self, vector: StreamVector, sums: RoutedSums) -> None:
        """`vector` says how the streams lie; its values count for nothing."""
        self._vector, self._sums = vector, sums

    def codec(self, encoding: AnyEncoding) -> PayloadCodec:
        """On the grid, whatever the link's encoding."""
        return PayloadCodec(self._vector.layout, "exact")

    def header(self, codec: PayloadCodec, parts: PartLayouts) -> tensors_pb2.PayloadHeader:
        """What announces it: each stream's part with its weight."""
        return parts_header(codec, parts, self._sums.weights)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The elements [start, stop)."""
        return np.concatenate([np.empty(0, np.int64), *self._between(start, stop)])

    def _between(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        for place, stream in zip(self._vector.places, self._sums.streams, strict=True):
            first, last = max(start, place.start), min(stop, place.stop)
            if first < last:
                yield stream.sums(first - place.start, last - place.start)


class UpwardChanges:
    """How far the streams have moved in several LPS rounds, each with the examples of all of these rounds."""

    def __init__(self, moved: StreamVector, base: StreamVector) -> None:
        self._moved, self._base = moved, base

    def codec(self, encoding: AnyEncoding) -> PayloadCodec:
        """How it travels."""
        layout = self._moved.layout
        if encoding != "int8":
            return PayloadCodec(layout, encoding)
        return PayloadCodec.for_vector(layout, encoding, self.read(0, layout.size))

    def header(self, codec: PayloadCodec, parts: PartLayouts) -> tensors_pb2.PayloadHeader:
        """What announces it: each stream's part with its weight."""
        return parts_header(codec, parts, self._moved.weights)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The elements [start, stop)."""
        difference: Flat = self._moved.flat[start:stop] - self._base.flat[start:stop]
        return difference
