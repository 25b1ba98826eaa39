"""Following a run, against a RunService that says what each test writes, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from emulator.runs import follow as follow_module
from emulator.runs import run_client as client_module
from emulator.runs.follow import Outcome, follow
from emulator.runs.incoming import ASIDE, IncomingRecord
from emulator.runs.run_client import RunClient
from fedstrata.errors import AddressError, DataError, OutputError, PayloadError, RunStoppedError
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import gps_service_pb2_grpc as pb_grpc
from tests.support.ports import kept_address

DEADLINE_S = 20.0
SUMMARY = pb.FilePart(name="summary.json", data=b"{}")


class ScriptedGps(pb_grpc.RunServiceServicer):
    """Says one list of statuses a call; the last call's stream stays open until the run is stopped."""

    def __init__(self, scripts: Sequence[Sequence[pb.RunStatus]], parts: Sequence[pb.FilePart] = ()) -> None:
        self.scripts = list(scripts)
        self.parts = parts
        self.stop_reason = asyncio.get_running_loop().create_future()

    async def WatchRun(self, request: pb.WatchRunRequest, context: object) -> AsyncIterator[pb.RunStatus]:
        for status in self.scripts.pop(0):
            yield status
        if not self.scripts:
            reason = await self.stop_reason
            yield pb.RunStatus(phase="failed", reason=reason)
            yield pb.RunStatus(phase="failed", reason=reason, has_record=True)

    async def FetchRecord(self, request: pb.FetchRecordRequest, context: object) -> AsyncIterator[pb.FilePart]:
        for part in self.parts:
            yield part

    async def StopRun(self, request: pb.StopRunRequest, context: object) -> pb.StopRunResponse:
        self.stop_reason.set_result(request.reason)
        return pb.StopRunResponse()


class FakeBackend:
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        self.scaled: list[int] = []
        self.failing: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def start(self, experiment: object) -> str:
        raise AssertionError("a run that is followed was started before")

    async def scale_lps(self, replicas: int) -> None:
        self.scaled.append(replicas)

    async def failure(self) -> BaseException:
        return await asyncio.shield(self.failing)

    async def stop(self) -> None:
        raise AssertionError("following stops nothing")


Serve = Callable[..., Awaitable[str]]  # starts a server for a ScriptedGps, gives its address


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[grpc.aio.Server] = []

    async def start(gps: ScriptedGps, address: str = "127.0.0.1:0") -> str:
        server = grpc.aio.server()
        servers.append(server)
        pb_grpc.add_RunServiceServicer_to_server(gps, server)
        port = server.add_insecure_port(address)
        await server.start()
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        await server.stop(None)


def trained(rounds: int) -> pb.RunStatus:
    return pb.RunStatus(phase="training", global_round=rounds, global_rounds=2, lps_wanted=3)


async def followed(
    address: str, backend: FakeBackend | None = None, show: Callable[[pb.RunStatus], object] = lambda _: None
) -> Outcome:
    """How a run ends whose GPS is at this address."""
    async with RunClient(address, OPEN) as client:
        return await asyncio.wait_for(follow(client, backend or FakeBackend(), show), DEADLINE_S)


DONE = pb.RunStatus(run_id="r", phase="completed", global_round=2, global_rounds=2, lps_wanted=3, has_record=True)


async def test_a_run_is_shown_scaled_and_followed_to_its_record(serve: Serve, tmp_path: Path) -> None:
    model = pb.FilePart(name="models/lps-0.safetensors", data=b"ab")
    gps = ScriptedGps([[pb.RunStatus(phase="enrolment"), trained(0), DONE]], [model, pb.FilePart(data=b"cd"), SUMMARY])
    shown: list[pb.RunStatus] = []
    backend = FakeBackend()
    async with RunClient(await serve(gps), OPEN) as client:
        outcome = await asyncio.wait_for(follow(client, backend, shown.append), DEADLINE_S)
        await client.fetch_record(outcome.status.run_id, tmp_path)
    assert outcome.failure is None
    assert [status.phase for status in shown] == ["enrolment", "training", "completed"]
    assert backend.scaled == [3]
    assert (tmp_path / "models/lps-0.safetensors").read_bytes() == b"abcd"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "summary.json"]


async def test_watching_goes_on_when_the_gps_ends_its_stream(serve: Serve) -> None:
    gps = ScriptedGps([[trained(0)], [trained(1)], [DONE]])
    shown: list[pb.RunStatus] = []
    await followed(await serve(gps), show=shown.append)
    assert [status.global_round for status in shown] == [0, 1, 2]


async def test_watching_goes_on_when_the_gps_dies_and_comes_back(serve: Serve) -> None:
    first = grpc.aio.server()
    pb_grpc.add_RunServiceServicer_to_server(ScriptedGps([[trained(0)]]), first)
    seen = asyncio.Event()
    with kept_address() as address:
        assert first.add_insecure_port(address)
        await first.start()
        async with RunClient(address, OPEN) as client:
            following = asyncio.create_task(follow(client, FakeBackend(), lambda status: seen.set()))
            await asyncio.wait_for(seen.wait(), DEADLINE_S)
            await first.stop(None)
            await serve(ScriptedGps([[DONE]]), address)
            outcome = await asyncio.wait_for(following, DEADLINE_S)
    assert outcome.status.phase == "completed"


async def test_a_failed_run_tells_the_reason_of_the_gps_once_its_record_is_there(serve: Serve) -> None:
    reason = "quorum not reached"
    failed = pb.RunStatus(phase="failed", reason=reason)
    gps = ScriptedGps([[failed], [pb.RunStatus(phase="failed", reason=reason, has_record=True)]])
    outcome = await followed(await serve(gps))
    assert isinstance(outcome.failure, RunStoppedError)
    assert str(outcome.failure) == "quorum not reached"
    assert outcome.status.has_record


async def test_the_record_of_a_failed_run_is_not_waited_for_for_ever(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "FAILURE_DEADLINE_S", 0.1)
    gps = ScriptedGps([[pb.RunStatus(phase="failed", reason="disk full")]])
    outcome = await followed(await serve(gps))
    assert str(outcome.failure) == "disk full"
    assert not outcome.status.has_record


async def test_a_failure_that_only_echoes_the_end_of_the_run_gives_way_to_its_reason(serve: Serve) -> None:
    failed = pb.RunStatus(phase="failed", reason="quorum not reached", has_record=True)
    gps = ScriptedGps([[failed]])
    backend = FakeBackend()
    backend.failing.set_result(RunStoppedError("devices-0-4: the run has ended"))
    outcome = await followed(await serve(gps), backend)
    assert str(outcome.failure) == "quorum not reached"


async def test_a_failure_elsewhere_ends_the_run_at_the_gps_and_is_told(serve: Serve) -> None:
    gps = ScriptedGps([[trained(0)]])
    backend = FakeBackend()
    cause = DataError("devices-0-4: no data")
    following = asyncio.create_task(followed(await serve(gps), backend))
    backend.failing.set_result(cause)
    outcome = await following
    assert gps.stop_reason.result() == "devices-0-4: no data"
    assert outcome.status.phase == "failed"
    assert outcome.failure is cause


async def test_a_failure_is_told_though_the_gps_is_silent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "FAILURE_DEADLINE_S", 0.1)
    backend = FakeBackend()
    backend.failing.set_result(DataError("gps: disk full"))
    silent = ScriptedGps([[trained(0)]])
    silent.stop_reason.cancel()  # StopRun fails at the server
    with pytest.raises(DataError, match="gps: disk full"):
        await followed(await serve(silent), backend)


async def test_what_is_no_gps_is_said_to_be_none() -> None:
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    with pytest.raises(AddressError, match=f"{address} answered UNIMPLEMENTED"):
        await followed(address)
    await server.stop(None)


async def test_a_gps_without_a_word_is_not_asked_for_ever(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "EMPTY_STREAMS_MAX", 3)
    with pytest.raises(AddressError, match="accepts calls but does not answer"):
        await followed(await serve(ScriptedGps([[], [], [], []])))


class Refusing(ScriptedGps):
    """A GPS that breaks each call off with a reason."""

    async def WatchRun(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "certificate is not yet valid")
        yield


async def test_the_last_reason_of_a_gps_that_only_breaks_off_is_named(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "EMPTY_STREAMS_MAX", 3)
    with pytest.raises(AddressError, match="accepts calls but does not answer: certificate is not yet valid; see its"):
        await followed(await serve(Refusing([])))


# --- the record on its way in ---


@pytest.mark.parametrize(
    "name",
    [
        "../summary.json",
        "/etc/passwd.json",
        "models/../x.json",
        "a/b/c.csv",
        "report.html",
        "models/.safetensors",
        "x.csv\n",
    ],
)
def test_a_file_that_no_record_has_is_refused_and_nothing_kept(tmp_path: Path, name: str) -> None:
    with pytest.raises(PayloadError, match="not a file of a run record"), IncomingRecord(tmp_path) as incoming:
        incoming.add("summary.json", b"{}")
        incoming.add(name, b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [(["rounds.csv"], r"no summary\.json"), (["rounds.csv"] * 2, "twice"), ([""], "first part must name")],
)
def test_a_record_that_is_not_whole_is_refused_and_nothing_kept(tmp_path: Path, names: list[str], reason: str) -> None:
    with pytest.raises(PayloadError, match=reason), IncomingRecord(tmp_path) as incoming:
        for name in names:
            incoming.add(name, b"x")
        incoming.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write the record"), IncomingRecord(tmp_path / "file") as incoming:
        incoming.add("summary.json", b"{}")


def test_what_an_earlier_fetch_left_and_cannot_be_removed_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / ASIDE).touch()  # a file: rmtree refuses it, as it refuses another user's folder
    with pytest.raises(OutputError, match=rf"{ASIDE}: Not a directory"), IncomingRecord(tmp_path):
        pass


def test_what_an_interrupted_fetch_left_does_not_get_into_the_record(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), IncomingRecord(tmp_path) as incoming:
        incoming.add("rounds.csv", b"old")
        raise KeyboardInterrupt
    with IncomingRecord(tmp_path) as incoming:
        incoming.add("summary.json", b"{}")
        incoming.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
