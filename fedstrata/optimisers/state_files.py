"""The state of a server's optimiser on disk. Each round has one file, next to the model's file. An optimiser without a
state has no files.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path

from fedstrata.errors import StateError
from fedstrata.optimisers.server_optimisers import Move, ServerOptimiser, initial_pieces, state_layout, stepped
from fedstrata.store import ModelFile, write_model
from fedstrata.tensors import Flat, Layout


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
        laid_out = state_layout(self._optimiser, layout)
        if not number:
            self._write(0, laid_out, initial_pieces(self._optimiser, layout.size))
        found = ModelFile(self._path(number), laid_out)
        found.verify()
        if found.metadata != self._metadata(number):
            raise StateError(
                f"{found.path} has the metadata {found.metadata}; expected {self._metadata(number)}; put the right "
                "file back"
            )
        self._open = (number, found)

    def save(self, number: int, layout: Layout, moves: Callable[[], Iterator[Move]], *, durable: bool = True) -> None:
        """Write the file with the state at the start of a round. The state is computed from `moves`, which yields the
        pieces of the previous round: model, mean update and state.
        """
        if not self.has_state:
            return
        outputs = range(1, len(self._optimiser.state_names) + 1)
        pieces = chain.from_iterable(stepped(self._optimiser, moves(), output) for output in outputs)
        laid_out = state_layout(self._optimiser, layout)
        self._write(number, laid_out, pieces, durable=durable)

    def skip(self, number: int, following: int, layout: Layout) -> None:
        """Use the state at the start of a round also at the start of a later round, `following`. The rounds between
        them were missed.
        """
        if self.has_state:
            laid_out = state_layout(self._optimiser, layout)
            with closing(ModelFile(self._path(number), laid_out)) as found:
                self._write(following, laid_out, found.pieces())

    def remove(self, number: int) -> None:
        """Delete the state of a round to which the run cannot return."""
        if self.has_state:
            self._path(number).unlink(missing_ok=True)

    def moved(self, moves: Iterator[Move]) -> Iterator[Flat]:
        """Yield the pieces of the next round's model. They are computed from `moves`, the pieces of the present round:
        model, mean update and state.
        """
        return stepped(self._optimiser, moves, 0)

    def at(self, number: int, layout: Layout, start: int, stop: int) -> tuple[Flat, ...]:
        """Return the elements from `start` to `stop` (exclusive) of the state at the start of a round, for a model of
        this layout.
        """
        if not self.has_state:
            return ()
        if self._open is None or self._open[0] != number:
            self._open = (number, ModelFile(self._path(number), state_layout(self._optimiser, layout)))
        found, vectors = self._open[1], range(len(self._optimiser.state_names))
        return tuple(found.read(number * layout.size + start, number * layout.size + stop) for number in vectors)

    def _write(self, number: int, layout: Layout, pieces: Iterator[Flat], *, durable: bool = True) -> None:
        write_model(self._path(number), layout, pieces, self._metadata(number), durable=durable)

    def _path(self, number: int) -> Path:
        return self._folder / f"optimiser-{number:06d}.safetensors"
