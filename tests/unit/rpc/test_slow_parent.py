"""A parent that is there and slow: children wait for it, and nobody calls it again for what it has not answered yet."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from device.enrolment import GpsClient
from fedstrata.clock.round_side import ChildClock
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.time_limits import ASKED_PER_S, CALL_S, HOLD_S, hold_s, payload_timeout_s
from fedstrata.rpc.server import RpcServer, bounds
from fedstrata.rpc.streamed import broken
from fedstrata.trust.security import OPEN
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceServicer, GpsServiceStub, add_GpsServiceServicer_to_server
from tests.support.attempts import attempt_of
from tests.support.gps_parts import IDS, TEXT
from tests.support.loop_time import LoopTime, turns

ANSWER = answers_pb2.Answer(question="profile", data=b"1234")


@dataclass
class SlowGps:
    """A GPS's stub for devices: it answers each call so many seconds later, unless the call is given up before."""

    answers_after_s: float
    calls: Counter[str] = field(default_factory=Counter)

    async def _answered(self, call: str, reply: Any, given: Mapping[str, Any]) -> Any:
        self.calls[call] += 1
        await asyncio.sleep(min(self.answers_after_s, given["timeout"]))
        if given["timeout"] < self.answers_after_s:
            raise broken(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        return reply

    async def Enroll(self, request: pb.EnrollRequest, **given: Any) -> pb.EnrollResponse:
        reply = pb.EnrollResponse(run_id=attempt_of(parse_experiment(TEXT)))
        return await self._answered(f"Enroll {request.device_id}", reply, given)

    async def SubmitAnswer(
        self, parts: AsyncIterator[answers_pb2.AnswerPart], **given: Any
    ) -> answers_pb2.SubmitAnswerResponse:
        device_id = (await anext(parts)).header.device_id
        return await self._answered(f"SubmitAnswer {device_id}", answers_pb2.SubmitAnswerResponse(), given)

    async def FetchAssignment(self, request: pb.FetchAssignmentRequest, **given: Any) -> Any:
        reply = pb.FetchAssignmentResponse(is_assigned=True)
        return await self._answered(f"FetchAssignment {request.device_id}", reply, given)


async def test_a_gps_that_takes_ten_times_the_longest_hold_to_answer_is_called_once_by_each_device_for_each_thing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment, gps = parse_experiment(TEXT), SlowGps(10 * payload_timeout_s(len(ANSWER.data)))

    async def before_training(index: int) -> None:
        names = {"device_id": IDS[index], "device_index": index, "process_id": "p", "kernel": "test"}
        link = GpsClient(gps, experiment, **names, log=EventLog("test"), clock=ChildClock())  # type: ignore[arg-type]
        await link.enroll(10, 2, "")
        await link.submit_answer(ANSWER)
        assert (await link.assignment()).is_assigned

    loop = LoopTime(monkeypatch)
    devices = asyncio.gather(*(before_training(index) for index in range(len(IDS))))
    for _ in range(100):
        await turns()
        await loop.advance(CALL_S)
    assert devices.done()
    await devices
    made = {f"{call} {name}": 1 for call in ("Enroll", "SubmitAnswer", "FetchAssignment") for name in IDS}
    assert gps.calls == made


@pytest.mark.parametrize(("children", "seconds"), [(1, HOLD_S), (100, HOLD_S), (2_000, 400.0), (5_000, 1_000.0)])
def test_held_calls_of_all_children_come_again_at_most_five_times_a_second(children: int, seconds: float) -> None:
    assert hold_s(children) == seconds
    assert children / hold_s(children) <= ASKED_PER_S
    assert payload_timeout_s(0, hold_s(children)) == seconds + CALL_S  # so that no child gives up a call that is held


class Counting(GpsServiceServicer):
    """A GPS that answers at once, when it is its turn, and counts."""

    def __init__(self) -> None:
        self.enrolled: Counter[str] = Counter()

    async def Enroll(self, request: pb.EnrollRequest, context: Any) -> pb.EnrollResponse:
        self.enrolled[request.device_id] += 1
        return pb.EnrollResponse()


async def test_of_thousands_who_call_at_once_none_is_cancelled_while_it_waits_for_its_turn() -> None:
    children = 2_000
    gps, server = Counting(), RpcServer(ProcessMetrics("gps").links, security=OPEN, children=children)
    server.add(add_GpsServiceServicer_to_server, gps, "fedstrata.v1.GpsService")
    await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub, names = GpsServiceStub(channel), [f"device-{number}" for number in range(children)]
        calls = [stub.Enroll(pb.EnrollRequest(device_id=name), wait_for_ready=True) for name in names]
        ended = await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(0)
    assert Counter(type(end).__name__ for end in ended) == {"EnrollResponse": children}
    assert gps.enrolled == dict.fromkeys(names, 1)


def test_a_call_may_wait_for_its_turn_for_an_hour() -> None:
    assert dict(bounds(connections=1, children=1))["grpc.server_max_unrequested_time_in_server"] == 3_600
