"""Certificates that count no more: what a list says, who is refused by it, and how it is written."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_trust_table import ATTEND, Clusters, Served, attended, called, said_by

from emulator.commands.main import execute
from fedstrata.errors import CertificateError, NotAllowedError
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.trust.authority import Authority
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.guard import Caller, Guard
from fedstrata.trust.names import Name, Peer
from fedstrata.trust.revoked import MOST_BYTES, Revoked
from fedstrata.trust.table import TABLE
from fedstrata.v1.rounds_pb2 import UpdatePart

ROW = Name("device", "device-000", "device-009")
CHECK, ENROLL = "/grpc.health.v1.Health/Check", "/fedstrata.v1.GpsService/Enroll"


def test_a_list_is_written_as_it_is_read() -> None:
    text = "device/device-000_device-009\noperator\n"
    revoked = Revoked.parse(f"# lost in May\n\n{text}")
    assert revoked == Revoked(frozenset({ROW, Name("operator")}))
    assert revoked.files() == {"revoked.txt": text.encode()}
    assert not Revoked().files()


@pytest.mark.parametrize("line", ["serial 1f", "boss", "device", "lps/x", "device/a/b", "gps gps"])
def test_a_line_that_says_nothing_is_told_by_its_number(line: str) -> None:
    with pytest.raises(CertificateError, match=r"revoked\.txt, line 2: .*; expected a name such as"):
        Revoked.parse(f"operator\n{line}\n")


@pytest.mark.parametrize(
    ("revoked", "names", "is_refused"),
    [
        ([ROW], [ROW], True),
        ([ROW], [Name("device", "device-004")], True),
        ([Name("device", "device-000", "device-004"), Name("device", "device-005", "device-009")], [ROW], True),
        ([Name("device", "device-004")], [ROW], False),  # nine others go on; what is said for the fourth is refused
        ([Name("device", "device-004")], [Name("device", "device-004"), Name("device", "pi")], False),
        ([Name("device", "lps-0")], [Name("lps", "lps-0")], False),
        ([Name("operator")], [Name("operator")], True),
        ([Name("gps")], [Name("operator")], False),
    ],
)
def test_who_is_nothing_but_revoked_is_refused_whatever_it_calls(
    revoked: list[Name], names: list[Name], is_refused: bool
) -> None:
    assert (Revoked(frozenset(revoked)).why(Peer("run-1", tuple(names))) is not None) is is_refused


class Listed(Served):
    """A server that looks at its list at each call and each message."""

    def revoke(self, *words: str) -> None:
        (self.folder / "server" / "revoked.txt").write_text("".join(f"{word}\n" for word in words))

    def _revoked(self) -> Revoked:
        return TlsFiles.load(self.folder / "server").revoked()

    def refused(self) -> float | None:
        return self.metrics.registry.get_sample_value("fedstrata_refused_total", {"reason": "revoked"})


@pytest.fixture
async def listed(tmp_path: Path) -> AsyncIterator[Listed]:
    async with Listed(tmp_path, Authority.new("run-1"), ProcessMetrics("gps")) as server:
        yield server


async def test_of_a_row_only_who_is_revoked_is_not_heard(listed: Listed) -> None:
    listed.revoke("device/device-004")
    async with listed.channel_of(ROW) as channel:
        assert await called(channel, ENROLL, said_by(ENROLL, "device-003")) == "OK"
        assert (await called(channel, ENROLL, said_by(ENROLL, "device-004"))).startswith("'device-004' is revoked")


async def test_a_session_ends_at_the_next_message_of_who_is_revoked() -> None:
    name, told = Name("device", "device-000"), list[str]()
    revoked = Revoked()
    guard = Guard("run-1", Clusters(), told.append, revoked=lambda: revoked)
    caller = Caller(Peer("run-1", (name,)), b"")
    for part in attended("device-000"):
        await guard.check(caller, ATTEND, TABLE[ATTEND], part)
    revoked = Revoked(frozenset({name}))
    parts = [*attended("device-000"), UpdatePart(data=b"12")]
    for part in parts:
        with pytest.raises(NotAllowedError, match="device/device-000 is revoked"):
            await guard.check(caller, ATTEND, TABLE[ATTEND], part)
    assert told == ["revoked"] * len(parts)


def certs(folder: Path, *words: str) -> int:
    return execute(["certs", *words, "--folder", str(folder)])


def test_the_list_is_beside_all_certificates_of_a_folder_and_those_issued_later(tmp_path: Path) -> None:
    for words in (["init", "lab"], ["issue", "gps"], ["issue", "device", "pi-1"], ["revoke", "device", "pi-1"]):
        assert certs(tmp_path, *words) == 0
    assert certs(tmp_path, "issue", "lps", "lps-0") == 0
    assert certs(tmp_path, "revoke", "lps", "lps-0") == 0
    lists = {path.read_text() for path in tmp_path.rglob("revoked.txt")}
    assert lists == {"device/pi-1\nlps/lps-0\n"}
    assert len(list(tmp_path.rglob("revoked.txt"))) == 4
    assert TlsFiles.load(tmp_path / "gps").revoked().names == {Name("device", "pi-1"), Name("lps", "lps-0")}


@pytest.mark.parametrize("words", [[], ["device"], ["boss"]])
def test_nobody_is_revoked_by_what_says_not_whom(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(tmp_path, "init", "lab") == 0
    assert certs(tmp_path, "revoke", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert not list(tmp_path.rglob("revoked.txt"))


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    """Of a server whose list names operators."""
    Authority.new("run-1").issue([Name("gps")], tmp_path)
    (tmp_path / "revoked.txt").write_text("operator\n")
    return TlsFiles.load(tmp_path)


@pytest.mark.parametrize(
    "content", [None, "", "\n", "nobody in particular\n", "operator\ndevice/device-0", "#" * MOST_BYTES]
)
def test_a_list_that_cannot_be_read_is_not_taken_and_the_one_before_stays(
    tls: TlsFiles, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tls.folder / "revoked.txt"
    path.unlink() if content is None else path.write_text(content)
    assert tls.revoked(at_once=True) == Revoked(frozenset({Name("operator")}))
    assert [record.message for record in caplog.records] == ["revoked_not_taken"]


def test_a_list_that_says_that_nobody_is_revoked_is_taken(tls: TlsFiles) -> None:
    (tls.folder / "revoked.txt").write_text("# nobody\n")
    assert tls.revoked(at_once=True) == Revoked()


def test_a_list_is_taken_whatever_becomes_of_the_certificate_beside_it(tls: TlsFiles) -> None:
    (tls.folder / "cert.pem").write_text("copied in part")
    (tls.folder / "revoked.txt").write_text("device/device-003\n")
    assert tls.newest(at_once=True) is tls
    assert tls.revoked(at_once=True) == Revoked(frozenset({Name("device", "device-003")}))


def test_a_server_does_not_start_with_a_list_whose_last_line_has_no_end(tls: TlsFiles) -> None:
    (tls.folder / "revoked.txt").write_text("operator\ndevice/device-00")
    with pytest.raises(CertificateError, match=r"revoked\.txt: its last line has no end"):
        TlsFiles.load(tls.folder)


@pytest.mark.parametrize("device_id", ["device-000", "device-4", "device-012", "pi-7", "pi", "x" * 63 + "1", "0" * 12])
def test_a_long_list_says_the_same_of_everybody_as_its_names_one_by_one(device_id: str) -> None:
    said = [
        ("device-000", "device-004"),
        ("device-005", "device-009"),
        ("pi-6", "pi-8"),
        ("0" * 12, f"{3:012}"),
        ("pi",),
    ]
    names = [Name("device", *ids) for ids in said]
    assert Revoked(frozenset(names)).revokes(["device"], device_id) is any(name.covers(device_id) for name in names)
    assert not Revoked(frozenset(names)).revokes(["lps"], device_id)


@pytest.mark.parametrize(
    ("entry", "entries"),
    [("device/device-{:04d}", 13_000), ("device/{:063d}", 3_600)],
)
def test_a_list_has_room_for_as_many_as_its_bound_says(tls: TlsFiles, entry: str, entries: int) -> None:
    text = "".join(f"{entry.format(number)}\n" for number in range(entries))
    (tls.folder / "revoked.txt").write_text(text)
    assert len(tls.revoked(at_once=True).names) == entries
