"""Connections over TLS: why none comes about, and which certificate calls go by once it has been renewed."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedstrata.errors import HandshakeError, NotServedError
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.client import Connection
from fedstrata.rpc.server import RpcServer
from fedstrata.trust import diagnosis
from fedstrata.trust.authority import Authority
from fedstrata.trust.diagnosis import why_refused
from fedstrata.trust.names import Name
from fedstrata.trust.security import OPEN, Security, TlsSecurity
from fedstrata.trust.tls_files import TlsFiles
from tests.support.made_certificates import made, unchecked
from tests.support.ports import kept_address

GPS, DEVICE = Name("gps"), Name("device", "device-000")
LPS_0, LPS_1 = Name("lps", "lps-0"), Name("lps", "lps-1")


@pytest.fixture
def authority() -> Authority:
    return Authority.new("run-1")


@dataclass
class Certificates:
    """What an authority issues into a folder, and what others make of it."""

    authority: Authority
    folder: Path

    def of(self, name: Name, server_domain: str = "") -> TlsFiles:
        self.authority.issue([name], self.folder / str(name), server_domain=server_domain)
        return TlsFiles.load(self.folder / str(name), server_domain=server_domain)

    def by_another(self, name: Name) -> TlsFiles:
        return Certificates(Authority.new("run-1"), self.folder / "another").of(name)

    def by_another_who_trusts_ours(self, name: Name) -> TlsFiles:
        one = made("x", Authority.new("run-1"), names=[name])
        return unchecked(self.folder / "mixed", one, name, ca=self.authority.trusted())

    def on_days(self, name: Name, first: int, last: int) -> TlsFiles:
        """A certificate that is valid on these days, counted from today; its holder's clock says so, too."""
        one = made("x", self.authority, days=(first, last), names=[name])
        return unchecked(self.folder / "days", one, name, ca=self.authority.trusted())


@pytest.fixture
def certificates(authority: Authority, tmp_path: Path) -> Certificates:
    return Certificates(authority, tmp_path)


def secured(tls: TlsFiles | None) -> Security:
    return OPEN if tls is None else TlsSecurity(tls)


@asynccontextmanager
async def serving(tls: TlsFiles | None) -> AsyncIterator[str]:
    server = RpcServer(ProcessMetrics("gps").links, security=secured(tls))
    await server.start("127.0.0.1:0")
    await server.set_ready()
    yield server.address
    await server.stop(0)


async def reached(address: str, tls: TlsFiles | None, parent: Name = GPS) -> health_pb2.HealthCheckResponse:
    """The answer of a parent to a caller that connects as all of ours do."""
    security = secured(tls)
    connection = Connection(address, security, parent)
    try:
        async with asyncio.timeout(30):
            await connection.until_reached(EventLog("test"))
            return await health_pb2_grpc.HealthStub(connection.channel).Check(
                health_pb2.HealthCheckRequest(), timeout=20
            )
    finally:
        await connection.close()


# --- why no connection comes about --------------------------------------------------------------------------

Side = Callable[[Certificates], TlsFiles | None]
PAIRS: dict[str, tuple[Side, Side, Name, str | None]] = {
    "of one authority": (lambda our: our.of(GPS), lambda our: our.of(DEVICE), GPS, None),
    "both in the clear": (lambda our: None, lambda our: None, GPS, None),
    "parent by another": (
        lambda our: our.by_another(GPS), lambda our: our.of(DEVICE), GPS,
        r"gps at 127.* does not accept: unable to get local issuer|signature",
    ),
    "parent run out": (
        lambda our: our.on_days(GPS, -9, -1), lambda our: our.of(DEVICE), GPS,
        "certificate has expired; fedstrata certs renew renews it",
    ),
    "parent not yet": (
        lambda our: our.on_days(GPS, 9, 10), lambda our: our.of(DEVICE), GPS,
        "certificate is not yet valid; set the clocks of both machines",
    ),
    "of one domain": (lambda our: our.of(LPS_0, "a.org"), lambda our: our.of(DEVICE, "a.org"), LPS_0, None),
    "parent in a domain": (lambda our: our.of(LPS_0, "a.org"), lambda our: our.of(DEVICE), LPS_0, None),
    "another LPS of the domain": (
        lambda our: our.of(LPS_1, "a.org"), lambda our: our.of(DEVICE, "a.org"), LPS_0, "not valid for 'lps-0.a.org'"
    ),
    "caller in a domain": (
        lambda our: our.of(GPS), lambda our: our.of(DEVICE, "a.org"), GPS, "not valid for 'gps.a.org'"
    ),
    "another LPS": (lambda our: our.of(LPS_1), lambda our: our.of(DEVICE), LPS_0, "not valid for 'lps-0'"),
    "a device as the GPS": (
        lambda our: our.of(Name("device", "gps")), lambda our: our.of(DEVICE), GPS, "does not accept"
    ),
    "caller by another": (
        lambda our: our.of(GPS), lambda our: our.by_another_who_trusts_ours(DEVICE), GPS,
        r"closes the connection of device/device-000.*comes from another authority",
    ),
    "caller run out": (
        lambda our: our.of(GPS), lambda our: our.on_days(DEVICE, -9, -1), GPS,
        r"closes the connection of device/device-000.*not valid by the server's clock",
    ),
    "caller not yet": (
        lambda our: our.of(GPS), lambda our: our.on_days(DEVICE, 9, 10), GPS,
        r"closes the connection of device/device-000.*not valid by the server's clock",
    ),
    "parent in the clear": (
        lambda our: None, lambda our: our.of(DEVICE), GPS, "does not speak TLS; start it with --tls"
    ),
    "caller in the clear": (
        lambda our: our.of(GPS), lambda our: None, GPS, "speaks TLS, and this process has no certificate"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("parent", "caller", "expected", "why"), PAIRS.values(), ids=PAIRS)
async def test_who_trusts_each_other_connects_and_anybody_else_is_told_why_not(
    certificates: Certificates, parent: Side, caller: Side, expected: Name, why: str | None
) -> None:
    tls = caller(certificates)
    async with serving(parent(certificates)) as address:
        if why is None:
            assert (await reached(address, tls, expected)).status == health_pb2.HealthCheckResponse.SERVING
            assert await why_refused(address, tls, expected) is None
        else:
            with pytest.raises(HandshakeError, match=why):
                await reached(address, tls, expected)


async def test_a_parent_that_is_not_up_yet_is_waited_for(certificates: Certificates) -> None:
    device = certificates.of(DEVICE)
    with kept_address() as address:
        assert await why_refused(address, device, GPS) is None
        assert await why_refused(address, None, GPS) is None
        connection = Connection(address, secured(device))
        reaching = asyncio.ensure_future(connection.until_reached(EventLog("test")))
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        while (state := connection.channel.get_state(try_to_connect=True)) is not failed:
            await connection.channel.wait_for_state_change(state)
        server = RpcServer(ProcessMetrics("gps").links, security=secured(certificates.of(GPS)))
        await server.start(address)
        async with asyncio.timeout(30):
            await reaching
        await connection.close()
        await server.stop(0)


@pytest.mark.parametrize("is_by_tls", [True, False])
async def test_a_link_that_takes_connections_and_cuts_them_is_not_given_up(
    certificates: Certificates, is_by_tls: bool
) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await why_refused(address, certificates.of(DEVICE) if is_by_tls else None, GPS) is None


@pytest.mark.parametrize("is_by_tls", [True, False])
async def test_a_parent_that_takes_connections_and_is_silent_is_not_given_up(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, is_by_tls: bool
) -> None:
    monkeypatch.setattr(diagnosis, "GREETING_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await why_refused(address, certificates.of(DEVICE) if is_by_tls else None, GPS) is None


async def test_a_server_whose_certificate_lacks_the_domain_is_told_how_to_get_it(certificates: Certificates) -> None:
    device, other = certificates.of(DEVICE, "fl.example.org"), Certificates(Authority.new("run-1"), certificates.folder)
    async with serving(certificates.of(GPS)) as address:
        heard = await why_refused(address, device, GPS)
    assert heard is not None
    assert "not valid for 'gps.fl.example.org'; fedstrata certs renew --server-domain fl.example.org adds" in heard
    async with serving(other.of(LPS_0)) as address:
        assert (await why_refused(address, device, GPS) or "").endswith(
            "check that both certificates belong to this run"
        )


async def test_who_is_being_given_other_files_learns_nothing_of_its_parent(certificates: Certificates) -> None:
    files = certificates.of(DEVICE)
    async with serving(certificates.by_another(GPS)) as address:
        assert "does not accept" in (await why_refused(address, files, GPS) or "")
        for content in ("a part may be missing", None):
            path = files.folder / "cert.pem"
            path.unlink() if content is None else path.write_text(content)
            assert await why_refused(address, files, GPS) is None


# --- by which certificate calls go --------------------------------------------------------------------------


class Echo:
    """A server with certificates whose calls say by which certificate their caller came."""

    def __init__(self, tls: TlsFiles, address: str = "127.0.0.1:0") -> None:
        self.server = grpc.aio.server()
        handlers = {
            "One": grpc.unary_unary_rpc_method_handler(self.one),
            "Many": grpc.stream_stream_rpc_method_handler(self.many),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))
        self.address = f"127.0.0.1:{self.server.add_secure_port(address, tls.server_credentials())}"

    async def __aenter__(self) -> "Echo":
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(None)

    async def one(self, request: bytes, context: Any) -> bytes:
        (certificate,) = context.auth_context()["x509_pem_cert"]
        return bytes(certificate)

    async def many(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield await self.one(request, context)


async def echoed(channel: grpc.aio.Channel) -> bytes:
    return bytes(await channel.unary_unary("/Echo/One")(b"", timeout=20))


async def test_a_call_goes_by_the_newest_certificate_and_a_stream_ends_on_the_one_that_it_began_on(
    certificates: Certificates,
) -> None:
    gps, files = certificates.of(GPS), certificates.of(DEVICE)
    async with Echo(gps) as echo, Connection(echo.address, secured(files)) as channel:
        stream = channel.stream_stream("/Echo/Many")()
        await stream.write(b"")
        assert (await stream.read(), await echoed(channel)) == (files.cert, files.cert)
        successor = certificates.authority.succeeded()
        for one in (gps, files):
            successor.issue(one.me.names, one.folder)
        renewed = files.newest(at_once=True)
        assert await echoed(channel) == renewed.cert != files.cert
        await stream.write(b"")
        assert await stream.read() == files.cert
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF  # type: ignore[attr-defined]


async def test_an_authority_that_is_dropped_is_trusted_by_neither_side(certificates: Certificates) -> None:
    gps, files = certificates.of(GPS), certificates.of(DEVICE)
    old = Certificates(certificates.authority, certificates.folder / "old").of(DEVICE)
    async with Echo(gps) as echo:
        async with Connection(echo.address, secured(files)) as channel:
            assert await echoed(channel) == files.cert
        alone = certificates.authority.succeeded().alone()
        for one in (gps, files):
            alone.issue(one.me.names, one.folder)
        async with Connection(echo.address, secured(old)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await echoed(channel)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        renewed = files.newest(at_once=True)
        async with Connection(echo.address, secured(renewed)) as channel:
            assert await echoed(channel) == renewed.cert != files.cert


async def test_nothing_is_said_to_a_parent_whose_name_is_on_the_own_list(certificates: Certificates) -> None:
    files = certificates.of(DEVICE)
    async with (
        Echo(certificates.of(LPS_0)) as lps,
        Echo(certificates.of(LPS_1)) as other,
        Connection(lps.address, secured(files), LPS_0) as channel,
        Connection(other.address, secured(files), LPS_1) as beside,
    ):
        assert await echoed(channel) == files.cert
        (files.folder / "revoked.txt").write_text("lps/lps-0\n")
        files.revoked(at_once=True)  # which each call does, once a second
        with pytest.raises(NotServedError, match="lps/lps-0 is in the list of revoked names of device/device-000"):
            await echoed(channel)
        assert await echoed(beside) == files.cert
