"""The state of a server's optimiser on disk. Each round has one file, next to the model's file. An optimiser without a
state has no files.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path

from fedstrata.optimisers.server_optimisers import ServerOptimiser, State
from fedstrata.store import ModelFile, write_model
from fedstrata.store.model_file import pieces_of
from fedstrata.tensors import Flat, Layout, TensorSpec

# a piece of the model, its mean update (None: no update), its state, and the share of all examples that took part
Move = tuple[Flat, Flat | None, State, float]


def without_optimiser(move: Move) -> Move:
    """Return a piece of the model (a `Move`) to which its mean update has been added. The returned piece has no further
    update, and its state is unchanged.
    """
    model, update, state, share = move
    return (model if update is None else model + update), None, state, share


class OptimiserFiles:
    """Keep an optimiser's state in files: `optimiser-000012.safetensors` is the state at the start of round 12."""

    def __init__(self, optimiser: ServerOptimiser, folder: Path, metadata: Callable[[int], Mapping[str, str]]) -> None:
        """Keep the files in `folder`. `metadata` is a function of a round's number, and returns the metadata for the
        file of this round.
        """
        self._optimiser = optimiser
        self._folder = folder
        self._metadata = metadata
        self._open: tuple[int, ModelFile] | None = None

    @property
    def has_state(self) -> bool:
        """Return whether the optimiser has a state to keep."""
        return bool(self._optimiser.state_names)

    def begin(self, number: int, layout: Layout) -> None:
        """Open the state at the start of a round, and check its file. For round 0, write the initial state first.
        `layout` is the layout of the model.

        Raises:
            StateError: the file is missing or damaged, or has other metadata than expected.
        """
        if not self.has_state:
            return
        if not number:
            self._write(0, layout, self._initial(layout.size))
        found = self._file(number, layout)
        found.check(self._metadata(number))
        self._open = (number, found)

    def save(self, number: int, layout: Layout, moves: Callable[[], Iterator[Move]], *, durable: bool = True) -> None:
        """Write the file with the state at the start of round `number`. The state is computed from the pieces of the
        previous round that `moves()` yields. Each piece has a part of the model, of the mean update and of the state.
        """
        if not self.has_state:
            return
        outputs = range(1, len(self._optimiser.state_names) + 1)
        pieces = chain.from_iterable(self.moved(moves(), output) for output in outputs)
        self._write(number, layout, pieces, durable=durable)

    def skip(self, number: int, following: int, layout: Layout) -> None:
        """Use the state at the start of a round also at the start of a later round, `following`. The rounds between
        them were missed.
        """
        if self.has_state:
            with closing(self._file(number, layout)) as found:
                self._write(following, layout, found.pieces())

    def remove(self, number: int) -> None:
        """Delete the state of a round to which the run cannot return."""
        if self.has_state:
            self._path(number).unlink(missing_ok=True)

    def moved(self, moves: Iterator[Move], output: int = 0) -> Iterator[Flat]:
        """Yield the pieces of the next round's model (`output` 0) or of one vector of the next state (1 and 2). They
        are computed from `moves`, the pieces of the present round. A piece without an update stays unchanged.

        Each output needs its own pass over the pieces, so that no whole vector is in memory.
        """
        for model, update, state, share in moves:
            if update is None:
                yield (model, *state)[output]
            else:
                moved, following = self._optimiser.step(model, update, state, share)
                yield (moved, *following)[output]

    def at(self, number: int, layout: Layout, start: int, stop: int) -> tuple[Flat, ...]:
        """Return the elements from `start` to `stop` (exclusive) of the state at the start of a round, for a model of
        this layout.
        """
        if not self.has_state:
            return ()
        if self._open is None or self._open[0] != number:
            self._open = (number, self._file(number, layout))
        found, vectors = self._open[1], range(len(self._optimiser.state_names))
        return tuple(found.read(number * layout.size + start, number * layout.size + stop) for number in vectors)

    def _initial(self, size: int) -> Iterator[Flat]:
        """Yield the pieces of the state before the first round, for a model of `size` elements."""
        for number in range(len(self._optimiser.state_names)):
            for start, stop in pieces_of(size):
                yield self._optimiser.initial_state(stop - start)[number]

    def _write(self, number: int, layout: Layout, pieces: Iterator[Flat], *, durable: bool = True) -> None:
        write_model(self._path(number), self._laid_out(layout), pieces, self._metadata(number), durable=durable)

    def _file(self, number: int, layout: Layout) -> ModelFile:
        return ModelFile(self._path(number), self._laid_out(layout))

    def _laid_out(self, layout: Layout) -> Layout:
        """Return the layout of a model's state: one vector per name in `state_names`, each with the model's layout."""
        names, tensors = self._optimiser.state_names, layout.tensors
        return Layout(
            tuple(TensorSpec(name=f"{name}/{each.name}", shape=each.shape) for name in names for each in tensors)
        )

    def _path(self, number: int) -> Path:
        return self._folder / f"optimiser-{number:06d}.safetensors"
