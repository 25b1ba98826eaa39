"""The TLS files of a process: names, what a folder must hold, what replaces it while the process runs, and lists."""

import base64
import shutil
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP521R1
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedstrata.errors import CertificateError
from fedstrata.trust.authority import Authority
from fedstrata.trust.names import Name, NameSet, Peer, Role, check_domain, device_names
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import MOST_BYTES, Revoked, TlsFiles
from tests.support.made_certificates import Made, made

DEVICE, OTHER, GPS = Name("device", "device-000"), Name("device", "device-001"), Name("gps")
ROW = Name("device", "device-000", "device-009")
HALVES = Name("device", "device-000", "device-004"), Name("device", "device-005", "device-009")
FILES = ("ca.pem", "cert.pem", "key.pem")

# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["device-000", "device-001", "device-002"], ["device/device-000_device-002"]),
        (["device-000", "device-002", "pi"], ["device/device-000", "device/device-002", "device/pi"]),
        (["pi-9", "pi-10"], ["device/pi-9", "device/pi-10"]),  # of numbers with more digits there is no row
    ],
)
def test_devices_in_a_row_are_one_name(ids: list[str], names: list[str]) -> None:
    assert [str(name) for name in device_names(ids)] == names


@pytest.mark.parametrize(
    ("device_id", "is_one"),
    [
        ("device-000", True),
        ("device-049", True),
        ("device-050", False),
        ("device-1", False),  # another than device-001
        ("device-0001", False),
        ("device-०१२", False),  # digits of another script
        ("device-", False),
        ("evil-device-001", False),
        ("device-000_device-049", False),
    ],
)
def test_a_row_covers_the_devices_from_its_first_to_its_last(device_id: str, is_one: bool) -> None:
    row = Name("device", "device-000", "device-049")
    assert (row.covers(device_id), row.devices) == (is_one, 50)


@pytest.mark.parametrize("device_id", ["device-000", "device-4", "device-012", "pi-7", "pi", "x" * 63 + "1", "0" * 12])
def test_a_set_of_names_covers_what_its_names_cover_one_by_one(device_id: str) -> None:
    said = [
        ("device-000", "device-004"),
        ("device-005", "device-009"),
        ("pi-6", "pi-8"),
        ("0" * 12, f"{3:012}"),
        ("pi",),
    ]
    names = [Name("device", *ids) for ids in said]
    assert NameSet(names).has("device", device_id) is any(name.covers(device_id) for name in names)
    assert not NameSet(names).has("lps", device_id)


@pytest.mark.parametrize(
    ("role", "device_or_lps_id", "is_one"),
    [("device", "device-003", True), ("device", "pi", True), ("device", "device-004", False), ("lps", "pi", False)],
)
def test_the_holder_of_several_uris_is_all_that_they_name(role: Role, device_or_lps_id: str, is_one: bool) -> None:
    said = ("spiffe://run-1/device/device-000_device-003", "spiffe://run-1/device/pi", "https://example.org/another")
    peer = Peer.of_uris(said)
    assert (peer.domain, peer.is_(role, device_or_lps_id)) == ("run-1", is_one)
    assert [peer.is_a("device"), peer.is_a("operator")] == [True, False]


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://example.org"],
        ["spiffe://run-1/gps", "spiffe://run-2/gps"],
        ["spiffe://run-1/root"],
        ["spiffe://run-1/gps/gps"],
        ["spiffe://run-1/device"],
        ["spiffe://run-1/device/A b"],
        ["spiffe://run-1/device/device-9_device-0"],
        ["spiffe://run-1/lps/lps-0_lps-9"],
    ],
)
def test_uris_that_name_nobody_or_what_cannot_be_are_refused(uris: list[str]) -> None:
    with pytest.raises(CertificateError):
        Peer.of_uris(uris)


@pytest.mark.parametrize("domain", ["", "Run", "a/b", "-a", "a-", "a" * 300])
def test_a_domain_is_small_letters_digits_and_hyphens(domain: str) -> None:
    with pytest.raises(CertificateError, match="cannot be the name of a run"):
        check_domain(domain)


# --- what an authority issues -------------------------------------------------------------------------------


@pytest.fixture
def authority() -> Authority:
    return Authority.new("run-1")


def issued(authority: Authority, folder: Path, *names: Name) -> TlsFiles:
    authority.issue(names or [DEVICE], folder)
    return TlsFiles.load(folder)


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    return issued(authority, tmp_path / "device")


def test_a_certificate_says_who_its_holder_is_and_only_that_user_may_read_it(files: TlsFiles) -> None:
    assert (files.me.domain, str(files.me)) == ("run-1", "device/device-000")
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.folder.iterdir()} == {0o600}


def test_ten_thousand_devices_in_a_row_have_a_small_certificate(authority: Authority, tmp_path: Path) -> None:
    tls = issued(authority, tmp_path, *device_names(f"device-{index:04d}" for index in range(10_000)))
    assert tls.me.is_("device", "device-9999")
    assert len(tls.cert) < 1000


def test_more_names_than_grpc_takes_of_a_peer_are_refused(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="1 to 64 names, not 65"):
        authority.issue([Name("device", f"pi-{index}-x") for index in range(65)], tmp_path)


def test_an_authority_goes_on_from_its_folder(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="create one with fedstrata certs init"):
        Authority.load(tmp_path / "authority")
    authority.save(tmp_path / "authority")
    again = Authority.load(tmp_path / "authority")
    assert (again.domain, again.trusted()) == ("run-1", authority.trusted())
    assert again.has_issued(made("one", authority).certificate)


def test_an_authority_of_somebody_elses_making_is_told(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    authority.save(tmp_path / "authority")
    shutil.copy(files.folder / "cert.pem", tmp_path / "authority" / "ca.pem")
    with pytest.raises(CertificateError, match="is not the key of"):
        Authority.load(tmp_path / "authority")


@pytest.mark.parametrize("password", [b"secret", b""], ids=["with a password", "on an unknown curve"])
def test_an_authority_whose_key_cannot_be_read_is_told(tmp_path: Path, password: bytes) -> None:
    root = made("root")
    (tmp_path / "ca.pem").write_bytes(root.pem)
    (tmp_path / "ca-key.pem").write_bytes(root.key_pem(password).replace(b"SM49AwEHBG0", b"SM49AwkHBG0"))
    with pytest.raises(CertificateError, match="the key has a password; put the right files back"):
        Authority.load(tmp_path)


def test_an_authority_that_succeeds_another_trusts_it_until_it_is_alone(authority: Authority, tmp_path: Path) -> None:
    authority.succeeded().replace_in(tmp_path)
    again = Authority.load(tmp_path)
    assert again.before == (authority.certificate,)
    assert [again.trusted().count(b"BEGIN"), again.alone().trusted().count(b"BEGIN")] == [2, 1]
    with pytest.raises(CertificateError, match="renewed already"):
        again.succeeded()


def test_an_authority_whose_successor_never_got_its_key_goes_on_and_may_be_renewed(
    authority: Authority, tmp_path: Path
) -> None:
    authority.save(tmp_path)
    (tmp_path / "ca.pem").write_bytes(authority.succeeded().trusted())  # and not the key
    again = Authority.load(tmp_path)
    assert again.certificate == authority.certificate
    assert again.succeeded().before == (authority.certificate,)


# --- what a folder must hold --------------------------------------------------------------------------------

NOT_PEM = {
    "empty": b"",
    "nonsense": b"nonsense",
    "cut": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    "bytes": b"\xff",
}


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(files: TlsFiles, name: str) -> None:
    (files.folder / name).unlink()
    with pytest.raises(CertificateError, match=rf"{name}: No such file.*--tls must name a folder"):
        TlsFiles.load(files.folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", NOT_PEM.values(), ids=NOT_PEM)
def test_a_damaged_file_is_named(files: TlsFiles, name: str, content: bytes) -> None:
    (files.folder / name).write_bytes(content)
    with pytest.raises(CertificateError, match=name):
        TlsFiles.load(files.folder)


UNUSABLE: dict[str, tuple[Callable[[Authority], Made], str]] = {
    "run out": (lambda ours: made("x", ours, days=(-9, -1), names=[GPS]), "has expired"),
    "not yet": (lambda ours: made("x", ours, days=(9, 10), names=[GPS]), "is not yet valid"),
    "by another": (lambda ours: made("x", Authority.new("run-1"), names=[GPS]), "no authority that is valid now"),
    "by itself": (lambda ours: made("x", names=[GPS]), "no authority that is valid now"),
    "for servers alone": (
        lambda ours: made("x", ours, names=[GPS], uses=[ExtendedKeyUsageOID.SERVER_AUTH]),
        "is not for callers",
    ),
    "of nobody": (lambda ours: made("x", ours), "names no run"),
    "on a curve that gRPC lacks": (lambda ours: made("x", ours, names=[GPS], curve=SECP521R1), "nor on curve P-256"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "why"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_certificate_that_a_parent_would_not_take_is_told(
    authority: Authority, files: TlsFiles, make: Callable[[Authority], Made], why: str
) -> None:
    one = make(authority)
    (files.folder / "cert.pem").write_bytes(one.pem)
    (files.folder / "key.pem").write_bytes(one.key_pem())
    with pytest.raises(CertificateError, match=why):
        TlsFiles.load(files.folder)


def test_a_certificate_is_not_by_an_authority_that_has_run_out(files: TlsFiles) -> None:
    root = made("root", days=(-9, -1))
    one = made("x", root, names=[GPS])
    for name, content in zip(FILES, (root.pem, one.pem, one.key_pem()), strict=True):
        (files.folder / name).write_bytes(content)
    with pytest.raises(CertificateError, match=r"cert\.pem cannot be used: no authority that is valid now"):
        TlsFiles.load(files.folder)


@pytest.mark.parametrize("password", [b"", b"secret"])
def test_a_key_of_another_certificate_and_one_with_a_password_are_told(files: TlsFiles, password: bytes) -> None:
    (files.folder / "key.pem").write_bytes(made("other").key_pem(password))
    with pytest.raises(CertificateError, match=r"is not the key of .*, or is damaged, or has a password"):
        TlsFiles.load(files.folder)


@pytest.mark.parametrize(
    ("issued_for", "is_for", "lacks"),
    [
        ([Name("lps", "lps-0")], [Name("lps", "lps-0")], None),
        (
            [Name("lps", "lps-0")],
            [Name("lps", "lps-1")],
            "is the certificate of lps/lps-0, but this process is lps/lps-1",
        ),
        ([ROW], [DEVICE, OTHER], None),
        (device_names(["device-000", "device-001"]), [OTHER, Name("device", "pi")], "this process is device/pi"),
    ],
)
def test_a_process_starts_with_a_certificate_of_all_that_it_is(
    authority: Authority, tmp_path: Path, issued_for: list[Name], is_for: list[Name], lacks: str | None
) -> None:
    authority.issue(issued_for, tmp_path)
    if lacks is None:
        assert TlsSecurity(TlsFiles.load(tmp_path), *is_for).tls.folder == tmp_path
    else:
        with pytest.raises(CertificateError, match=lacks):
            TlsSecurity(TlsFiles.load(tmp_path), *is_for)


# --- certificates that counted when a connection began ------------------------------------------------------

ROOT, FOREIGN = made("root"), made("foreign")
NAMESAKE = made("root")  # another key
BETWEEN = made("between", ROOT)
LEAF, DEEP = made("leaf", ROOT), made("deep", BETWEEN)


@pytest.mark.parametrize(
    ("chain", "authorities", "is_vouched_for"),
    [
        ([LEAF], [ROOT], True),
        ([LEAF], [FOREIGN, ROOT], True),
        ([LEAF], [FOREIGN], False),
        ([LEAF], [NAMESAKE], False),
        ([LEAF, ROOT], [FOREIGN], False),
        ([DEEP, BETWEEN], [ROOT], True),
        ([DEEP, FOREIGN, BETWEEN, BETWEEN], [ROOT], True),
        ([DEEP], [ROOT], False),
        ([DEEP, BETWEEN], [FOREIGN], False),
        ([DEEP, BETWEEN, ROOT], [BETWEEN], True),
        ([ROOT], [ROOT], True),
    ],
)
def test_a_certificate_counts_as_long_as_an_authority_vouches_for_it(
    tmp_path: Path, chain: list[Made], authorities: list[Made], is_vouched_for: bool
) -> None:
    ca = b"".join(one.pem for one in authorities)
    tls = TlsFiles(folder=tmp_path, ca=ca, cert=b"", key=b"", me=Peer("run-1", (GPS,)))
    why = tls.why_outdated(b"".join(one.pem for one in chain), time.time())
    assert why == (None if is_vouched_for else "comes from an authority that is no longer trusted")


@pytest.mark.parametrize("years", [1, 40])  # a certificate writes days from 2050 on in another form
def test_a_certificate_counts_until_its_last_second(authority: Authority, files: TlsFiles, years: int) -> None:
    one = made("x", authority, days=(0, years * 365))
    ends = one.certificate.not_valid_after_utc
    assert files.why_outdated(one.pem, ends.timestamp()) is None
    assert files.why_outdated(one.pem, ends.timestamp() + 1) == f"expired on {ends:%Y-%m-%d %H:%M:%S} UTC"


@pytest.mark.parametrize("content", NOT_PEM.values(), ids=NOT_PEM)
def test_what_is_no_certificate_is_told(files: TlsFiles, content: bytes) -> None:
    with pytest.raises(CertificateError, match="certificate cannot be read"):
        files.why_outdated(content, 0.0)


# --- files that are replaced while a process runs -----------------------------------------------------------


def now(files: TlsFiles) -> TlsFiles:
    return files.newest(at_once=True)


def _changed(part: bytes, other: bytes, ours: Authority, folder: Path) -> None:
    found = ours.issued([ROW])
    der = x509.load_pem_x509_certificate(found["cert.pem"]).public_bytes(Encoding.DER)
    content = base64.encodebytes(der.replace(part, other))
    (folder / "cert.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\n" + content + b"-----END CERTIFICATE-----\n")
    (folder / "key.pem").write_bytes(found["key.pem"])


REPLACED: dict[str, tuple[Callable[[Authority, Path], object], bool]] = {
    "nothing": (lambda ours, folder: None, False),
    "by the same authority": (lambda ours, folder: ours.issue([ROW], folder), True),
    "by another, beside it": (lambda ours, folder: ours.succeeded().issue([ROW], folder), True),
    "by two names for the row": (lambda ours, folder: ours.issue(HALVES, folder), True),
    "of one device of the row": (lambda ours, folder: ours.issue([DEVICE], folder), False),
    "of another run": (lambda ours, folder: Authority.new("run-2").issue([ROW], folder), False),
    "all removed": (lambda ours, folder: shutil.rmtree(folder), False),
    "the key alone": (lambda ours, folder: (folder / "key.pem").write_bytes(ours.issued([ROW])["key.pem"]), False),
    "in part": (lambda ours, folder: (folder / "cert.pem").write_text("a part may be missing"), False),
    "with an extension twice": (partial(_changed, b"\x55\x1d\x23", b"\x55\x1d\x25"), False),
    "of version 17": (partial(_changed, b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x10"), False),
}  # fmt: skip


@pytest.mark.parametrize(("replace", "is_taken"), REPLACED.values(), ids=REPLACED)
def test_files_are_taken_if_they_are_whole_and_name_all_whom_the_ones_before_named(
    authority: Authority, tmp_path: Path, replace: Callable[[Authority, Path], object], is_taken: bool
) -> None:
    files = issued(authority, tmp_path / "row", ROW)
    replace(authority, files.folder)
    taken = now(files)
    assert (taken is not files) is is_taken
    if is_taken:
        assert taken.cert == (files.folder / "cert.pem").read_bytes()
    assert now(taken) is files.newest() is taken


@pytest.mark.parametrize(
    ("domain", "name", "reason"),
    [
        ("run-2", DEVICE, "now belongs to run 'run-2', not 'run-1'"),
        ("run-1", OTHER, "this process is device/device-000"),
    ],
)
def test_why_files_are_not_taken_is_logged(
    files: TlsFiles, domain: str, name: Name, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    issued(Authority.new(domain), files.folder, name)
    assert now(files) is files
    (record,) = [record for record in caplog.records if record.message == "certificate_not_taken"]
    assert reason in record.fields["reason"]  # type: ignore[attr-defined]


def test_a_key_counts_once_its_certificate_has_come(files: TlsFiles, authority: Authority) -> None:
    found = authority.issued([DEVICE])
    (files.folder / "key.pem").write_bytes(found["key.pem"])
    assert now(files) is files
    (files.folder / "cert.pem").write_bytes(found["cert.pem"])
    assert now(files).cert == found["cert.pem"]


def test_files_with_other_times_and_rights_alone_are_not_taken_again(
    files: TlsFiles, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for mode in (0o640, 0o600, 0o440):  # what kubelet does to a Secret's files now and then
        for name in FILES:
            (files.folder / name).chmod(mode)
        assert now(files) is files
    assert [record.message for record in caplog.records] == []
    (files.folder / "key.pem").chmod(0o600)
    authority.issue([DEVICE], files.folder)
    assert now(files) is not files
    assert [record.message for record in caplog.records] == ["certificate_taken"]


def test_files_that_failed_are_read_again_a_minute_later_and_told_of_once(
    files: TlsFiles, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, read = time.monotonic(), Path.read_bytes
    monkeypatch.setattr("fedstrata.trust.tls_files.time.monotonic", lambda: clock)

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


@pytest.mark.parametrize("is_there", [True, False], ids=["replaced", "removed"])
def test_files_that_change_while_they_are_read_are_read_again(
    files: TlsFiles, authority: Authority, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    read = Path.read_bytes

    def changed(path: Path) -> bytes:
        content = read(path)
        if path.name == "cert.pem":
            monkeypatch.setattr(Path, "read_bytes", read)
            authority.issue([DEVICE], files.folder) if is_there else (files.folder / "key.pem").unlink()
        return content

    authority.issue([DEVICE], files.folder)
    monkeypatch.setattr(Path, "read_bytes", changed)
    taken = now(files)
    if is_there:
        assert [taken.ca, taken.cert, taken.key] == [(files.folder / name).read_bytes() for name in FILES]
    else:
        assert taken is files


def test_a_folder_that_is_a_link_is_followed_as_kubelet_turns_it(authority: Authority, tmp_path: Path) -> None:
    first, second = (issued(authority, tmp_path / name) for name in ("first", "second"))
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "shown").mkdir()
    for name in FILES:
        (tmp_path / "shown" / name).symlink_to(Path("..", "..data", name))
    files = TlsFiles.load(tmp_path / "shown")
    assert files.is_shown_as(first)
    (tmp_path / "next").symlink_to("second")
    (tmp_path / "next").replace(tmp_path / "..data")
    assert now(files).is_shown_as(second)


# --- the list of revoked names ------------------------------------------------------------------------------


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
        (HALVES, [ROW], True),
        ([Name("device", "device-004")], [ROW], False),  # nine others go on; what is said for the fourth is refused
        ([Name("device", "device-004")], [Name("device", "device-004"), Name("device", "pi")], False),
        ([Name("device", "lps-0")], [Name("lps", "lps-0")], False),
        ([Name("operator")], [Name("operator")], True),
        ([GPS], [Name("operator")], False),
        ([], [GPS], False),
    ],
)
def test_who_is_nothing_but_revoked_is_refused_whatever_it_calls(
    revoked: list[Name], names: list[Name], is_refused: bool
) -> None:
    assert (Revoked(frozenset(revoked)).why(Peer("run-1", tuple(names))) is not None) is is_refused


@pytest.fixture
def server(authority: Authority, tmp_path: Path) -> TlsFiles:
    """Of a server whose list names operators."""
    authority.issue([GPS], tmp_path)
    (tmp_path / "revoked.txt").write_text("operator\n")
    return TlsFiles.load(tmp_path)


LISTS: dict[str, tuple[str | None, int | None]] = {
    "gone": (None, None),
    "empty": ("", None),
    "blank": ("\n", None),
    "of nobody known": ("nobody in particular\n", None),
    "cut": ("operator\ndevice/device-0", None),
    "too long": ("#" * MOST_BYTES, None),
    "a remark": ("# nobody\n", 0),
    "another": ("device/device-003\n", 1),
    "many": ("".join(f"device/device-{number:04d}\n" for number in range(13_000)), 13_000),
    "many long ones": ("".join(f"device/{number:063d}\n" for number in range(3_600)), 3_600),
}


@pytest.mark.parametrize(("content", "entries"), LISTS.values(), ids=LISTS)
def test_a_list_that_says_whom_is_taken_and_of_another_the_one_before_stays(
    server: TlsFiles, content: str | None, entries: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = server.folder / "revoked.txt"
    path.unlink() if content is None else path.write_text(content)
    caplog.set_level("INFO")
    found = server.revoked(at_once=True)
    assert len(found.names) == (1 if entries is None else entries)
    assert (found == Revoked(frozenset({Name("operator")}))) is (entries is None)
    assert [record.message for record in caplog.records] == [
        "revoked_not_taken" if entries is None else "revoked_taken"
    ]


def test_a_list_is_taken_whatever_becomes_of_the_certificate_beside_it(server: TlsFiles) -> None:
    (server.folder / "cert.pem").write_text("a part may be missing")
    (server.folder / "revoked.txt").write_text("device/device-003\n")
    assert now(server) is server
    assert server.revoked(at_once=True) == Revoked(frozenset({Name("device", "device-003")}))


def test_a_list_may_lie_elsewhere_and_a_server_does_not_start_with_one_whose_last_line_has_no_end(
    server: TlsFiles, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("gps\n")
    assert TlsFiles.load(server.folder, tmp_path / "other.txt").revoked() == Revoked(frozenset({GPS}))
    (server.folder / "revoked.txt").write_text("operator\ndevice/device-00")
    with pytest.raises(CertificateError, match=r"revoked\.txt: the last line has no line feed"):
        TlsFiles.load(server.folder)
