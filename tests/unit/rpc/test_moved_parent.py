"""A parent that comes back at another address under its old name, as a replaced pod does."""

import asyncio
import socket
import struct
from typing import cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.client import CHANNEL_OPTIONS
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.security import OPEN
from fedstrata.trust.tls_files import GPS

FOUND_S = 15.0  # gRPC by itself asks for a name only every 30 seconds
ADDRESS_RECORD, INTERNET, IS_ANSWER = 1, 1, 0x8580


class Names(asyncio.DatagramProtocol):
    """A DNS server that gives one IPv4 address for every name."""

    def __init__(self) -> None:
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name_end = data.index(b"\0", 12) + 1
        (kind,) = struct.unpack("!H", data[name_end : name_end + 2])
        found = kind == ADDRESS_RECORD and self.address != ""
        header = data[:2] + struct.pack("!HHHHH", IS_ANSWER, 1, found, 0, 0)
        record = struct.pack("!HHHIH", 0xC00C, ADDRESS_RECORD, INTERNET, 0, 4) + socket.inet_aton(self.address or "0")
        self._transport.sendto(header + data[12 : name_end + 4] + (record if found else b""), addr)


async def serving(address: str) -> RpcServer:
    server = RpcServer(ProcessMetrics("lps").links, security=OPEN)
    await server.start(address)
    await server.set_ready()
    return server


@pytest.mark.parametrize("between", ["127.0.0.2", ""], ids=["the name keeps its address", "the name has no address"])
async def test_a_parent_that_serves_again_at_another_address_is_found_soon(between: str) -> None:
    """`between` is the address that the name has while the parent is away."""
    loop = asyncio.get_running_loop()
    transport, names = await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", 0))
    names.address = "127.0.0.2"
    first = await serving("127.0.0.2:0")
    port = first.address.rpartition(":")[2]
    place = f"dns://127.0.0.1:{transport.get_extra_info('sockname')[1]}/lps-0.test:{port}"
    async with OPEN.channel(place, GPS, CHANNEL_OPTIONS) as channel:
        check, asked = health_pb2_grpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest()
        await check(asked, wait_for_ready=True, timeout=10)
        names.address = between
        await first.stop(0)
        call = check(asked, wait_for_ready=True, timeout=FOUND_S)
        while (state := channel.get_state()) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await channel.wait_for_state_change(state)
        second = await serving(f"127.0.0.3:{port}")
        names.address = "127.0.0.3"
        assert (await call).status == health_pb2.HealthCheckResponse.SERVING
    await second.stop(0)
    transport.close()
