"""The proxy of the fault `cut`: every byte goes through in its order, and none while the link is cut."""

import asyncio
from collections.abc import Mapping

import pytest

from emulator.local.proxy import LinkProxy
from fedstrata.process.address import loopback, split_address

SENT = bytes(range(256)) * 4 * 1024  # a megabyte


async def test_all_goes_through_in_order_but_while_the_link_is_cut() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1013):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def echoed(proxy: LinkProxy) -> bytes:
        reader, writer = await asyncio.open_connection(*split_address(proxy.address))
        writer.write(SENT)
        received = await reader.readexactly(len(SENT))
        writer.close()
        return received

    server = await asyncio.start_server(echo, loopback(), 0)
    host, port = server.sockets[0].getsockname()[:2]
    proxy = LinkProxy()
    await proxy.start(f"{host}:{port}")
    assert await echoed(proxy) == SENT
    proxy.cut()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await echoed(proxy)
    proxy.mend()
    assert await echoed(proxy) == SENT
    proxy.close()
    server.close()


async def test_a_connection_that_is_on_its_way_when_the_link_is_cut_does_not_come_about() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.write(SENT), loopback(), 0)
    host, port = server.sockets[0].getsockname()[:2]
    is_asked, address = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def address_of_process() -> Mapping[str, str]:
        is_asked.set()
        found: Mapping[str, str] = await address
        return found

    proxy = LinkProxy()
    await proxy.start()
    proxy.lead_to(address_of_process)
    reader, writer = await asyncio.open_connection(*split_address(proxy.address))
    await is_asked.wait()
    proxy.cut()
    address.set_result({"grpc": f"{host}:{port}"})
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(len(SENT))
    writer.close()
    proxy.close()
    server.close()
