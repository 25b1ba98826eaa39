"""`fedstrata collect` follows a run in pods. With `--track`, an interrupted call goes on in the same folder."""

import shutil
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from emulator.cluster import remote
from emulator.cluster.release import Release
from emulator.runs.follow import Outcome
from emulator.runs.progress import Display
from emulator.tracking.tracker import Key, Point, TrackedRun
from emulator.tracking.tracking import Tracking
from fedstrata.errors import AddressError, OutputError, RunStoppedError
from fedstrata.experiment_file import parse_experiment
from fedstrata.page import Feed, PageApp
from fedstrata.process.http import StatusServer
from fedstrata.record.rounds import RoundRow, page_row
from fedstrata.tasks import CLASSIFICATION
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from tests.support.record_files import write_record

LAB = Release(name="lab", namespace="default")
EXPERIMENT = parse_experiment("""
name: two-tasks
partition: {kind: iid, devices: 5, examples_per_device: 20}
training: {lps_rounds_per_global_round: 1}
""")


class Noting:
    """A tracker that notes what it gets, and says when it has a number of points."""

    name = "noting"

    def __init__(self, wanted: int) -> None:
        self.points: list[Key] = []
        self.runs: list[TrackedRun] = []
        self.has = Event()
        self._wanted = wanted

    def begin(self, run: TrackedRun) -> None:
        self.runs.append(run)

    def write(self, points: Sequence[Point]) -> None:
        self.points += [each.key for each in points]
        if len(self.points) >= self._wanted:
            self.has.set()

    def present(self, points: Sequence[Point]) -> Set[Key]:
        return {each.key for each in points} & set(self.points)

    def end(self, *, is_completed: bool) -> None: ...


@pytest.fixture
def served() -> Iterator[str]:
    feed = Feed()
    row = RoundRow(
        global_round=1, lps_round=1, lps_id="lps-0", devices=3, num_examples=300, loss=1.5,
        metrics={"accuracy": None}, seconds=0.5, bytes_up=300, bytes_down=330, lowest=None, highest=None,
    )  # fmt: skip
    parts = {"experiment": EXPERIMENT.to_yaml(), "summary/run_id": EXPERIMENT.run_id}
    feed.publish(parts, [(row.key, page_row(row, CLASSIFICATION.headline))])
    with StatusServer("127.0.0.1:0", CollectorRegistry(), lambda: True, PageApp(feed)) as server:
        yield server.address
        feed.close()


class Access:
    """The GPS of a release, whose page this machine serves."""

    page = ""

    def __init__(self, _: object) -> None: ...

    @contextmanager
    def of_operator(self) -> Iterator[Any]:
        yield OPEN

    @contextmanager
    def address(self, _port: str = "grpc") -> Iterator[str]:
        yield self.page


class Client:
    """A client of the GPS that fetches a record."""

    def __init__(self, *_: object) -> None: ...

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def fetch_record(self, _: str, folder: Path) -> None:
        shutil.copytree(write_record(folder.parent / "record"), folder, dirs_exist_ok=True)


def test_an_interrupted_call_goes_on_in_the_same_folder_and_no_point_comes_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: str
) -> None:
    monkeypatch.setattr(remote, "InstalledRelease", lambda _: None)
    monkeypatch.setattr(remote, "GpsAccess", Access)
    monkeypatch.setattr(remote, "RunClient", Client)
    monkeypatch.setattr("emulator.results.report.write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(Access, "page", served)
    first, second = Noting(4), Noting(1)

    async def interrupted(*_: object) -> Outcome:
        assert first.has.wait(60)
        raise KeyboardInterrupt

    async def ended(*_: object) -> Outcome:
        return Outcome(status=pb.RunStatus(has_record=True), failure=None)

    monkeypatch.setattr(remote, "follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        remote.collect(LAB, tmp_path / "got", Display(), Tracking([first]))
    monkeypatch.setattr(remote, "follow", ended)
    with pytest.raises(OutputError, match="is not empty"):
        remote.collect(LAB, tmp_path / "got", Display(), Tracking())
    remote.collect(LAB, tmp_path / "got", Display(), Tracking([second]))
    assert [each.run_id for each in first.runs] == [EXPERIMENT.run_id]
    lines = [("lps-0", 1), ("lps-1", 1), ("lps-0", 2), ("lps-1", 2)]
    counted = {(lps, name, step) for lps, step in lines for name in ("seconds", "bytes_up", "bytes_down", "loss")}
    measured = {(lps, "accuracy", step) for lps, step in lines} - {("lps-0", "accuracy", 1)}
    assert sorted(first.points + second.points) == sorted(counted | measured | {("run", "accuracy", 2)})


def test_after_a_failed_run_the_advised_command_finds_its_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def failed(*_: object) -> Outcome:
        return Outcome(status=pb.RunStatus(has_record=True), failure=RunStoppedError("the quorum is 10"))

    monkeypatch.setattr(remote, "InstalledRelease", lambda _: None)
    monkeypatch.setattr(remote, "GpsAccess", Access)
    monkeypatch.setattr(remote, "RunClient", Client)
    monkeypatch.setattr(remote, "follow", failed)
    elsewhere = Release(name="lab", namespace="garden")
    with pytest.raises(RunStoppedError, match=r"the quorum is 10; .* --again --release lab --namespace garden$"):
        remote.collect(elsewhere, tmp_path / "got", Display(), Tracking())


def test_a_page_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="the GPS's page does not answer"):
        remote.run_of_page("127.0.0.1:1", tmp_path)
