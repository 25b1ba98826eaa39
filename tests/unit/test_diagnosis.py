"""Callers and parents that will never agree are told why; a parent that is not up yet is waited for."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedstrata.errors import HandshakeError
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.client import plain_or_secure, until_reached
from fedstrata.rpc.server import RpcServer
from fedstrata.trust import authority as authority_module
from fedstrata.trust import diagnosis
from fedstrata.trust.authority import Authority
from fedstrata.trust.diagnosis import why_refused
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.renewal import Renewal
from tests.support.ports import kept_address

TRANSIENT = grpc.ChannelConnectivity.TRANSIENT_FAILURE
GPS, DEVICE = Name("gps"), Name("device", "device-000")


@pytest.fixture
def authority() -> Authority:
    return Authority.new("run-1")


def of(authority: Authority, name: Name, folder: Path) -> TlsFiles:
    authority.issue([name], folder / str(name))
    return TlsFiles.load(folder / str(name))


def outdated(authority: Authority, name: Name, folder: Path, days: tuple[int, int]) -> TlsFiles:
    """A certificate that is valid on other days only; who uses it has a clock that says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority_module, "CLOCKS_DIFFER", timedelta(days=-days[0]))
        authority.issue([name], folder / "outdated", days=days[1])
    read = {part: (folder / "outdated" / f"{part}.pem").read_bytes() for part in ("ca", "cert", "key")}
    return TlsFiles(folder=folder / "outdated", me=Peer("run-1", (name,)), **read)


@asynccontextmanager
async def serving(tls: TlsFiles | None) -> AsyncIterator[str]:
    server = RpcServer(ProcessMetrics("gps").links, tls=tls)
    await server.start("127.0.0.1:0")
    await server.set_ready()
    yield server.address
    await server.stop(0)


async def reached(address: str, tls: TlsFiles | None, parent: Name = GPS) -> health_pb2.HealthCheckResponse:
    """The answer of a parent to a caller that connects as all of ours do."""
    channel = plain_or_secure(address, tls, parent)
    try:
        async with asyncio.timeout(30):
            await until_reached(channel, address, tls, parent, EventLog("test"))
            return await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    finally:
        await channel.close(None)


async def test_who_trusts_each_other_connects_and_nothing_is_wrong(authority: Authority, tmp_path: Path) -> None:
    device = of(authority, DEVICE, tmp_path)
    async with serving(of(authority, GPS, tmp_path)) as address:
        assert (await reached(address, device)).status == health_pb2.HealthCheckResponse.SERVING
        assert await why_refused(address, device, GPS) is None


async def test_who_speaks_in_the_clear_to_who_does_connects(tmp_path: Path) -> None:
    async with serving(None) as address:
        assert (await reached(address, None)).status == health_pb2.HealthCheckResponse.SERVING
        assert await why_refused(address, None, GPS) is None


async def test_a_parent_of_another_authority_is_not_spoken_to(authority: Authority, tmp_path: Path) -> None:
    device = of(authority, DEVICE, tmp_path)
    async with serving(of(Authority.new("run-1"), GPS, tmp_path)) as address:
        with pytest.raises(
            HandshakeError, match=r"gps at 127.* does not vouch for: unable to get local issuer|signature"
        ):
            await reached(address, device)


@pytest.mark.parametrize(
    ("days", "why"), [((-9, -1), "certificate has expired"), ((9, 10), "certificate is not yet valid")]
)
async def test_a_parent_whose_certificate_is_not_valid_now_is_not_spoken_to(
    authority: Authority, tmp_path: Path, days: tuple[int, int], why: str
) -> None:
    device = of(authority, DEVICE, tmp_path)
    async with serving(outdated(authority, GPS, tmp_path, days)) as address:
        with pytest.raises(HandshakeError, match=why):
            await reached(address, device)


async def test_another_lps_at_the_address_of_ones_own_is_not_spoken_to(authority: Authority, tmp_path: Path) -> None:
    device = of(authority, DEVICE, tmp_path)
    async with serving(of(authority, Name("lps", "lps-1"), tmp_path)) as address:
        with pytest.raises(HandshakeError, match="not valid for 'lps-0'"):
            await reached(address, device, Name("lps", "lps-0"))


async def test_a_device_cannot_serve_as_the_gps(authority: Authority, tmp_path: Path) -> None:
    liar = of(authority, Name("device", "gps"), tmp_path)
    async with serving(liar) as address:
        with pytest.raises(HandshakeError, match="does not vouch for"):
            await reached(address, of(authority, DEVICE, tmp_path))


async def test_a_caller_of_another_authority_is_hung_up_on_and_told(authority: Authority, tmp_path: Path) -> None:
    gps, stranger = of(authority, GPS, tmp_path), of(Authority.new("run-1"), DEVICE, tmp_path)
    trusting = replace_ca(stranger, gps, tmp_path)
    async with serving(gps) as address:
        with pytest.raises(HandshakeError, match=r"hangs up on device/device-000.*of another authority"):
            await reached(address, trusting)


def replace_ca(tls: TlsFiles, other: TlsFiles, folder: Path) -> TlsFiles:
    """The same certificate with another authority to trust."""
    copied = folder / "copied"
    copied.mkdir()
    for name, content in (("ca.pem", other.ca), ("cert.pem", tls.cert), ("key.pem", tls.key)):
        (copied / name).write_bytes(content)
    return replace(tls, folder=copied, ca=other.ca, renewal=Renewal())


@pytest.mark.parametrize("days", [(-9, -1), (9, 10)])
async def test_a_caller_whose_certificate_is_not_valid_by_the_parents_clock_is_told(
    authority: Authority, tmp_path: Path, days: tuple[int, int]
) -> None:
    device = outdated(authority, DEVICE, tmp_path, days)
    async with serving(of(authority, GPS, tmp_path)) as address:
        with pytest.raises(HandshakeError, match=r"hangs up on device/device-000.*not valid by its clock"):
            await reached(address, device)


async def test_tls_to_who_speaks_in_the_clear_is_told(authority: Authority, tmp_path: Path) -> None:
    async with serving(None) as address:
        with pytest.raises(HandshakeError, match="speaks no TLS; start it with --tls as well"):
            await reached(address, of(authority, DEVICE, tmp_path))


async def test_in_the_clear_to_who_speaks_tls_is_told(authority: Authority, tmp_path: Path) -> None:
    async with serving(of(authority, GPS, tmp_path)) as address:
        with pytest.raises(HandshakeError, match="speaks TLS, and this process has no certificate"):
            await reached(address, None)


async def test_a_parent_that_is_not_up_yet_is_waited_for(authority: Authority, tmp_path: Path) -> None:
    gps, device = of(authority, GPS, tmp_path), of(authority, DEVICE, tmp_path)
    with kept_address() as address:
        assert await why_refused(address, device, GPS) is None
        assert await why_refused(address, None, GPS) is None
        channel = plain_or_secure(address, device)
        reaching = asyncio.ensure_future(until_reached(channel, address, device, GPS, EventLog("test")))
        while channel.get_state() is not TRANSIENT:
            await channel.wait_for_state_change(channel.get_state(try_to_connect=True))
        server = RpcServer(ProcessMetrics("gps").links, tls=gps)
        await server.start(address)
        async with asyncio.timeout(30):
            await reaching
        await channel.close(None)
        await server.stop(0)


@pytest.mark.parametrize("is_by_tls", [True, False])
async def test_a_link_that_takes_connections_and_cuts_them_is_not_given_up(
    authority: Authority, tmp_path: Path, is_by_tls: bool
) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await why_refused(address, of(authority, DEVICE, tmp_path) if is_by_tls else None, GPS) is None


@pytest.mark.parametrize("is_by_tls", [True, False])
async def test_a_parent_that_takes_connections_and_is_silent_is_not_given_up(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_by_tls: bool
) -> None:
    monkeypatch.setattr(diagnosis, "GREETING_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await why_refused(address, of(authority, DEVICE, tmp_path) if is_by_tls else None, GPS) is None


async def test_who_is_being_given_other_files_learns_nothing_of_its_parent(
    authority: Authority, tmp_path: Path
) -> None:
    files = of(authority, DEVICE, tmp_path)
    async with serving(of(Authority.new("run-1"), GPS, tmp_path)) as address:
        assert "does not vouch for" in (await why_refused(address, files, GPS) or "")
        (files.folder / "cert.pem").write_text("copied in part")
        assert await why_refused(address, files, GPS) is None
