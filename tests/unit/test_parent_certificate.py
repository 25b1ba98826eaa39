"""A single certificate of a parent is revoked: its children leave who has it, and come back to who has another."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from test_renewal import DEVICE, Echo, issued

from fedstrata.errors import NotServedError
from fedstrata.process.logs import EventLog
from fedstrata.rpc import client, parent_certificate
from fedstrata.rpc.client import plain_or_secure, until_reached
from fedstrata.rpc.renewed_channel import RenewedChannel
from fedstrata.trust import diagnosis
from fedstrata.trust.authority import Authority
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name
from fedstrata.trust.shown import shown_by
from tests.support.ports import kept_address

LPS = Name("lps", "lps-0")
ANOTHER = "serial abc"  # nobody's here


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_certificate, "LOOK_AGAIN_S", 0.0)


@pytest.fixture
def authority() -> Authority:
    return Authority.new("run-1")


@pytest.fixture
def device(authority: Authority, tmp_path: Path) -> TlsFiles:
    return issued(authority, tmp_path / "device")


@pytest.fixture
def lps(authority: Authority, tmp_path: Path) -> TlsFiles:
    return issued(authority, tmp_path / "lps-0", LPS)


@asynccontextmanager
async def serving(tls: TlsFiles, address: str = "127.0.0.1:0") -> AsyncIterator[Echo]:
    echo = Echo(tls, address)
    await echo.server.start()
    yield echo
    await echo.server.stop(None)


@asynccontextmanager
async def channel_to(address: str, tls: TlsFiles) -> AsyncIterator[RenewedChannel]:
    async with plain_or_secure(address, tls, LPS) as channel:
        yield cast(RenewedChannel, channel)


def revoke(files: TlsFiles, *entries: str) -> None:
    (files.folder / "revoked.txt").write_text("".join(f"{entry}\n" for entry in entries))
    files.revoked(at_once=True)  # which each call does, once a second


def serial(files: TlsFiles) -> str:
    return f"serial {shown_by(files.cert).serial:x}"


async def call(channel: RenewedChannel) -> bytes:
    return cast(bytes, await channel.unary_unary("/Echo/One")(b"", timeout=20))


async def seen(channel: RenewedChannel) -> None:
    """Wait until the parent's certificate has been looked at, as a call has it be."""
    looking = channel._certificate._looking
    assert looking is not None
    await looking


async def until(channel: RenewedChannel, is_so: Callable[[Any], bool]) -> None:
    """Call again and again until a call ends so; what it gives, or the error that it raises."""
    async with asyncio.timeout(60):
        while True:
            try:
                ended: Any = await call(channel)
            except (NotServedError, grpc.aio.AioRpcError) as error:
                ended = error
            if is_so(ended):
                return
            await seen(channel)


async def test_nothing_is_said_to_a_parent_by_that_certificate_and_it_is_heard_again_with_another(
    authority: Authority, device: TlsFiles, lps: TlsFiles
) -> None:
    async with serving(lps) as echo, channel_to(echo.address, device) as channel:
        await call(channel)
        assert channel._certificate._looking is None  # nobody is greeted for nothing
        revoke(device, serial(lps))
        await call(channel)
        await seen(channel)
        with pytest.raises(NotServedError, match=f"certificate {serial(lps)[7:]} of lps/lps-0 is revoked, by the list"):
            await call(channel)
        authority.issue([LPS], lps.folder)
        await until(channel, lambda ended: isinstance(ended, bytes))


async def test_another_serial_number_leaves_it_alone_and_binds_connections_to_its_certificate(
    authority: Authority, device: TlsFiles, lps: TlsFiles
) -> None:
    revoke(device, ANOTHER)
    with kept_address() as address:
        async with serving(lps, address) as echo, channel_to(address, device) as channel:
            await call(channel)
            await seen(channel)
            await call(channel)
            assert channel.newest().only.split() == lps.cert.split()
            await echo.server.stop(None)
            authority.issue([LPS], lps.folder)
            async with serving(lps.newest(at_once=True), address):  # it comes back with another
                await until(channel, lambda ended: isinstance(ended, bytes))
            revoke(device, "# nobody")
            assert channel.newest().only == b""


async def test_a_parent_that_comes_up_late_is_reached_while_connections_are_bound_anew(
    authority: Authority, device: TlsFiles, lps: TlsFiles
) -> None:
    revoke(device, ANOTHER)
    with kept_address() as address:
        async with channel_to(address, device) as channel, asyncio.timeout(60):
            reaching = asyncio.ensure_future(until_reached(channel, address, device, LPS, EventLog("test")))
            await channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE)
            async with serving(lps, address):
                await reaching
                await until(channel, lambda ended: isinstance(ended, bytes))
                await seen(channel)
                assert channel.newest().only
                await until_reached(channel, address, device, LPS, EventLog("test"))


async def test_who_lets_greetings_pass_to_the_parent_is_not_taken_for_it(
    authority: Authority, device: TlsFiles, lps: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thief, greet = issued(authority, tmp_path / "thief", LPS), client.certificate_of
    async with serving(lps) as real, serving(thief) as echo, channel_to(echo.address, device) as channel:
        monkeypatch.setattr(client, "certificate_of", lambda address, tls, parent: greet(real.address, tls, parent))
        await call(channel)
        revoke(device, serial(thief))
        await call(channel)
        await seen(channel)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call(channel)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_one_that_answers_calls_and_no_greetings_is_left_too(
    device: TlsFiles, lps: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(address: str, tls: TlsFiles, parent: Name) -> bytes:
        raise ConnectionResetError

    monkeypatch.setattr(client, "certificate_of", refused)
    async with serving(lps) as echo, channel_to(echo.address, device) as channel:
        revoke(device, ANOTHER)
        await until(channel, lambda ended: isinstance(ended, NotServedError) and "does not show" in str(ended))


async def test_an_authority_that_is_dropped_is_not_trusted_for_the_sake_of_a_certificate_seen_before(
    authority: Authority, device: TlsFiles, lps: TlsFiles
) -> None:
    revoke(device, ANOTHER)
    async with serving(lps) as echo, channel_to(echo.address, device) as channel:
        await call(channel)
        await seen(channel)
        assert channel.newest().only
        authority.succeeded().alone().issue([DEVICE], device.folder)
        device.newest(at_once=True)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call(channel)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_greeting_ends_however_slowly_it_is_answered(device: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB, of which a byte comes now and then
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"\x02")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1 << 16), 0.05)
        writer.close()

    monkeypatch.setattr(diagnosis, "GREETING_S", 0.5)
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server, asyncio.timeout(60):
        host, port = server.sockets[0].getsockname()
        with pytest.raises(TimeoutError, match=r"a greeting takes longer than 0\.5 s|timed out"):
            await asyncio.to_thread(diagnosis.certificate_of, f"{host}:{port}", device, LPS)
        assert await diagnosis.why_refused(f"{host}:{port}", device, LPS) is None  # it may be better later
