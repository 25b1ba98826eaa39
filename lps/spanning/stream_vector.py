"""One vector with the values of all streams at an LPS. Devices receive parts of this vector, and the GPS receives its
changes.

A stream is a set of values that are averaged over the same devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.rounds import Offer
from fedstrata.rpc.payload import PartLayouts, parts_header
from fedstrata.rules import Gathering
from fedstrata.rules.mean import exact
from fedstrata.store import AnyModel, ModelInMemory
from fedstrata.store.model_file import pieces_of
from fedstrata.store.model_view import ModelView
from fedstrata.streams.streams import Streams, VectorLayout
from fedstrata.tensors import Flat, PayloadCodec
from fedstrata.tensors.codec import SCALED, AnyEncoding
from lps.holding import Upward


class StreamVector:
    """Hold the values of all streams. Also hold, for each stream, the number of examples that have changed the stream
    since the GPS sent it.
    """

    def __init__(
        self,
        streams: Streams,
        clusters: int,
        flat: Flat,
        named: Sequence[Sequence[int]] = (),
        moved_by: Sequence[int] = (),
    ) -> None:
        """Set the values `flat`, shape (layout.tensors.size,). `moved_by` has, for each stream, the number of examples
        that have changed the stream, by default 0.

        If devices receive more than their own cluster's model, `named` has a list of clusters for each cluster. The
        cluster's devices then receive the models of the listed clusters. If `named` is empty, devices receive the
        models of all clusters.
        """
        self._streams = streams
        self._named = named
        self._clusters = clusters
        self.layout = streams.vector(clusters)
        self.flat = flat
        self.weights = list(moved_by) or [0] * len(self.layout.streams)

    def offers(self, *, of_all: bool, **told: Any) -> dict[int, Offer]:
        """Return, by cluster, the offer with which the cluster's devices start.

        Without `of_all`, an offer has the cluster's model. With `of_all`, an offer has all streams or, if this vector
        was created with `named`, the streams of the clusters in the cluster's list there. All arguments in `told` are
        passed to each `Offer`.
        """
        source = ModelInMemory(self.layout.tensors, self.flat, {"format": "fedstrata"})
        if of_all and self._named:
            return {c: self._of_some(source, c, offered, told) for c, offered in enumerate(self._named)}
        if of_all:
            parts, clusters = self.layout.parts, self._clusters
            return {c: Offer(source, cluster=c, clusters=clusters, parts=parts, **told) for c in range(clusters)}
        return {c: Offer(self._of_cluster(source, c), cluster=c, **told) for c in range(self._clusters)}

    def _of_cluster(self, source: AnyModel, cluster: int) -> AnyModel:
        return ModelView(source, self.layout.of_cluster(cluster), self.layout.travelling)

    def _of_some(self, source: AnyModel, cluster: int, offered: Sequence[int], told: Mapping[str, Any]) -> Offer:
        some = self._streams.vector(offered)
        places = [self.layout.place(stream.channel, stream.cluster) for stream in some.streams]
        view = ModelView(source, places, some.tensors)
        return Offer(view, cluster=cluster, clusters=self._clusters, offered=offered, parts=some.parts, **told)

    def moved(self, sums: Gathering) -> "StreamVector":
        """Return a new vector, to which the mean update of each stream is added. For each stream, the number of
        examples that have changed it grows by the number of examples of this update.
        """
        flat = self.flat.copy()
        for place, stream in zip(self.layout.places, sums.totals, strict=True):
            if stream.num_examples:
                for start, stop in pieces_of(place.stop - place.start):
                    flat[place.start + start : place.start + stop] += stream.mean(start, stop)
        weights = [before + now for before, now in zip(self.weights, sums.examples, strict=True)]
        return StreamVector(self._streams, self._clusters, flat, self._named, weights)


def partial_sums(vector: VectorLayout, sums: Gathering) -> Upward:
    """Return the update for the GPS: the exact sums of one LPS round. They are sent as integers, not in the encoding
    that the experiment states for the link.
    """
    codec = PayloadCodec(vector.tensors, "exact")

    def between(start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        for place, stream in zip(vector.places, exact(sums.totals), strict=True):
            first, last = max(start, place.start), min(stop, place.stop)
            if first < last:
                yield stream.sums(first - place.start, last - place.start)

    def read(start: int, stop: int) -> NDArray[Any]:
        return np.concatenate([np.empty(0, np.int64), *between(start, stop)])

    return Upward(codec=codec, read=read, payload=parts_header(codec, vector.parts, sums.weights))


def changes(moved: StreamVector, base: StreamVector, parts: PartLayouts, encoding: AnyEncoding) -> Upward:
    """Return the update for the GPS: how each stream has changed over several LPS rounds, and the number of examples of
    all these rounds.
    """

    def read(start: int, stop: int) -> NDArray[Any]:
        difference: Flat = moved.flat[start:stop] - base.flat[start:stop]
        return difference

    layout = moved.layout.tensors
    if encoding in SCALED:
        codec = PayloadCodec.for_vector(layout, encoding, read(0, layout.size))
    else:
        codec = PayloadCodec(layout, encoding)
    return Upward(codec=codec, read=read, payload=parts_header(codec, parts, moved.weights))
