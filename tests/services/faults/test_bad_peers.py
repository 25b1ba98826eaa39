"""Peers that are of another run, claim to be others, or speak no sense: told so, and nobody else notices."""

import asyncio
import errno
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from device.enrolment import GpsClient
from emulator.commands.main import execute
from fedstrata.clock.round_side import ChildClock
from fedstrata.datasets import dataset_info
from fedstrata.errors import (
    BegunAgainError,
    DuplicateDeviceError,
    ExcludedError,
    NotServedError,
    PayloadError,
    UnknownChildError,
    WrongRunError,
)
from fedstrata.experiment import Experiment
from fedstrata.models import build_model
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.quoting import REASON_CHARACTERS
from fedstrata.process.time_limits import HOLD_S
from fedstrata.rpc.client import refusal
from fedstrata.rpc.payload import payload_header
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tensors import PayloadCodec
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2, tensors_pb2
from fedstrata.v1.answers_pb2 import Answer, AnswerPart, ArrayHeader, BundleHeader, BundlePart, FetchAnswersRequest
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub
from gps.kubernetes.backend import Backend
from gps.run import Run
from gps.servicer import GpsServicer
from tests.support.attempts import attempt_of
from tests.support.programs import Program, wait_for_record
from tests.support.tiers import SMALL, Clock, Tiers, small

EXPERIMENT = small("method=oracle")
RUN_ID = attempt_of(EXPERIMENT)
HELD_OUT = [60, 59, 59, 89, 88]  # what the devices have to measure on


@pytest.fixture
async def tiers(tmp_path: Path) -> AsyncIterator[Tiers]:
    """A GPS and two LPSs that serve a grouped run, of whose devices none has come to train."""
    async with Tiers(EXPERIMENT, tmp_path / "run") as made, grpc.aio.insecure_channel(made.address) as channel:
        gps = GpsServiceStub(channel)
        for index, device_id in enumerate(EXPERIMENT.device_ids()):
            await gps.Enroll(enrolment(index, device_id))
        await made.until(lambda: made.run.phase == "training")
        await asyncio.gather(*(lps.agent.knows_clusters.wait() for lps in made.lps.values()))
        yield made
        await assert_the_run_completes(made)


async def assert_the_run_completes(tiers: Tiers) -> None:
    """Whatever went before: the devices come, train, and no one is missing in the record."""
    await tiers.start_devices()
    summary = (await tiers.ended()).summary
    assert summary.status == "completed"
    assert not summary.excluded


def enrolment(index: int, device_id: str, **changed: Any) -> pb.EnrollRequest:
    sizes = [task.examples_per_device for task in EXPERIMENT.partition.tasks for _ in range(task.devices)]
    fields = {"experiment_sha256": EXPERIMENT.digest, "num_examples": sizes[index], "process_id": "first"}
    fields["num_held_out"] = HELD_OUT[index]
    return pb.EnrollRequest(device_index=index, device_id=device_id, **{**fields, **changed})


async def refused(call: Any) -> Exception:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert "\n" not in (error.value.details() or "")
    return refusal(error.value)


async def submit(tiers: Tiers, *parts: rounds_pb2.UpdatePart, lps: str = "lps-0") -> Any:
    async def stream() -> AsyncIterator[rounds_pb2.UpdatePart]:
        for part in parts:
            yield part

    async with grpc.aio.insecure_channel(tiers.lps[lps].server.address) as channel:
        return await LpsServiceStub(channel).SubmitUpdate(stream())


async def first_part_of_the_model(tiers: Tiers, experiment: Experiment, device_id: str) -> rounds_pb2.ModelPart:
    """What a device gets first when the round is open."""
    request = rounds_pb2.FetchModelRequest(
        run_id=attempt_of(experiment), child_id=device_id, home_id="lps-0", sent_round=-1, resume_round=-1
    )
    async with grpc.aio.insecure_channel(tiers.lps["lps-0"].server.address) as channel:
        part: rounds_pb2.ModelPart = await anext(aiter(LpsServiceStub(channel).FetchModel(request)))
        return part


def header(*, shape: list[int], payload_bytes: int, **changed: Any) -> rounds_pb2.UpdatePart:
    """The header of an update for the round that is open."""
    shapes = {"fc1.weight": shape, "fc1.bias": [16], "fc2.weight": [10, 16], "fc2.bias": [10]}
    tensors = [tensors_pb2.TensorHeader(name=name, shape=each) for name, each in shapes.items()]
    payload = tensors_pb2.PayloadHeader(
        encoding=tensors_pb2.ENCODING_FLOAT32,
        parts=[tensors_pb2.WeightedTensors(name=UPDATE_PART, num_examples=60, tensors=tensors)],
        payload_bytes=payload_bytes,
    )
    fields = {"run_id": RUN_ID, "child_id": "device-009", "home_id": "lps-0", "round": 0, **changed}
    return rounds_pb2.UpdatePart(header=rounds_pb2.UpdateHeader(payload=payload, **fields))


# --- another run, another file, another's name ----------------------------------------------------


async def test_a_call_of_another_run_is_told_which_run_this_is(tiers: Tiers) -> None:
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        error = await refused(GpsServiceStub(gps).FetchAssignment(pb.FetchAssignmentRequest(run_id="other-run")))
    assert isinstance(error, WrongRunError)
    run_id = EXPERIMENT.run_id
    assert str(error) == f"this is run {run_id}, not 'other-run'; restart with the experiment file of {run_id}"
    error = await refused(submit(tiers, header(shape=[16, 64], payload_bytes=4, run_id="other-run")))
    assert isinstance(error, WrongRunError)


async def test_a_call_of_another_attempt_is_told_that_the_run_begins_again(tiers: Tiers) -> None:
    run_id = f"{EXPERIMENT.run_id}/ffffffff"
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        error = await refused(GpsServiceStub(gps).FetchAssignment(pb.FetchAssignmentRequest(run_id=run_id)))
    assert isinstance(error, BegunAgainError)
    assert str(error).startswith(f"run {EXPERIMENT.run_id} begins again; restart this process")
    error = await refused(submit(tiers, header(shape=[16, 64], payload_bytes=4, run_id=run_id)))
    assert isinstance(error, BegunAgainError)


async def test_a_device_with_another_experiment_file_is_refused(tiers: Tiers) -> None:
    other = small("method=oracle", "seed=9")
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        link = link_of(gps, other, "device-000")
        with pytest.raises(WrongRunError, match="'device-000' was started with another experiment than the GPS"):
            await link.enroll(60, HELD_OUT[0], "")


class ProfilesAsked(GpsServicer):
    """A GPS that tells the test when a device has asked for the others' answers."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.asked = asyncio.Event()

    async def FetchAnswers(self, request: FetchAnswersRequest, context: Any) -> AsyncIterator[AnswerPart]:
        self.asked.set()
        async for part in super().FetchAnswers(request, context):
            yield part


async def test_a_second_process_cannot_take_a_device_that_is_there(tmp_path: Path) -> None:
    servicers: list[ProfilesAsked] = []

    def servicer(run: Run) -> ProfilesAsked:
        servicers.append(ProfilesAsked(run))
        return servicers[0]

    async with Tiers(small(), tmp_path / "run", servicer) as tiers:
        first = await tiers.start_devices([0])
        await servicers[0].asked.wait()  # it now waits for the others' profiles
        second = await tiers.host()
        assert second.process_id != first.process_id
        with pytest.raises(DuplicateDeviceError, match="another process runs device-000 already"):
            await tiers.start_device(second, 0)
        await tiers.start_devices([1, 2, 3, 4])
        assert (await tiers.ended()).summary.status == "completed"


async def test_unknown_devices_and_indexes_are_refused(tiers: Tiers) -> None:
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        stub = GpsServiceStub(gps)
        for index, device_id in ((0, "device-001"), (99, "device-099"), (-1, "device-000"), (0, "x" * 5000)):
            request = pb.EnrollRequest(
                device_index=index, device_id=device_id, experiment_sha256=EXPERIMENT.digest, num_examples=60
            )
            assert isinstance(await refused(stub.Enroll(request)), UnknownChildError)


STALE = 7  # a term that no LPS has come to


class StaleAsks(GpsServicer):
    """A GPS that tells the test when an LPS of a stale term has asked for shared layers, and is held."""

    asked: asyncio.Event

    async def FetchShared(self, request: rounds_pb2.FetchModelRequest, context: Any) -> None:
        if request.term == STALE:
            self.asked.set()
        await super().FetchShared(request, context)


async def test_an_lps_that_does_not_serve_a_cluster_any_more_is_late_and_waits(tmp_path: Path) -> None:
    experiment, clock = small("method=oracle", "deadlines.gps.deadline_s=3600"), Clock()
    StaleAsks.asked = asyncio.Event()
    async with (
        Tiers(experiment, tmp_path / "run", StaleAsks) as tiers,
        grpc.aio.insecure_channel(tiers.address) as channel,
    ):
        gps = GpsServiceStub(channel)
        for index, device_id in enumerate(experiment.device_ids()):
            await gps.Enroll(enrolment(index, device_id, experiment_sha256=experiment.digest))
        await tiers.until(lambda: tiers.run.phase == "training")
        ids = {"run_id": attempt_of(experiment), "child_id": "lps-0", "home_id": "lps-0", "term": STALE}
        stale = rounds_pb2.UpdateHeader(lps_id="lps-0", round=0, **ids)
        model = build_model(experiment.model, dataset_info(experiment.data))

        async def aggregate() -> AsyncIterator[rounds_pb2.UpdatePart]:
            yield rounds_pb2.UpdatePart(header=stale)

        error = await refused(gps.SubmitAggregate(aggregate()))  # late or not, it is no aggregate of this model
        assert isinstance(error, PayloadError)
        layout = model.layout.select(model.shared)
        stale.payload.CopyFrom(payload_header(PayloadCodec(layout, "float32"), name=UPDATE_PART, num_examples=60))
        assert not (await gps.SubmitAggregate(aggregate())).accepted
        request = rounds_pb2.FetchModelRequest(sent_round=-1, resume_round=-1, **ids)
        waiting = asyncio.ensure_future(gps.FetchShared(request).read())
        await StaleAsks.asked.wait()
        await clock.advance(HOLD_S)
        assert (await waiting).WhichOneof("part") == "waiting"


# --- what is announced ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "payload_bytes", "reason"),
    [
        (
            [50_000, 50_000],
            10_000_000_744,
            "shape [50000, 50000]; expected 'fc1.weight' of shape [16, 64]",
        ),
        ([16, 64], 10_000_000_000, "the header announces 10000000000 bytes; expected 4840"),
        ([-16, -64], 4840, "of shape [-16, -64]; expected"),
    ],
)
async def test_an_update_of_other_shapes_or_of_10_gb_is_refused_by_its_header(
    tmp_path: Path, shape: list[int], payload_bytes: int, reason: str
) -> None:
    experiment = small("method=oracle", "deadlines.lps.quorum_ratio=0.5")
    async with Tiers(experiment, tmp_path / "run") as tiers:
        host = await tiers.host()
        for index in range(1, 5):
            tiers.start_device(host, index)
        async with grpc.aio.insecure_channel(tiers.address) as gps:
            link = link_of(gps, experiment, "device-000")
            await link.enroll(60, HELD_OUT[0], "")
            await link.assignment()
        await first_part_of_the_model(tiers, experiment, "device-000")
        bad = header(shape=shape, payload_bytes=payload_bytes, child_id="device-000", run_id=attempt_of(experiment))
        error = await refused(submit(tiers, bad, rounds_pb2.UpdatePart(data=bytes(64))))
        assert isinstance(error, PayloadError)
        assert reason in str(error)
        record = await tiers.ended()
    assert record.summary.status == "completed"
    assert [gone.device for gone in record.summary.excluded] == ["device-000"]


async def test_a_part_s_name_of_a_megabyte_is_cut_in_every_reason_that_repeats_it(tmp_path: Path) -> None:
    experiment = small("method=oracle", "deadlines.lps.quorum_ratio=0.5")
    async with Tiers(experiment, tmp_path / "run") as tiers:
        await tiers.start_devices([1, 2, 3, 4])
        async with grpc.aio.insecure_channel(tiers.address) as gps:
            link = link_of(gps, experiment, "device-000")
            await link.enroll(60, HELD_OUT[0], "")
            await link.assignment()
        await first_part_of_the_model(tiers, experiment, "device-000")
        bad = header(shape=[16, 64], payload_bytes=4840, child_id="device-000", run_id=attempt_of(experiment))
        bad.header.payload.parts[0].name = "\x1b" * (1 << 20)
        error = await refused(submit(tiers, bad))
        assert isinstance(error, PayloadError)
        assert len(str(error)) <= REASON_CHARACTERS
        record = await tiers.ended()
    assert record.summary.status == "completed"
    (gone,) = record.summary.excluded
    assert gone.reason.startswith(r"refused: the payload has parts ['\x1b\x1b")
    assert len(gone.reason) == REASON_CHARACTERS


async def test_a_profile_that_announces_terabytes_is_refused_by_its_header(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as gps:
        link = link_of(gps, tiers.experiment, "device-000")
        await link.enroll(60, HELD_OUT[0], "")
        with pytest.raises(PayloadError, match=r"shape \[5, 1099511627776\]; expected float32 and at most \(5, 64\)"):
            await link.submit_answer(profile(5, 2**40, data=bytes(5 * 64 * 4)))
        with pytest.raises(ExcludedError, match="device-000 was refused"):
            await link.submit_answer(profile(5, 64, data=np.eye(5, 64, dtype=np.float32).tobytes()))


def profile(*shape: int, data: bytes) -> Answer:
    """A device's eigenvectors as it announces them, with whatever data."""
    header = ArrayHeader(name="eigenvectors", dtype="float32", shape=shape)
    return Answer(question="profile", arrays=[header], data=data)


async def test_an_answer_to_what_nobody_asked_is_refused_by_name(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as gps:
        link = link_of(gps, tiers.experiment, "device-000")
        await link.enroll(60, HELD_OUT[0], "")
        with pytest.raises(PayloadError, match="no question is called 'age' in this run"):
            await link.submit_answer(Answer(question="age"))


async def test_a_bundle_of_answers_in_a_run_that_asks_nothing_in_training_is_refused(tiers: Tiers) -> None:
    async def bundle() -> AsyncIterator[BundlePart]:
        yield BundlePart(header=BundleHeader(run_id=RUN_ID, lps_id="lps-0", home_id="lps-0"))

    async with grpc.aio.insecure_channel(tiers.address) as gps:
        error = await refused(GpsServiceStub(gps).SubmitAnswers(bundle()))
    assert isinstance(error, PayloadError)
    assert str(error) == "this run asks devices nothing in global rounds"


async def test_an_lps_that_has_waited_for_ever_is_refused(tiers: Tiers) -> None:
    waits = [pb.Wait(name="device-000", what="its update", seconds=float("inf"))]
    request = pb.FetchClustersRequest(run_id=RUN_ID, lps_id="lps-0", waits=waits)
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        error = await refused(GpsServiceStub(gps).FetchClusters(request))
    assert isinstance(error, PayloadError)
    assert str(error) == "'lps-0' says that it has waited for inf; expected a finite number from 0 to 1e+09"


@pytest.mark.parametrize(
    ("deadline", "served_by"), [((), []), (("deadlines.gps.deadline_s=20",), [("lps-0", "lps-1")])], ids=["none", "one"]
)
async def test_an_lps_that_is_refused_is_gone_for_the_quorum_and_with_deadlines_another_adopts_its_devices(
    tmp_path: Path, deadline: tuple[str, ...], served_by: list[tuple[str, str]]
) -> None:
    experiment = small("method=oracle", "training.global_rounds=3", "deadlines.gps.quorum_ratio=0.5", *deadline)
    async with Tiers(experiment, tmp_path / "run") as tiers, grpc.aio.insecure_channel(tiers.address) as channel:
        gps = GpsServiceStub(channel)
        for index, device_id in enumerate(experiment.device_ids()):
            await gps.Enroll(enrolment(index, device_id, experiment_sha256=experiment.digest))
        await tiers.until(lambda: tiers.run.rounds.server.awaited[0] == 0)
        bad = header(shape=[1], payload_bytes=4, child_id="lps-0", lps_id="lps-0", run_id=attempt_of(experiment))
        error = await refused(gps.SubmitAggregate(iter([bad])))
        assert isinstance(error, PayloadError)
        failure = pb.ReportFailureRequest(run_id=attempt_of(experiment), lps_id="lps-0", reason="if not I, nobody")
        assert isinstance(await refused(gps.ReportFailure(failure)), NotServedError)
        await tiers.start_devices()
        summary = (await tiers.ended()).summary
    assert (summary.reason, summary.rounds) == (None, 3)
    assert [(told.cluster, told.by) for told in summary.adoptions] == served_by
    assert [(gone.device, gone.stage, gone.reason) for gone in summary.excluded] == [
        ("lps-0", "global round 1", f"refused: {error}")
    ]
    assert set(summary.model_sha256) == {"lps-1", *(cluster for cluster, _ in served_by)}
    restarted = Run(
        experiment, state=tmp_path / "run" / "gps", metrics=ProcessMetrics("gps"), backend=Backend(),
        log=EventLog("gps"), security=OPEN,
    )  # fmt: skip
    assert restarted.serving.presence.is_refused("lps-0")
    assert ("lps-0" in restarted.rounds.server.refused) == (not served_by)
    restarted.journal.close()


async def test_an_answer_in_a_stream_of_aggregates_is_refused_with_the_call_for_it(tiers: Tiers) -> None:
    part = rounds_pb2.UpdatePart(answer=rounds_pb2.RoundAnswer(run_id=RUN_ID, child_id="lps-0", home_id="lps-0"))
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        error = await refused(GpsServiceStub(gps).Attend(iter([part])).read())
    assert isinstance(error, PayloadError)
    assert "by SubmitAnswers" in str(error)


async def test_an_aggregate_that_is_announced_is_refused(tiers: Tiers) -> None:
    header = rounds_pb2.UpdateHeader(run_id=RUN_ID, child_id="lps-0", home_id="lps-0")
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        error = await refused(GpsServiceStub(gps).Attend(iter([rounds_pb2.UpdatePart(announced=header)])).read())
    assert isinstance(error, PayloadError)
    assert "takes no announced updates; send the update itself" in str(error)


async def test_a_message_larger_than_a_chunk_is_refused_before_it_is_read(tiers: Tiers) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await submit(tiers, rounds_pb2.UpdatePart(data=bytes(3 << 20)))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def link_of(channel: grpc.aio.Channel, experiment: Experiment, device_id: str) -> GpsClient:
    """A device's calls to the GPS, as a process of its own."""
    index = experiment.device_ids().index(device_id)
    log = EventLog("test")
    return GpsClient(
        GpsServiceStub(channel),
        experiment,
        device_id=device_id,
        device_index=index,
        process_id="test",
        log=log,
        clock=ChildClock(),
        kernel="test",
    )


# --- no sense at all ------------------------------------------------------------------------------


GARBAGE = {
    "zeros": b"\x00" * 4096,
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2 and nonsense": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 64,
    "nothing": b"",
}


async def test_the_servers_go_on_after_peers_that_speak_garbage(tiers: Tiers) -> None:
    for garbage in GARBAGE.values():
        for address in (tiers.address, tiers.lps["lps-0"].server.address):
            await asyncio.to_thread(say, address, garbage)


def say(address: str, garbage: bytes) -> None:
    """Say something and nothing more to an address, and listen until it hangs up."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection, suppress(ConnectionError):
        connection.sendall(garbage)
        with hung_up_before():
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


@contextmanager
def hung_up_before() -> Iterator[None]:
    """A server that has reset the connection by now leaves nothing to end; the kernel then knows no peer."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


async def test_messages_that_are_none_are_refused(tiers: Tiers) -> None:
    async with grpc.aio.insecure_channel(tiers.address) as gps:
        call = gps.unary_unary("/fedstrata.v1.GpsService/Enroll", request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\xff\xff\xff\xff no message")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await gps.unary_unary("/fedstrata.v1.GpsService/NoSuchCall")(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    for empty in ((), (rounds_pb2.UpdatePart(),), (rounds_pb2.UpdatePart(data=b"1234"),)):
        assert isinstance(await refused(submit(tiers, *empty)), PayloadError)


# --- descriptors ----------------------------------------------------------------------------------

TOO_FEW = "a process can open only 24 files here; at least 64 are needed; raise ulimit -n"


@pytest.mark.runs
def test_a_server_with_few_descriptors_goes_on_under_silent_connections(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL.replace("clusters: 2", "clusters: 1"))
    common = ("--experiment", str(tmp_path / "small.yaml"))
    with ExitStack() as stack:

        def started(tier: str, *words: str, files: int | None = None) -> str:
            log = tmp_path / f"{tier}.log"
            program = stack.enter_context(Program(tier, *common, *words, log=log, files=files))
            address = program.addresses().get("grpc", "")
            for _ in range(250 if files else 0):
                host, _, port = address.rpartition(":")
                stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            return address

        gps = started("gps", "--state", str(tmp_path / "gps"), files=200)
        started("lps", "--state", str(tmp_path / "lps"), "--gps", gps, "--lps-id", "lps-0", files=200)
        started("device", "--gps", gps, "--devices", "0-4")
        wait_for_record(gps)


def test_too_few_descriptors_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("--experiment", str(tmp_path / "small.yaml"), "--state", str(tmp_path / "state"))
    with Program("gps", *words, log=tmp_path / "log", files=24) as program:
        assert program.end() == 4
    assert program.errors() == [f"error: {TOO_FEW}"]


def test_too_few_descriptors_are_told_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (24, 24))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    (tmp_path / "small.yaml").write_text(SMALL)
    assert execute(["run", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]) == 4
    assert TOO_FEW in capsys.readouterr().err
    assert not list(tmp_path.glob("out/**/summary.json"))


# --- ports ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tier", "option"), [("gps", "--http"), ("lps", "--listen")])
def test_a_port_in_use_ends_a_server_with_exit_code_6_and_a_reason(tmp_path: Path, tier: str, option: str) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        words = ["--experiment", str(tmp_path / "small.yaml"), "--state", str(tmp_path / "state"), option, taken]
        words += ["--gps", taken, "--lps-id", "lps-0"] if tier == "lps" else []
        with Program(tier, *words, log=tmp_path / "log") as program:
            assert program.end() == 6
    (line,) = program.errors()
    assert line.startswith("error: cannot ")
    assert taken in line
