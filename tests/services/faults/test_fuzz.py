"""Messages made up from every field's worst values, and bytes that are no messages, into every RPC of every service.

None may end in a fault of the server's own or stop it from answering, and the process must not grow with them. Most
fields hold what they would in a real call, so that what is wrong is met deep inside, too.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedstrata.experiment import Experiment
from fedstrata.v1 import gps_service_pb2, lps_service_pb2
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub
from tests.support.attempts import attempt_of
from tests.support.tiers import Tiers, small, whole_run

DEADLINE = "{deadline_s: 20, quorum_ratio: 0.1}"
EXPERIMENT = small("method=oracle", f"deadlines.lps={DEADLINE}")
WITH_PROFILES = small(f"deadlines.lps={DEADLINE}", f"deadlines.enrolment={DEADLINE}")
CALL_S = 0.15  # a call that the server holds is given up by then
ONCE_BYTES = 500 << 20  # what threads and allocators keep of messages of a megabyte; what they announce is terabytes
GROWTH_BYTES = 50 << 20  # by the same calls again
FIELD = FieldDescriptor
INTEGERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 59, 60, 2**31, 2**40, 2**63 - 1])
DOUBLES = st.sampled_from([0.0, -1.0, 0.5, 1e308, float("nan"), float("inf"), float("-inf")])
RUN_IDS, DIGESTS = ([of(e) for e in (EXPERIMENT, WITH_PROFILES)] for of in (attempt_of, lambda e: e.digest))
WORDS = [*RUN_IDS, EXPERIMENT.run_id, *DIGESTS, *EXPERIMENT.device_ids(), "device-999", "lps-0", "lps-1", "lps-x"]
STRINGS = st.one_of(
    st.sampled_from([*WORDS, "update", "0/model", "eigenvectors", "fc1.weight", "", "\n", "é" * 5000]),
    st.text(max_size=8),
)
BYTES = st.one_of(st.binary(max_size=64), st.sampled_from([bytes(4 * 64 * 16), bytes(1 << 20), b"\xff" * 4096]))
# What a field of this name holds in a real call: three times out of four this, else anything.
LIKELY: dict[str, list[Any]] = {
    "run_id": RUN_IDS,
    "experiment_sha256": DIGESTS,
    "device_id": EXPERIMENT.device_ids(),
    "child_id": [*EXPERIMENT.device_ids(), "lps-0", "lps-1"],
    "home_id": ["lps-0", "lps-1"],
    "lps_id": ["lps-0", "lps-1"],
    "process_id": ["fuzz"],
    "device_index": [0, 1, 2, 3, 4],
    "question": ["profile", "relevance", "losses"],
    "dtype": ["float32", "float64", "int64"],
    "num_examples": [60, 50],
    "encoding": [1],
    "round": [0, 1, 2],
    "lps_round": [0, 1, 2],
    "public_key": [bytes(32), b"short"],
    "signature": [b"", bytes(64)],
    "certificate": [b"", b"no certificate"],
    "roster_digest": [b"", bytes(32)],
    "payload_bytes": [4840, 4160, 1280, 10_000_000_000],
}
GPS, LPS, RUN = "fedstrata.v1.GpsService", "fedstrata.v1.LpsService", "fedstrata.v1.RunService"
METHODS: list[MethodDescriptor] = [
    *gps_service_pb2.DESCRIPTOR.services_by_name["GpsService"].methods,
    *lps_service_pb2.DESCRIPTOR.services_by_name["LpsService"].methods,
    *(m for m in gps_service_pb2.DESCRIPTOR.services_by_name["RunService"].methods if m.name != "StopRun"),
]


def value_of(field: Any, depth: int) -> st.SearchStrategy[Any]:
    if field.type == FIELD.TYPE_MESSAGE:
        return messages(field.message_type, depth - 1)
    if field.name in LIKELY:
        likely = st.sampled_from(LIKELY[field.name])
        return st.one_of(likely, likely, likely, anything(field))
    return anything(field)


def anything(field: Any) -> st.SearchStrategy[Any]:
    kinds = {
        FIELD.TYPE_STRING: STRINGS,
        FIELD.TYPE_BYTES: BYTES,
        FIELD.TYPE_BOOL: st.booleans(),
        FIELD.TYPE_ENUM: st.integers(0, 6),
        FIELD.TYPE_DOUBLE: DOUBLES,
        FIELD.TYPE_FLOAT: DOUBLES.filter(lambda x: abs(x) != 1e308),
        FIELD.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    }
    return kinds.get(field.type, INTEGERS)


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 4) -> Message:
    """A message whose fields hold what is likely to hurt; of a oneof, the last one drawn."""
    message: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        is_nested = field.type == FIELD.TYPE_MESSAGE
        if (is_nested and depth == 0) or draw(st.integers(0, 4)) == 0:
            continue
        if field.is_repeated:
            values = draw(st.lists(value_of(field, depth), max_size=2))
            if is_nested and field.message_type.GetOptions().map_entry:
                getattr(message, field.name).update({entry.key: entry.value for entry in values})
            else:
                getattr(message, field.name).extend(values)
        elif is_nested:
            getattr(message, field.name).CopyFrom(draw(value_of(field, depth)))
        else:
            setattr(message, field.name, draw(value_of(field, depth)))
    return message  # type: ignore[no-any-return]


@st.composite
def calls(draw: st.DrawFn) -> tuple[MethodDescriptor, list[bytes]]:
    """A method and what is sent into it."""
    method = draw(st.sampled_from(METHODS))
    count = draw(st.integers(1, 4)) if method.client_streaming else 1
    content = messages(method.input_type).map(lambda message: message.SerializeToString())
    return method, draw(st.lists(st.one_of(content, content, BYTES), min_size=count, max_size=count))


async def send(channels: dict[str, Any], method: MethodDescriptor, sent: list[bytes]) -> tuple[grpc.StatusCode, str]:
    """Make the call with these bytes, read what comes back, and say how it ended."""
    channel = channels[method.containing_service.full_name]
    path = f"/{method.containing_service.full_name}/{method.name}"
    up = "stream" if method.client_streaming else "unary"
    down = "stream" if method.server_streaming else "unary"
    make = getattr(channel, f"{up}_{down}")(path)

    async def stream() -> AsyncIterator[bytes]:
        for part in sent:
            yield part

    call = make(stream() if method.client_streaming else sent[0], timeout=CALL_S)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    except asyncio.CancelledError:  # gRPC's word for a stream up that broke under a write; nobody else cancels here
        return grpc.StatusCode.CANCELLED, ""
    return grpc.StatusCode.OK, ""


@pytest.mark.runs
@pytest.mark.timeout(300)
@pytest.mark.parametrize("experiment", [EXPERIMENT, WITH_PROFILES], ids=["oracle", "with profiles"])
def test_no_message_makes_a_server_fault_hang_or_grow(tmp_path: Path, experiment: Experiment) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(whole_run(experiment, tmp_path / "before"))  # has loaded all that a run loads once
    tiers = Tiers(experiment, tmp_path / "run")
    loop.run_until_complete(start(tiers))
    addresses = {GPS: tiers.address, RUN: tiers.address, LPS: tiers.lps["lps-0"].server.address}
    channels = {name: grpc.aio.insecure_channel(address) for name, address in _in(loop, addresses)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @settings(
        max_examples=220,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(calls())
    def fuzz(call: tuple[MethodDescriptor, list[bytes]]) -> None:
        code, details = loop.run_until_complete(send(channels, *call))
        assert code is not grpc.StatusCode.UNKNOWN, (call[0].name, details)
        assert "internal error" not in details, call[0].name

    fuzz()
    fuzz()
    settled = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (settled - before) * 1024 < ONCE_BYTES
    fuzz()  # the same once more
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - settled) * 1024 < GROWTH_BYTES
    loop.run_until_complete(end(tiers, channels))
    loop.close()


def _in(loop: asyncio.AbstractEventLoop, addresses: dict[str, str]) -> list[tuple[str, str]]:
    asyncio.set_event_loop(loop)  # channels belong to the loop that is set when they are made
    return list(addresses.items())


async def start(tiers: Tiers) -> None:
    await tiers.__aenter__()
    await tiers.start_devices([0, 1, 3])  # some devices are at work, some have never come
    await tiers.until(lambda: len(tiers.run.roster.devices) == 3)
    await asyncio.gather(*(tiers.start_lps(f"lps-{n}") for n in range(2) if f"lps-{n}" not in tiers.lps))


async def end(tiers: Tiers, channels: dict[str, Any]) -> None:
    """The rest of the devices come, and the run comes to an end of its own."""
    await tiers.start_devices([2, 4])
    record = await tiers.ended()
    assert record.summary.status in {"completed", "failed"}
    async with grpc.aio.insecure_channel(tiers.address) as channel:
        *_, last = [status async for status in RunServiceStub(channel).WatchRun(gps_service_pb2.WatchRunRequest())]
    assert (last.has_record, last.phase) == (True, record.summary.status)
    for channel in channels.values():
        await channel.close()
    await tiers.__aexit__()
