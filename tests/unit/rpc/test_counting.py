"""Counting: each message once at each end, by link, direction and kind; both ends agree."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fedstrata.process.metrics import LinkKey, LinkMeter
from fedstrata.rpc.client import Connection
from fedstrata.rpc.counting import METHODS
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2, lps_service_pb2
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.answers_pb2 import Answer
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceServicer, LpsServiceStub, add_LpsServiceServicer_to_server

NAME = "fedstrata.v1.LpsService"
FRAME_BYTES = 1 + 4  # gRPC puts a flag and a length before each message


HEADER = pb.ModelPart(header=pb.ModelHeader(run_id="r"))
DATA = pb.ModelPart(data=b"x" * 1000)
REPLY = pb.ModelPart(reply=pb.UpdateReply(run_id="r"))
GO_ON = pb.ModelPart(go_on=pb.GoOn(round=3, cluster=1))


class Parent(LpsServiceServicer):
    """Answers with parts of known sizes; one of them serialised already, as rounds do with small models."""

    async def FetchModel(self, request: pb.FetchModelRequest, context: Any) -> AsyncIterator[pb.ModelPart | bytes]:
        yield HEADER
        yield DATA.SerializeToString()

    async def SubmitUpdate(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> pb.UpdateReply:
        async for _ in requests:
            pass
        return pb.UpdateReply(run_id="r", accepted=True)

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> AsyncIterator[pb.ModelPart | bytes]:
        async for part in requests:
            if part.HasField("fetch"):
                yield DATA.SerializeToString()
            elif part.HasField("answer"):
                yield GO_ON
            elif part.HasField("data"):
                yield REPLY

    async def LocateUpdate(self, request: pb.LocateUpdateRequest, context: Any) -> pb.LocateUpdateResponse:
        return pb.LocateUpdateResponse(offset=3)


class Link:
    """A child and a parent on one connection, each with a meter of its own."""

    def __init__(self) -> None:
        self.at_parent, self.at_child = LinkMeter(), LinkMeter()
        self.server = RpcServer(self.at_parent, security=OPEN)
        self.server.add(add_LpsServiceServicer_to_server, Parent(), NAME)

    @asynccontextmanager
    async def child(self) -> AsyncIterator[Any]:
        """The calls of a child, which its meter counts."""
        connection = Connection(self.server.address, OPEN)
        counting = connection.counted(self.at_child)
        async with connection:
            yield LpsServiceStub(counting)  # type: ignore[no-untyped-call]

    def counts(self, meter: LinkMeter) -> dict[tuple[str, str], int]:
        """By direction and kind; the link is the same for all."""
        snapshot = meter.snapshot()
        assert {key.link for key in snapshot} == {"device-lps"}
        return {(key.direction, key.kind): count for key, count in snapshot.items()}


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    link = Link()
    await link.server.start("127.0.0.1:0")
    yield link
    await link.server.stop(0)


async def test_both_ends_count_what_was_serialised(link: Link) -> None:
    async with link.child() as lps:
        fetch = pb.FetchModelRequest(run_id="r", child_id="device-000")
        assert [part.WhichOneof("part") async for part in lps.FetchModel(fetch, timeout=60)] == ["header", "data"]
        update = [pb.UpdatePart(header=pb.UpdateHeader(run_id="r")), pb.UpdatePart(data=b"y" * 500)]
        reply = await lps.SubmitUpdate(iter(update), timeout=60)
        locate = pb.LocateUpdateRequest(run_id="r")
        located = await lps.LocateUpdate(locate, timeout=60)
    expected = {
        ("up", "model"): fetch.ByteSize() + FRAME_BYTES,
        ("down", "model"): sum(part.ByteSize() + FRAME_BYTES for part in (HEADER, DATA)),
        ("up", "update"): sum(part.ByteSize() + FRAME_BYTES for part in update),
        ("down", "update"): reply.ByteSize() + FRAME_BYTES,
        ("up", "control"): locate.ByteSize() + FRAME_BYTES,
        ("down", "control"): located.ByteSize() + FRAME_BYTES,
    }
    assert link.counts(link.at_child) == link.counts(link.at_parent) == expected


async def test_on_a_stream_of_both_each_message_counts_as_its_own_kind(link: Link) -> None:
    asked = [
        pb.UpdatePart(fetch=pb.FetchModelRequest(run_id="r")),
        pb.UpdatePart(header=pb.UpdateHeader(run_id="r")),
        pb.UpdatePart(data=b"y" * 500),
    ]
    async with link.child() as lps:
        stream = lps.Attend(iter(asked), timeout=60)
        assert [answer.WhichOneof("part") async for answer in stream] == ["data", "reply"]
    up = [part.ByteSize() + FRAME_BYTES for part in asked]
    expected = {
        ("up", "model"): up[0],
        ("up", "update"): up[1] + up[2],
        ("down", "model"): DATA.ByteSize() + FRAME_BYTES,
        ("down", "update"): REPLY.ByteSize() + FRAME_BYTES,
    }
    assert link.counts(link.at_child) == link.counts(link.at_parent) == expected


async def test_an_update_that_is_announced_counts_as_one(link: Link) -> None:
    part = pb.UpdatePart(announced=pb.UpdateHeader(run_id="r"))
    async with link.child() as lps:
        stream = lps.Attend(iter([part]), timeout=10)
        assert [answer async for answer in stream] == []
    assert link.counts(link.at_parent)["up", "update"] == part.ByteSize() + FRAME_BYTES


@pytest.mark.parametrize(("asked", "kind"), [("losses", "losses"), ("x" * 80, "answer")])
async def test_an_answer_counts_under_the_name_of_its_question_and_one_nobody_asked_under_answer(
    link: Link, asked: str, kind: str
) -> None:
    for meter in (link.at_child, link.at_parent):
        meter.questions = frozenset({"losses"})
    part = pb.UpdatePart(answer=pb.RoundAnswer(run_id="r", answer=Answer(question=asked, data=b"12345678")))
    async with link.child() as lps:
        stream = lps.Attend(iter([part]), timeout=60)
        assert [answer.WhichOneof("part") async for answer in stream] == ["go_on"]
    expected = {("up", kind): part.ByteSize() + FRAME_BYTES, ("down", "control"): GO_ON.ByteSize() + FRAME_BYTES}
    assert link.counts(link.at_child) == link.counts(link.at_parent) == expected


async def test_the_two_ends_are_told_apart(link: Link) -> None:
    async with link.child() as lps:
        await lps.LocateUpdate(pb.LocateUpdateRequest(), timeout=60)
    assert {key.end for key in link.at_child.snapshot()} == {"child"}
    assert {key.end for key in link.at_parent.snapshot()} == {"parent"}
    assert LinkKey(link="device-lps", direction="up", kind="control", end="parent") in link.at_parent.snapshot()


def test_every_method_between_tiers_has_a_link_and_a_kind() -> None:
    services = [
        gps_service_pb2.DESCRIPTOR.services_by_name["GpsService"],
        lps_service_pb2.DESCRIPTOR.services_by_name["LpsService"],
    ]
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert set(METHODS) == methods


def test_what_the_experimenter_asks_is_on_no_link() -> None:
    assert not [method for method in METHODS if "RunService" in method]


def test_links_and_kinds_are_those_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for link, kind in METHODS.values():
        assert f"`{link}`" in text
        assert kind == "attend" or f"`{kind}`" in text  # Attend counts as the calls that it stands for
