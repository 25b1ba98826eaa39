"""Write the curves of a run for TensorBoard, with its own library."""

import re
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from emulator.shipped.extras import needed
from emulator.tracking.tracker import Key, Point, TrackedRun

ROOM = 2**18  # bytes, several times what the points of one write need


class TensorBoardTracker:
    """Write event files into a log folder. Each cluster has a folder with its curves over LPS rounds.

    In a log folder that the user names, each run has a folder of its own.
    """

    name = "tensorboard"

    def __init__(self, place: str = "") -> None:
        """Set the log folder. By default it is `tensorboard` in the run's folder. Raises MissingPackageError if
        TensorBoard is not installed.
        """
        self._files = needed("tensorboard.summary.writer.event_file_writer")
        self._protos = needed("tensorboard.compat.proto.event_pb2"), needed("tensorboard.compat.proto.summary_pb2")
        self._place = place
        self._logs = Path()
        self._writers: dict[str, Any] = {}

    def begin(self, run: TrackedRun) -> None:
        self._logs = Path(self._place) / _folder_name(run.label) if self._place else run.folder / "tensorboard"
        self._writers = {}

    def write(self, points: Sequence[Point]) -> None:
        try:
            self._add(points)
        except OSError:
            self._drop()
            raise

    def _add(self, points: Sequence[Point]) -> None:
        events, summaries = self._protos
        for point in points:
            value = summaries.Summary.Value(tag=point.name, simple_value=point.value)
            event = events.Event(
                step=point.step, wall_time=point.time_ms / 1000, summary=summaries.Summary(value=[value])
            )
            self._writer(point.cluster).add_event(event)
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, cluster: str) -> Any:
        if cluster not in self._writers:
            folder = self._logs / _folder_name(cluster)
            _check_room(folder)
            self._writers[cluster] = self._files.EventFileWriter(str(folder))
        return self._writers[cluster]

    def _drop(self) -> None:
        """Forget the writers: a writer that has failed, such as on a full disk, writes nothing more."""
        for writer in self._writers.values():
            with suppress(OSError):
                writer.close()
        self._writers = {}

    def present(self, points: Sequence[Point]) -> Set[Key]:
        return {
            (cluster, name, step)
            for cluster in {point.cluster for point in points}
            for name, step in self.in_files(self._logs / _folder_name(cluster))
        } & {point.key for point in points}

    def in_files(self, folder: Path) -> Iterator[tuple[str, int]]:
        """Yield the name and step of each point in the event files of a folder."""
        loader, (events, _) = needed("tensorboard.backend.event_processing.event_file_loader"), self._protos
        for path in folder.glob("events.*"):
            for content in loader.RawEventFileLoader(str(path)).Load():
                event = events.Event.FromString(content)
                yield from ((value.tag, event.step) for value in event.summary.value)

    def end(self, *, is_completed: bool) -> None:  # event files have no outcome
        for writer in self._writers.values():
            writer.close()


def _check_room(folder: Path) -> None:
    """Raise OSError if a folder has no room for points. A new writer would leave a file there at each try."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder) as file:
        file.write(bytes(ROOM))


def _folder_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.-]+", "_", text)
