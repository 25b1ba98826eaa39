"""When the files of a certificate are replaced: what is taken, and on which connection calls go."""

import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedstrata.errors import CertificateError, NotServedError
from fedstrata.rpc.client import plain_or_secure
from fedstrata.trust.authority import Authority
from fedstrata.trust.credentials import server_credentials
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name

DEVICE = Name("device", "device-000")
ROW = Name("device", "device-000", "device-009")
HALVES = Name("device", "device-000", "device-004"), Name("device", "device-005", "device-009")


@pytest.fixture
def authority() -> Authority:
    return Authority.new("run-1")


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    return issued(authority, tmp_path / "device")


def issued(authority: Authority, folder: Path, name: Name = DEVICE) -> TlsFiles:
    authority.issue([name], folder)
    return TlsFiles.load(folder)


def now(files: TlsFiles) -> TlsFiles:
    return files.newest(at_once=True)


def test_what_is_not_replaced_stays_the_same_object(files: TlsFiles) -> None:
    assert now(files) is files


def test_what_replaces_it_is_taken_by_all_who_were_given_the_files(files: TlsFiles, authority: Authority) -> None:
    authority.issue([DEVICE], files.folder)
    taken = now(files)
    assert taken.key == (files.folder / "key.pem").read_bytes() != files.key
    assert now(taken) is taken
    assert files.newest() is taken


def test_files_with_other_times_and_rights_alone_are_not_taken_again(
    files: TlsFiles, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for mode in (0o640, 0o600, 0o440):  # what kubelet does to a Secret's files now and then
        for name in ("ca.pem", "cert.pem", "key.pem"):
            (files.folder / name).chmod(mode)
        assert now(files) is files
    assert [record.message for record in caplog.records] == []
    (files.folder / "key.pem").chmod(0o600)
    authority.issue([DEVICE], files.folder)
    assert now(files) is not files
    assert [record.message for record in caplog.records] == ["certificate_taken"]


def test_a_key_whose_certificate_has_not_come_yet_is_not_taken(files: TlsFiles, authority: Authority) -> None:
    found = authority.issued([DEVICE])
    (files.folder / "key.pem").write_bytes(found["key.pem"])
    assert now(files) is files
    (files.folder / "cert.pem").write_bytes(found["cert.pem"])
    assert now(files).cert == found["cert.pem"]


@pytest.mark.parametrize(
    ("domain", "name", "reason"),
    [
        ("run-2", DEVICE, "is now of run 'run-2', not 'run-1'"),
        ("run-1", Name("device", "device-001"), "this process is device/device-000"),
    ],
)
def test_a_certificate_of_somebody_else_is_not_taken(
    files: TlsFiles, domain: str, name: Name, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    issued(Authority.new(domain), files.folder, name)
    assert now(files) is files
    (record,) = [record for record in caplog.records if record.message == "certificate_not_taken"]
    assert reason in record.fields["reason"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("names", "is_taken"), [([DEVICE], False), ([ROW], True), (list(HALVES), True)])
def test_a_certificate_is_taken_that_names_all_whom_the_one_before_named(
    authority: Authority, tmp_path: Path, names: list[Name], is_taken: bool
) -> None:
    files = issued(authority, tmp_path / "row", ROW)
    authority.issue(names, files.folder)
    assert (now(files) is not files) is is_taken


def test_files_that_failed_are_read_again_a_minute_later_and_told_of_once(
    files: TlsFiles, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, read = time.monotonic(), Path.read_bytes
    monkeypatch.setattr("fedstrata.trust.renewal.time.monotonic", lambda: clock)

    def failing(path: Path) -> bytes:
        raise OSError(24, "Too many open files", str(path))

    authority.issue([DEVICE], files.folder)
    monkeypatch.setattr(Path, "read_bytes", failing)
    assert now(files) is files
    clock += 61
    assert now(files) is files
    monkeypatch.setattr(Path, "read_bytes", read)
    assert now(files) is files
    clock += 61
    assert now(files).cert == (files.folder / "cert.pem").read_bytes() != files.cert
    assert [record.message for record in caplog.records].count("certificate_not_taken") == 1


def test_a_file_that_goes_while_a_set_is_checked_is_no_error_of_who_calls(
    files: TlsFiles, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def read_and_gone(path: Path) -> bytes:
        content = read(path)
        if path.name == "key.pem":
            path.unlink()
        return content

    authority.issue([DEVICE], files.folder)
    monkeypatch.setattr(Path, "read_bytes", read_and_gone)
    assert now(files) is files
    with pytest.raises(CertificateError, match="No such file"):
        files.client_context()


def test_files_that_are_removed_stay_in_use(files: TlsFiles) -> None:
    shutil.rmtree(files.folder)
    assert now(files) is files


def test_a_folder_that_is_a_link_is_followed_as_kubelet_turns_it(authority: Authority, tmp_path: Path) -> None:
    first, second = (issued(authority, tmp_path / name) for name in ("first", "second"))
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "shown").mkdir()
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / "shown" / name).symlink_to(Path("..", "..data", name))
    files = TlsFiles.load(tmp_path / "shown")
    assert files.is_shown_as(first)
    (tmp_path / "next").symlink_to("second")
    (tmp_path / "next").replace(tmp_path / "..data")
    assert now(files).is_shown_as(second)


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    files: TlsFiles, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, times = Path.read_bytes, 0

    def replaced(path: Path) -> bytes:
        nonlocal times
        times += path.name == "cert.pem"
        if path.name == "cert.pem" and times == 1:
            monkeypatch.setattr(Path, "read_bytes", read)
            authority.issue([DEVICE], files.folder)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", replaced)
    loaded = TlsFiles.load(files.folder)
    assert (loaded.key, loaded.cert) == (
        (files.folder / "key.pem").read_bytes(),
        (files.folder / "cert.pem").read_bytes(),
    )
    assert loaded.key != files.key


def test_an_authority_that_succeeds_another_trusts_it_until_it_is_alone(authority: Authority, tmp_path: Path) -> None:
    successor = authority.succeeded()
    successor.replace_in(tmp_path)
    again = Authority.load(tmp_path)
    assert again.before == (authority.certificate,)
    assert again.trusted().count(b"BEGIN") == 2
    with pytest.raises(CertificateError, match="renewed already"):
        again.succeeded()
    assert again.alone().trusted().count(b"BEGIN") == 1


def test_an_authority_whose_successor_never_got_its_key_goes_on_and_may_be_renewed(
    authority: Authority, tmp_path: Path
) -> None:
    authority.save(tmp_path)
    (tmp_path / "ca.pem").write_bytes(authority.succeeded().trusted())  # and not the key
    again = Authority.load(tmp_path)
    assert again.certificate == authority.certificate
    assert again.succeeded().before == (authority.certificate,)


class Echo:
    """A server with certificates whose calls say by which certificate their caller came."""

    def __init__(self, tls: TlsFiles, address: str = "127.0.0.1:0") -> None:
        self.server = grpc.aio.server()
        handlers = {
            "One": grpc.unary_unary_rpc_method_handler(self.one),
            "Many": grpc.stream_stream_rpc_method_handler(self.many),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))
        self.address = f"127.0.0.1:{self.server.add_secure_port(address, server_credentials(tls))}"

    async def one(self, request: bytes, context: Any) -> bytes:
        (certificate,) = context.auth_context()["x509_pem_cert"]
        return bytes(certificate)

    async def many(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield await self.one(request, context)


@pytest.fixture
async def echo(authority: Authority, tmp_path: Path) -> AsyncIterator[Echo]:
    echo = Echo(issued(authority, tmp_path / "gps", Name("gps")))
    await echo.server.start()
    yield echo
    await echo.server.stop(None)


async def test_a_call_goes_by_the_newest_certificate_and_a_stream_ends_on_the_one_that_it_began_on(
    echo: Echo, files: TlsFiles, authority: Authority, tmp_path: Path
) -> None:
    async with plain_or_secure(echo.address, files) as channel:
        one, stream = channel.unary_unary("/Echo/One"), channel.stream_stream("/Echo/Many")()
        await stream.write(b"")
        assert (await stream.read(), await one(b"")) == (files.cert, files.cert)
        successor = authority.succeeded()
        for name, who in (("gps", Name("gps")), ("device", DEVICE)):
            successor.issue([who], tmp_path / name)
        renewed = now(files)
        assert await one(b"") == renewed.cert != files.cert
        await stream.write(b"")
        assert await stream.read() == files.cert
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF  # type: ignore[attr-defined]


async def test_an_authority_that_is_dropped_is_trusted_by_neither_side(
    echo: Echo, files: TlsFiles, authority: Authority, tmp_path: Path
) -> None:
    async with plain_or_secure(echo.address, files) as channel:
        assert await channel.unary_unary("/Echo/One")(b"") == files.cert
    old = issued(authority, tmp_path / "old")
    alone = authority.succeeded().alone()
    for name, who in (("gps", Name("gps")), ("device", DEVICE)):
        alone.issue([who], tmp_path / name)
    async with plain_or_secure(echo.address, old) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/Echo/One")(b"", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    async with plain_or_secure(echo.address, now(files)) as channel:
        assert await channel.unary_unary("/Echo/One")(b"") == now(files).cert


async def test_nothing_is_said_to_a_parent_whose_name_is_on_the_own_list(
    files: TlsFiles, authority: Authority, tmp_path: Path
) -> None:
    lps, other = (Echo(issued(authority, tmp_path / name, Name("lps", name))) for name in ("lps-0", "lps-1"))
    for server in (lps, other):
        await server.server.start()
    async with (
        plain_or_secure(lps.address, files, Name("lps", "lps-0")) as channel,
        plain_or_secure(other.address, files, Name("lps", "lps-1")) as beside,
    ):
        assert await channel.unary_unary("/Echo/One")(b"") == files.cert
        (files.folder / "revoked.txt").write_text("lps/lps-0\n")
        files.revoked(at_once=True)  # which each call does, once a second
        with pytest.raises(NotServedError, match="lps/lps-0 is revoked, by the list of device/device-000"):
            channel.unary_unary("/Echo/One")(b"")
        assert await beside.unary_unary("/Echo/One")(b"") == files.cert
    for server in (lps, other):
        await server.server.stop(None)
