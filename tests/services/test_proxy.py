"""The proxy of the fault `slow`: every byte goes through in its order, when its link would have carried it."""

import asyncio
from types import SimpleNamespace

import pytest

from emulator.local.proxy import READ_BYTES, LinkProxy
from fedstrata.process.address import loopback, split_address

SENT = bytes(range(256)) * 4 * 1024  # a megabyte


async def through(proxy: LinkProxy) -> bytes:
    """What comes out of what is sent through a proxy to a server that echoes it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, loopback(), 0)
    host, port = server.sockets[0].getsockname()[:2]
    await proxy.start(f"{host}:{port}")
    reader, writer = await asyncio.open_connection(*split_address(proxy.address))
    writer.write(SENT)
    received = await reader.readexactly(len(SENT))
    writer.close()
    proxy.close()
    server.close()
    return received


async def test_a_slow_link_carries_all_in_order_each_read_at_its_time_and_a_latency_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited_for: list[int] = []

    async def until_ns(at_ns: int) -> None:
        waited_for.append(at_ns)

    monkeypatch.setattr("emulator.local.proxy.until_ns", until_ns)
    monkeypatch.setattr("emulator.local.proxy.time", SimpleNamespace(monotonic_ns=lambda: 0))  # it stands still
    proxy = LinkProxy()
    proxy.rate, proxy.latency_ns = 80_000_000, 20_000_000
    assert await through(proxy) == SENT
    whole_ns = len(SENT) * 100  # eight bits at 80 Mbit/s: 100 ns a byte, however it was read
    assert sorted(waited_for)[-2:] == [whole_ns + 20_000_000] * 2  # there and back, each with a link of its own
    assert waited_for.count(whole_ns) == 2


async def test_without_a_rate_all_is_passed_on() -> None:
    proxy = LinkProxy()
    proxy.slice_bytes = 1013
    assert await through(proxy) == SENT
    assert proxy.passed_bytes == 2 * len(SENT)
