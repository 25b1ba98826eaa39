"""Models that are computed piece by piece, so that no whole model is in memory."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedstrata.optimisers.state_files import Move, OptimiserFiles, without_optimiser
from fedstrata.rules import Gathering
from fedstrata.store import AnyModel
from fedstrata.store.model_file import pieces_of
from fedstrata.tensors import Flat


def moves(model: AnyModel, sums: Gathering, optimiser: OptimiserFiles, lps_round: int) -> Iterator[Move]:
    """Yield, for each piece of the model, its values, the mean update of an LPS round, the optimiser's state, and the
    share of all examples that took part in the update.
    """
    offset = 0
    for size, total, share, counts in zip(sums.sizes, sums.totals, sums.taking_part, sums.counts, strict=True):
        for start, stop in pieces_of(size):
            first, last = offset + start, offset + stop
            state = optimiser.at(lps_round, model.layout, first, last)
            move: Move = (model.read(first, last), total.mean(start, stop), state, share)
            yield without_optimiser(move) if counts else move
        offset += size


def difference(local: AnyModel, base: AnyModel, places: Sequence[slice]) -> Flat:
    """Return the values of the shared layers in the model `local` minus the values in the model `base`. The shared
    layers are at `places` in both models. Only the result is wholly in memory.
    """
    difference = np.empty(sum(place.stop - place.start for place in places), np.float32)
    filled = 0
    for place in places:
        for start, stop in pieces_of(place.stop - place.start):
            a, b = place.start + start, place.start + stop
            difference[filled : filled + stop - start] = local.read(a, b) - base.read(a, b)
            filled += stop - start
    return difference


def spliced(local: AnyModel, shared: Flat, places: Sequence[slice]) -> Iterator[Flat]:
    """Yield the local model piece by piece. The layers at `places` are replaced by `shared`."""
    position, taken = 0, 0
    for place in places:
        for start, stop in pieces_of(place.start - position):
            yield local.read(position + start, position + stop)
        size = place.stop - place.start
        yield shared[taken : taken + size]
        position, taken = place.stop, taken + size
    for start, stop in pieces_of(local.layout.size - position):
        yield local.read(position + start, position + stop)
