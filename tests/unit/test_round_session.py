"""A child's stream to its parent, over gRPC."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from fedstrata.rounds import Session
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceServicer, LpsServiceStub, add_LpsServiceServicer_to_server


class Parent(LpsServiceServicer):  # type: ignore[misc]  # the generated base class is untyped
    """A run that is over; counts the streams that came to their end."""

    def __init__(self) -> None:
        self.heard_out = 0

    async def Attend(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> AsyncIterator[pb.ModelPart]:
        async for _ in requests:
            yield pb.ModelPart(finished=pb.Finished())
        self.heard_out += 1


async def test_a_child_that_hears_the_end_lets_its_parent_end_the_stream() -> None:
    parent, server = Parent(), grpc.aio.server()
    add_LpsServiceServicer_to_server(parent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        session = Session(LpsServiceStub(channel).Attend)
        parts = [part async for part in session.fetch(pb.FetchModelRequest(), timeout=30)]
        assert [part.WhichOneof("part") for part in parts] == ["finished"]
        assert parent.heard_out == 1
        session.close()
    await server.stop(0)
