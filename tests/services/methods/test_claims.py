"""Peers that claim more than they may, stop a run for odd reasons, or watch it and go away."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedstrata.streams.streams import UPDATE_PART
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2, tensors_pb2
from fedstrata.v1.answers_pb2 import AnswerHeader, AnswerPart, ArrayHeader
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub, RunServiceStub
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub
from gps.servicer import RunServicer
from tests.support.attempts import attempt_of
from tests.support.tiers import Tiers, small

EXPERIMENT, WITH_PROFILES = small("method=oracle"), small()
GROWTH_BYTES = 150 << 20
HANGS_S = 60  # who takes longer hangs

# --- RunService -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("", "stopped by the experimenter"),
        ("enough\r\n\x1b[2J of it", "enough [2J of it"),
        ("é" * 400_000, "é" * 299 + "…"),
    ],
    ids=["none", "control", "800 kB"],
)
async def test_a_run_that_is_stopped_for_whatever_reason_says_it_in_a_line_and_serves_its_record(
    tmp_path: Path, reason: str, said: str
) -> None:
    async with Tiers(EXPERIMENT, tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as channel:
        run = RunServiceStub(channel)
        await asyncio.gather(*(run.StopRun(pb.StopRunRequest(reason=reason)) for _ in range(5)))
        record = await tiers.ended()
        await run.StopRun(pb.StopRunRequest(reason="again, when it is over"))
        *_, last = [status async for status in run.WatchRun(pb.WatchRunRequest())]
        files = {part.name async for part in run.FetchRecord(pb.FetchRecordRequest())} - {""}
    assert record.summary.status == last.phase == "failed"
    assert last.reason == said
    assert {"summary.json", "experiment.yaml"} <= files


async def test_who_watches_and_goes_away_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching, nobody = 0, asyncio.Event()
    watch_run = RunServicer.WatchRun

    async def counted(*call: Any) -> AsyncIterator[pb.RunStatus]:
        nonlocal watching
        watching += 1
        nobody.clear()
        try:
            async for status in watch_run(*call):
                yield status
        finally:
            watching -= 1
            if not watching:
                nobody.set()

    monkeypatch.setattr(RunServicer, "WatchRun", counted)
    async with Tiers(EXPERIMENT, tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as channel:
        watches = [RunServiceStub(channel).WatchRun(pb.WatchRunRequest()) for _ in range(100)]
        for watch in watches:
            assert (await watch.read()).run_id == EXPERIMENT.run_id
        assert watching == 100
        for watch in watches:
            watch.cancel()
        async with asyncio.timeout(HANGS_S):
            await nobody.wait()
        await tiers.start_devices()
        assert (await tiers.ended()).summary.status == "completed"


# --- claims ---------------------------------------------------------------------------------------


SHAPES = [[16, 64], [16], [10, 16], [10]]  # of the small model's tensors
NAMES = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def claim(shapes: list[list[int]]) -> tensors_pb2.PayloadHeader:
    """The header of a payload of the right tensors that says it has 10 GB."""
    tensors = [tensors_pb2.TensorHeader(name=n, shape=shape) for n, shape in zip(NAMES, shapes, strict=False)]
    part = tensors_pb2.WeightedTensors(name=UPDATE_PART, num_examples=60, tensors=tensors)
    return tensors_pb2.PayloadHeader(encoding=tensors_pb2.ENCODING_FLOAT32, parts=[part], payload_bytes=10_000_000_000)


@pytest.fixture
async def grouped(tmp_path: Path) -> AsyncIterator[Tiers]:
    """A run whose rounds are open at the GPS and both LPSs, and of whose devices none has come to train."""
    async with Tiers(EXPERIMENT, tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as channel:
        for index, device_id in enumerate(EXPERIMENT.device_ids()):
            await GpsServiceStub(channel).Enroll(
                pb.EnrollRequest(
                    device_id=device_id, device_index=index, experiment_sha256=EXPERIMENT.digest, num_examples=60
                )
            )
        await asyncio.gather(*(tiers.start_lps(f"lps-{n}") for n in range(2) if f"lps-{n}" not in tiers.lps))
        await tiers.until(lambda: tiers.run.phase == "training")
        await asyncio.gather(*(lps.agent.knows_clusters.wait() for lps in tiers.lps.values()))
        yield tiers


async def refusal_of(call: Any) -> grpc.aio.AioRpcError:
    """How the server ends a call while its sender is still there and has more to say."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async with asyncio.timeout(HANGS_S):
            if isinstance(call, grpc.aio.StreamStreamCall):
                assert [part async for part in call] == []
            else:
                await call
    return raised.value


async def and_no_more(*parts: Any) -> AsyncIterator[Any]:
    """A sender that neither goes on nor ends."""
    for part in parts:
        yield part
    await asyncio.Event().wait()


@pytest.mark.parametrize("number", [0, 7], ids=["the open round", "another round"])
@pytest.mark.parametrize(
    ("name", "is_aggregate"),
    [("SubmitUpdate", False), ("Attend", False), ("SubmitAggregate", True), ("Attend", True)],
    ids=["SubmitUpdate", "Attend", "SubmitAggregate", "Attend of an LPS"],
)
async def test_an_update_that_claims_10_gb_is_refused_by_its_header(
    grouped: Tiers, name: str, is_aggregate: bool, number: int
) -> None:
    header = rounds_pb2.UpdateHeader(
        run_id=attempt_of(EXPERIMENT), child_id="lps-0" if is_aggregate else "device-000", home_id="lps-0", round=number
    )
    header.payload.CopyFrom(claim(SHAPES[:2] if is_aggregate else SHAPES))
    stream = and_no_more(rounds_pb2.UpdatePart(header=header))
    address = grouped.address if is_aggregate else grouped.lps["lps-0"].server.address
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = GpsServiceStub(channel) if is_aggregate else LpsServiceStub(channel)
        error = await refusal_of(getattr(stub, name)(stream))
    assert "the header announces 10000000000 bytes; expected" in (error.details() or "")


async def test_a_profile_that_claims_10_gb_is_refused_by_its_header(tmp_path: Path) -> None:
    async with Tiers(WITH_PROFILES, tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as channel:
        gps = GpsServiceStub(channel)
        request = pb.EnrollRequest(device_id="device-000", experiment_sha256=WITH_PROFILES.digest, num_examples=60)
        await gps.Enroll(request)
        header = AnswerHeader(
            run_id=attempt_of(WITH_PROFILES),
            device_id="device-000",
            arrays=[ArrayHeader(name="eigenvectors", dtype="float32", shape=[5, 64])],
            payload_bytes=10_000_000_000,
        )
        error = await refusal_of(gps.SubmitAnswer(and_no_more(AnswerPart(header=header, question="profile"))))
    assert error.details() == "10000000000 bytes announced for profile, expected 1280"


async def test_a_report_larger_than_the_model_is_refused_and_leaves_no_file(grouped: Tiers) -> None:
    for global_round in range(EXPERIMENT.training.global_rounds):  # it comes after the last
        grouped.run.journal.rounds.close(global_round)
    header = pb.ReportHeader(run_id=attempt_of(EXPERIMENT), lps_id="lps-0", home_id="lps-0")
    mebibyte = pb.ReportPart(data=bytes(1 << 20))  # of a model that has less than a hundredth of that
    stream = and_no_more(pb.ReportPart(header=header), mebibyte, mebibyte)
    async with grpc.aio.insecure_channel(grouped.address) as channel:
        error = await refusal_of(GpsServiceStub(channel).SubmitReport(stream))
    assert "the model file of lps-0 has more than" in (error.details() or "")
    assert not [path for path in grouped.run.record_folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["GpsService/Enroll", "GpsService/SubmitReport", "RunService/StopRun"])
async def test_a_message_that_claims_4_gib_is_refused_before_it_comes(tmp_path: Path, name: str) -> None:
    """The most that gRPC's own frame can claim, of a message whose first bytes are all that ever comes."""
    async with Tiers(EXPERIMENT, tmp_path / "run") as tiers:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = await asyncio.to_thread(claim_by_hand, tiers.address, f"/fedstrata.v1.{name}")
        assert b"larger than max (4294967295 vs." in answer
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GROWTH_BYTES
        await tiers.start_devices()
        assert (await tiers.ended()).summary.status == "completed"


def claim_by_hand(address: str, path: str) -> bytes:
    """Begin a call in bare HTTP/2 with a message frame of 2³² − 1 bytes; what comes back until the call is ended."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test", "te": "trailers"}
    headers["content-type"] = "application/grpc"
    block = b"".join(b"\0" + literal(name) + literal(value) for name, value in headers.items())
    data = b"\0\xff\xff\xff\xff" + bytes(100)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, block))
        connection.sendall(frame(0, 0, 1, data))
        said = b""
        while b"grpc-message" not in said and (more := connection.recv(4096)):
            said += more
    return said


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def literal(text: str) -> bytes:
    """A string of HPACK, without Huffman's code."""
    return bytes([len(text)]) + text.encode()
