"""The vector of all streams at an LPS: what devices get of it, how it moves, and what goes up."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.rounds import Offer
from fedstrata.rpc.payload import PartLayouts, parts_header
from fedstrata.store import AnyModel, ModelInMemory
from fedstrata.store.model_file import pieces_of
from fedstrata.store.model_view import ModelView
from fedstrata.streams import Streams
from fedstrata.tensors import Flat, PayloadCodec, RoutedSums
from fedstrata.tensors.codec import AnyEncoding
from fedstrata.v1 import tensors_pb2


def parts_of(streams: Streams, clusters: int) -> PartLayouts:
    """The parts of a payload with all streams."""
    return [(stream.name, stream.tensors) for stream in streams.streams(clusters)]


class StreamVector:
    """The values of all streams of so many clusters."""

    def __init__(self, streams: Streams, clusters: int, flat: Flat) -> None:
        self._streams = streams
        self.clusters = clusters
        self.layout = streams.layout(clusters)
        self.places = streams.places(clusters)
        self.flat = flat

    def offers(self, *, of_all: bool) -> dict[int, Offer]:
        """What the devices of each cluster start from: its model, or all streams."""
        source = ModelInMemory(self.layout, self.flat, {"format": "fedstrata"})
        if of_all:
            parts = parts_of(self._streams, self.clusters)
            return {c: Offer(source, cluster=c, clusters=self.clusters, parts=parts) for c in range(self.clusters)}
        return {c: Offer(self._of_cluster(source, c), cluster=c) for c in range(self.clusters)}

    def _of_cluster(self, source: AnyModel, cluster: int) -> AnyModel:
        return ModelView(source, self._streams.of_cluster(cluster, self.clusters), self._streams.travelling)

    def moved(self, sums: RoutedSums) -> "StreamVector":
        """This vector plus the mean update of each stream; a stream without one stays."""
        flat = self.flat.copy()
        for place, stream in zip(self.places, sums.streams, strict=True):
            if stream.num_examples:
                for start, stop in pieces_of(place.stop - place.start):
                    flat[place.start + start : place.start + stop] += stream.mean(start, stop)
        return StreamVector(self._streams, self.clusters, flat)


class UpwardStreams:
    """What an LPS sends up of its streams: exact partial sums, or differences of its own rounds with their weights."""

    def __init__(self, vector: StreamVector, sums: RoutedSums, base: StreamVector | None) -> None:
        """`base` is what the differences are from; None for partial sums."""
        self._vector, self._sums, self._base = vector, sums, base

    def codec(self, encoding: AnyEncoding) -> PayloadCodec:
        """How it travels."""
        if self._base is None:
            return PayloadCodec(self._vector.layout, "exact")
        if encoding != "int8":
            return PayloadCodec(self._vector.layout, encoding)
        return PayloadCodec.for_vector(self._vector.layout, encoding, self._vector.flat - self._base.flat)

    def header(self, codec: PayloadCodec, parts: PartLayouts) -> tensors_pb2.PayloadHeader:
        """What announces it: each stream's part with its weight."""
        return parts_header(codec, parts, [stream.num_examples for stream in self._sums.streams])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The elements [start, stop)."""
        if self._base is not None:
            difference: Flat = self._vector.flat[start:stop] - self._base.flat[start:stop]
            return difference
        return np.concatenate([np.empty(0, np.int64), *self._sums_between(start, stop)])

    def _sums_between(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        for place, stream in zip(self._vector.places, self._sums.streams, strict=True):
            first, last = max(start, place.start), min(stop, place.stop)
            if first < last:
                yield stream.sums(first - place.start, last - place.start)
