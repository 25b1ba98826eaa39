"""The proxy of the fault `cut`: every byte goes through in its order, and none while the link is cut."""

import asyncio

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
