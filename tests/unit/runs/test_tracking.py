"""Points of a run in tools, as their own libraries read them back: each point once, whatever dies or is away."""

import math
import resource
import threading
from collections.abc import Iterator, Sequence, Set
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from emulator.shipped import extras
from emulator.tracking.mlflow_tracker import MlflowTracker
from emulator.tracking.page_rows import rows_of_page
from emulator.tracking.point_writer import PointWriter
from emulator.tracking.registry import make_trackers
from emulator.tracking.tensorboard_tracker import TensorBoardTracker
from emulator.tracking.tracker import Key, Point, TrackedRun, Tracker, points_of
from emulator.tracking.wandb_files import logged
from emulator.tracking.wandb_tracker import WandbTracker
from fedstrata.errors import ExperimentError, MissingPackageError
from fedstrata.page import Feed, PageApp
from fedstrata.process.http import StatusServer
from fedstrata.record.rounds import RoundRow, page_row
from fedstrata.tasks import CLASSIFICATION


def row(lps_round: int, lps_id: str = "lps-0", accuracy: float | None = 0.5) -> RoundRow:
    return RoundRow(
        global_round=(lps_round + 1) // 2, lps_round=lps_round, lps_id=lps_id, devices=3, num_examples=30, loss=1.5,
        metrics={"accuracy": accuracy}, seconds=0.25, bytes_up=100, bytes_down=200, lowest=None, highest=None,
    )  # fmt: skip


def point(step: int, cluster: str = "lps-0", value: float = 0.5) -> Point:
    return Point(cluster=cluster, name="accuracy", step=step, value=value, time_ms=1_700_000_000_000)


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    (tmp_path / "run").mkdir()
    return TrackedRun(
        run_id="digits-0123",
        name="digits",
        folder=tmp_path / "run",
        settings={"seed": "7"},
        label="digits-0123",
        lps_rounds_per_global_round=1,
    )


class Unsteady:
    """A tracker whose calls fail a number of times."""

    name = "unsteady"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.got: list[tuple[str, str, int]] = []
        self.ended: list[bool] = []
        self.has = threading.Event()

    def _call(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionRefusedError("nobody listens")

    def begin(self, run: TrackedRun) -> None:
        self._call()

    def write(self, points: Sequence[Point]) -> None:
        self._call()
        self.got += [each.key for each in points]
        self.has.set()

    def present(self, points: Sequence[Point]) -> Set[Key]:
        self._call()
        return {point.key for point in points} & set(self.got)

    def end(self, *, is_completed: bool) -> None:
        self.ended.append(is_completed)


class Unheard(Unsteady):
    """A tracker whose answers to the first half of its points are lost: it has them, and the caller gets an error."""

    def write(self, points: Sequence[Point]) -> None:
        half = len(points) // 2
        super().write(points[:half])
        if half:
            raise TimeoutError("no answer")
        super().write(points)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.tracking.point_writer.RETRY_S", 0.01)
    monkeypatch.setattr("emulator.tracking.page_rows.RETRY_S", 0.01)


def test_measurements_are_of_models_after_global_rounds_and_what_was_not_measured_is_no_point() -> None:
    between = {each.name: each.value for each in points_of(row(1), "accuracy", 2, 0)}
    assert between == {"seconds": 0.25, "bytes_up": 100, "bytes_down": 200}
    after = {each.name: each.value for each in points_of(row(2, accuracy=None), "accuracy", 2, 0)}
    assert after == {**between, "loss": 1.5}
    assert "accuracy" not in {each.name for each in points_of(row(2, accuracy=math.nan), "accuracy", 2, 0)}


def test_a_tracker_that_fails_gets_each_point_once_and_the_user_one_line(run: TrackedRun) -> None:
    tracker, said = Unsteady(failures=5), list[str]()
    writer = PointWriter(tracker, run, said.append)
    writer.put([point(1), point(2)])
    writer.put([point(2), point(3)])
    writer.close(60, is_completed=True)
    assert tracker.got == [point(step).key for step in (1, 2, 3)]
    assert tracker.ended == [True]
    assert said == ["unsteady is away, the run goes on: ConnectionRefusedError: nobody listens"]


def test_a_run_that_continues_writes_only_points_that_are_not_written(run: TrackedRun) -> None:
    first, later = Unsteady(0), Unsteady(0)
    for tracker, steps in ((first, (1, 2)), (later, (1, 2, 3))):
        writer = PointWriter(tracker, run, print)
        writer.put(map(point, steps))
        writer.close(60, is_completed=False)
    assert (first.got, later.got) == ([point(1).key, point(2).key], [point(3).key])


def test_points_whose_confirmation_was_lost_are_not_written_again(run: TrackedRun) -> None:
    tracker = Unheard(0)
    writer = PointWriter(tracker, run, print)
    writer.put(map(point, range(1, 9)))
    writer.close(60, is_completed=True)
    assert tracker.got == [point(step).key for step in range(1, 9)]


@pytest.mark.parametrize("cut", [0, 1, 20], ids=["whole", "one byte", "twenty bytes"])
def test_a_line_of_notes_that_was_cut_spoils_no_later_line(run: TrackedRun, cut: int) -> None:
    tracker = Unsteady(0)
    for steps in ((1,), (1, 2), (1, 2, 3)):
        writer = PointWriter(tracker, run, print)
        writer.put(map(point, steps))
        writer.close(60, is_completed=False)
        (notes,) = (run.folder / "state" / "tracking").iterdir()
        notes.write_bytes(content[: len(content) - cut] if (content := notes.read_bytes()) else b"")
    assert tracker.got == [point(step).key for step in (1, 2, 3)]


def test_points_that_a_tracker_never_got_are_counted_and_written_when_the_run_continues(run: TrackedRun) -> None:
    said = list[str]()
    writer = PointWriter(Unsteady(10**9), run, said.append)
    writer.put([point(1), point(2)])
    writer.close(0.1, is_completed=True)
    assert said[-1] == "unsteady has not confirmed 2 points; they are in rounds.csv"
    tracker = Unsteady(0)
    writer = PointWriter(tracker, run, said.append)
    writer.put([point(1), point(2)])
    writer.close(60, is_completed=True)
    assert tracker.got == [point(1).key, point(2).key]


def test_notes_that_cannot_be_written_are_named_and_the_points_are_written_when_they_can(run: TrackedRun) -> None:
    (run.folder / "state").write_text("a file")  # so the folder of the notes cannot be made
    tracker, said, has_told = Unsteady(0), list[str](), threading.Event()

    def tell(line: str) -> None:
        said.append(line)
        has_told.set()

    writer = PointWriter(tracker, run, tell)
    writer.put([point(1)])
    assert has_told.wait(60)
    (run.folder / "state").unlink()
    writer.close(60, is_completed=True)
    assert (tracker.got, tracker.ended) == ([point(1).key], [True])
    notes = run.folder / "state" / "tracking"
    assert said == [f"unsteady waits, the run goes on: the notes in {notes} cannot be written: Not a directory"]


def test_notes_that_cannot_be_written_after_a_write_repeat_no_point(run: TrackedRun) -> None:
    notes, aside = run.folder / "state" / "tracking", run.folder / "aside"
    said, has_told = list[str](), threading.Event()

    class Hiding(Unsteady):
        def write(self, points: Sequence[Point]) -> None:
            super().write(points)
            notes.rename(aside)
            notes.write_text("a file")

    def tell(line: str) -> None:
        said.append(line)
        has_told.set()

    tracker = Hiding(0)
    writer = PointWriter(tracker, run, tell)
    writer.put([point(1)])
    assert has_told.wait(60)
    notes.unlink()
    writer.close(60, is_completed=True)
    assert (tracker.got, tracker.ended) == ([point(1).key], [True])
    assert len(said) == 1
    assert said[0].startswith(f"unsteady waits, the run goes on: the notes in {notes} cannot be written: ")


def served(feed: Feed, listen: str) -> StatusServer:
    return StatusServer(listen, CollectorRegistry(), lambda: True, PageApp(feed))


def publish(feed: Feed, *rows: RoundRow) -> None:
    feed.publish({"live/phase": "training"}, [(each.key, page_row(each, CLASSIFICATION.headline)) for each in rows])


def test_rows_come_from_the_page_also_after_the_gps_was_killed() -> None:
    feed, stop, found = Feed(), threading.Event(), list[RoundRow]()
    has = {number: threading.Event() for number in (1, 2, 3)}

    def read() -> None:
        for headline, each in rows_of_page(address, stop):
            assert headline == "accuracy"
            found.append(each)
            has[each.lps_round].set()

    publish(feed, row(1))
    with served(feed, "127.0.0.1:0") as server:
        address = server.address
        reader = threading.Thread(target=read)
        reader.start()
        assert has[1].wait(60)
        publish(feed, row(2))
        assert has[2].wait(60)
        feed.close()
    again = Feed()
    publish(again, row(1), row(2), row(3))
    with served(again, address):
        assert has[3].wait(60)
        stop.set()
        again.close()
        reader.join(60)
    assert {each.lps_round: each for each in found} == {number: row(number) for number in (1, 2, 3)}
    assert len(COLUMNS) == len(page_row(row(1), CLASSIFICATION.headline))


COLUMNS = [each.name for each in fields(RoundRow)]


def written(tracker: Tracker, run: TrackedRun) -> Iterator[None]:
    """The points of two clusters, whose rounds do not come in order; between two halves the run was continued."""
    for half in ([point(1), point(1, "lps-1", 0.25), point(2, "lps-1", 0.75)], [point(2, value=1.0)]):
        writer = PointWriter(tracker, run, print)
        writer.put(half)
        writer.close(60, is_completed=len(half) == 1)
        yield


def test_tensorboard_reads_each_point_once(run: TrackedRun) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    for _ in written(TensorBoardTracker(), run):
        pass
    curves = {}
    for cluster in ("lps-0", "lps-1"):
        # TensorBoard itself takes files of one process and second in the order of their names, where 10 is before 9.
        files = (run.folder / "tensorboard" / cluster).glob("events.*")
        events = [Event.FromString(each) for path in files for each in RawEventFileLoader(str(path)).Load()]
        curves[cluster] = sorted((each.step, value.simple_value) for each in events for value in each.summary.value)
    assert curves == {"lps-0": [(1, 0.5), (2, 1.0)], "lps-1": [(1, 0.25), (2, 0.75)]}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # from TensorBoard's own thread
def test_tensorboard_on_a_full_disk_makes_no_file_at_each_try(run: TrackedRun) -> None:
    pytest.importorskip("tensorboard")
    tracker, folder = TensorBoardTracker(), run.folder / "tensorboard" / "lps-0"
    tracker.begin(run)
    tracker.write([point(1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file of this process can grow
    try:
        for _ in range(20):
            with pytest.raises(OSError, match="File too large"):
                tracker.write([point(2), point(3)])
        assert len(list(folder.iterdir())) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tracker.present([point(1), point(2), point(3)]) == {point(1).key}
    tracker.write([point(2), point(3)])
    tracker.end(is_completed=True)
    assert sorted(tracker.in_files(folder)) == [("accuracy", step) for step in (1, 2, 3)]


def test_mlflow_reads_each_point_once_in_one_run(run: TrackedRun, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    place = str(tmp_path / "mlruns")
    for _ in written(MlflowTracker(place), run):
        pass
    client = mlflow.MlflowClient(tracking_uri=place)
    (found,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (found.info.run_name, found.info.status, found.data.params) == ("digits-0123", "FINISHED", {"seed": "7"})
    history = client.get_metric_history(found.info.run_id, "lps-0/accuracy")
    assert [(each.step, each.value) for each in history] == [(1, 0.5), (2, 1.0)]


def test_wandb_has_each_point_once_in_its_offline_files(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed here")
    monkeypatch.setenv("WANDB_MODE", "offline")
    writer = PointWriter(WandbTracker(), run, print)
    writer.put([point(1), point(1, "lps-1", 0.25), point(2, "lps-1", 0.75), point(2, value=1.0), point(1)])
    writer.close(110, is_completed=True)
    wandb.teardown()  # waits until its own process, which writes the file, has ended; at exit this happens by itself
    rows = [each for path in sorted(run.folder.glob("wandb/offline-*/*.wandb")) for each in logged(path)]
    assert sorted(sorted(each.items()) for each in rows) == [
        [("lps-0/accuracy", 0.5), ("lps_round", 1)],
        [("lps-0/accuracy", 1.0), ("lps_round", 2)],
        [("lps-1/accuracy", 0.25), ("lps_round", 1)],
        [("lps-1/accuracy", 0.75), ("lps_round", 2)],
    ]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_missing_is_one_line_with_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named {module!r}")

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(
        MissingPackageError, match=rf"{name} is not installed here .*; pip install 'fedstrata\[{name}\]'"
    ):
        make_trackers([name])


@pytest.mark.parametrize(
    ("words", "said"),
    [(["tensorbord"], "give tensorboard, mlflow, wandb"), (["wandb", "wandb:mine"], "wandb is given twice")],
)
def test_a_wrong_tracker_is_named(words: list[str], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        make_trackers(words)
