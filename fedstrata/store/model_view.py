"""Some ranges of a model's vector, used as a separate model."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from fedstrata.store.model_file import AnyModel, joined
from fedstrata.tensors import Flat, Layout


class ModelView(AnyModel):
    """Show some ranges of another model, one after another, as a model with a new layout. Nothing is copied."""

    def __init__(self, source: AnyModel, places: Sequence[slice], layout: Layout) -> None:
        self.layout = layout
        self.metadata = source.metadata
        self._source = source
        self._places = places
        self._starts = list(accumulate((place.stop - place.start for place in places), initial=0))
        self._digest = self._computed_digest().encode()

    @property
    def digest(self) -> bytes:
        """The digest that a file with this model would have."""
        return self._digest

    def read(self, start: int, stop: int) -> Flat:
        """Return the elements from `start` to `stop` (exclusive) of the vector."""
        found: list[Flat] = []
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            place, begins = self._places[number], self._starts[number]
            last = min(stop, self._starts[number + 1])
            found.append(self._source.read(place.start + start - begins, place.start + last - begins))
            start, number = last, number + 1
        return found[0] if len(found) == 1 else joined(found)

    def close(self) -> None:
        """Do nothing, because the owner of the other model closes that model."""
