import hashlib
from argparse import Namespace
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from emulator import certs as work
from emulator.cluster.release import Release
from emulator.cluster.release_certificates import ReleaseCertificates
from emulator.commands import certs as commands
from emulator.commands.main import execute
from fedstrata.errors import EXIT_RUN_FAILED, CertificateError
from fedstrata.store import claimed
from fedstrata.trust.authority import Authority, Issued
from fedstrata.trust.certificates import dns_names
from fedstrata.trust.names import CERTIFICATE_DAYS, Name
from fedstrata.trust.security import security_of
from fedstrata.trust.tls_files import Revoked, TlsFiles
from tests.support.kept_secrets import Kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert execute(["certs", "init", "greenhouse", "--folder", str(tmp_path)]) == 0
    return tmp_path


def certs(folder: Path, *words: str) -> int:
    return execute(["certs", *words, "--folder", str(folder)])


@pytest.mark.parametrize(
    ("words", "place", "who"),
    [
        (["gps"], "gps", "gps"),
        (["operator"], "operator", "operator"),
        (["lps", "lps-2"], "lps-2", "lps/lps-2"),
        (["device", "pi-kitchen"], "devices/pi-kitchen", "device/pi-kitchen"),
        (["device", "gps"], "devices/gps", "device/gps"),
        (["device", "pi-1", "pi-2", "pi-3"], "devices/pi-1_pi-3", "device/pi-1_pi-3"),
        (["device", "a", "b"], "devices/a_b", "device/a and 1 more"),
    ],
)
def test_what_is_issued_can_be_shown_by_who_it_names(folder: Path, words: list[str], place: str, who: str) -> None:
    assert certs(folder, "issue", *words) == 0
    tls = TlsFiles.load(folder / place)
    assert (tls.me.domain, str(tls.me)) == ("greenhouse", who)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["boss"], "'boss' is not a role; give one of gps, operator, lps, device, fleet"),
        (["gps", "x"], "a name of gps must have the form gps"),
        (["lps"], "the lps has no name; give one: fedstrata certs issue lps NAME"),
        (["lps", "x"], "'x' is not the id of an LPS; these are lps-0, lps-1, …"),
        (["lps", "lps-0", "lps-1"], "a certificate of lps has one name, not 2"),
        (["device"], "the device has no name; give one: fedstrata certs issue device NAME"),
        (
            ["device", "a", "--server-domain", "fl.example.org"],
            "--server-domain is for certificates of servers, not of device; leave it out",
        ),
        (
            ["gps", "--server-domain", "FL.example.org"],
            "'FL.example.org' is not a domain for servers' names; write one such as fl.example.org, in small letters, "
            "with at most 200 characters, and at most 63 between dots",
        ),
        (
            ["gps", "--server-domain", f"{'a' * 64}.org"],
            f"'{'a' * 64}.org' is not a domain for servers' names; write one such as fl.example.org, in small letters, "
            "with at most 200 characters, and at most 63 between dots",
        ),
        (
            ["device", "../x"],
            "'../x' is not an id of device: an id has at most 63 small letters, digits, dots and hyphens",
        ),
    ],
)
def test_what_cannot_be_issued_is_told_in_a_line(
    folder: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(folder, "issue", *words) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert [path.name for path in folder.iterdir()] == ["authority"]


def test_nothing_is_overwritten_unasked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs(folder, "issue", "gps") == 0
    before = TlsFiles.load(folder / "gps")
    assert certs(folder, "issue", "gps") == 2
    assert certs(folder, "init", "other") == 2
    assert "has a certificate already" in (said := capsys.readouterr().err)
    assert "has an authority already" in said
    assert TlsFiles.load(folder / "gps") == before


def test_renewed_are_all_by_the_same_authority_with_new_keys(folder: Path) -> None:
    for words in (["gps"], ["device", "pi-1", "pi-2"]):
        assert certs(folder, "issue", *words) == 0
    places = folder / "gps", folder / "devices" / "pi-1_pi-2"
    before = [TlsFiles.load(place) for place in places]
    assert certs(folder, "renew") == 0
    for old, place in zip(before, places, strict=True):
        new = TlsFiles.load(place)
        assert (new.me, new.ca) == (old.me, old.ca)
        assert new.key != old.key


def test_a_server_keeps_its_names_in_a_domain_when_its_certificate_is_renewed(folder: Path) -> None:
    assert certs(folder, "issue", "lps", "lps-0", "--server-domain", "fl.example.org") == 0
    assert certs(folder, "issue", "device", "pi-1") == 0
    for _ in range(2):
        assert dns_names(Issued.read(folder / "lps-0").certificate) == ["lps-0", "lps-0.fl.example.org"]
        assert dns_names(Issued.read(folder / "devices" / "pi-1").certificate) == []
        assert certs(folder, "renew") == 0


def test_a_renewed_certificate_of_a_server_can_get_another_domain(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(folder, "issue", "lps", "lps-0") == 0
    assert certs(folder, "issue", "device", "pi-1") == 0
    for domain in ("fl.example.org", f"{'a' * 63}.org"):
        assert certs(folder, "renew", "--server-domain", domain) == 0
        assert dns_names(Issued.read(folder / "lps-0").certificate) == ["lps-0", f"lps-0.{domain}"]
        assert dns_names(Issued.read(folder / "devices" / "pi-1").certificate) == []
    assert certs(folder, "renew", "--server-domain", "A.org") == 2
    assert "'A.org' is not a domain" in capsys.readouterr().err
    assert certs(folder, "renew", "--server-domain", "a.org", "--authority", "new") == 2
    assert "--server-domain does not go with --authority" in capsys.readouterr().err


@pytest.mark.parametrize(("domain", "fault"), [("a..b", "'a..b' is not a domain"), ("a.org", "give --tls")])
def test_a_domain_that_callers_cannot_use_is_refused_when_they_start(folder: Path, domain: str, fault: str) -> None:
    assert certs(folder, "issue", "device", "pi-1") == 0
    tls = folder / "devices" / "pi-1" if domain == "a..b" else None
    with pytest.raises(CertificateError, match=fault):
        security_of(Namespace(tls=tls, revoked=None, server_domain=domain))


def test_a_list_of_revoked_names_is_refused_if_no_caller_has_a_name() -> None:
    with pytest.raises(CertificateError, match=r"--revoked lost\.txt needs certificates; give --tls, too"):
        security_of(Namespace(tls="", revoked="lost.txt", server_domain=""))


def test_a_list_of_revoked_names_may_come_later_and_its_folder_may_not(folder: Path) -> None:
    assert certs(folder, "issue", "device", "pi-1") == 0
    tls = folder / "devices" / "pi-1"
    assert security_of(Namespace(tls=tls, revoked=f"{folder}/revoked.txt", server_domain=None)).tls
    with pytest.raises(CertificateError, match=r"--revoked .*/typo/revoked\.txt: there is no folder .*/typo; correct"):
        security_of(Namespace(tls=tls, revoked=f"{folder}/typo/revoked.txt", server_domain=None))


def test_show_says_of_whom_and_until_when(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs(folder, "issue", "device", "pi-kitchen", "--days", "20") == 0
    capsys.readouterr()
    assert execute(["certs", "show", str(folder)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{folder}/devices/pi-kitchen: device/pi-kitchen of greenhouse, until 2")
    assert line.endswith("19 days left")


@pytest.mark.parametrize("words", [["show", "{}"], ["issue", "gps", "--folder", "{}"], ["renew", "--folder", "{}"]])
def test_a_folder_without_certificates_is_told_in_a_line(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["certs", *(word.format(tmp_path) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no ")


def test_an_authority_that_names_its_key_otherwise_is_named_so_and_trusted(tmp_path: Path) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "by Go")])
    public = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    digest = hashlib.sha256(public).digest()[:20]  # as Go 1.25 makes it, and not SHA-1 of the key
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 7, now - timedelta(hours=1), now + timedelta(days=9)
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier(digest), critical=False)
    uri = x509.UniformResourceIdentifier("spiffe://lab.garden")
    builder = builder.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    authority = Authority(domain="lab.garden", certificate=builder.sign(key, SHA256()), key=key)
    authority.issue([Name("device", "board-1")], tmp_path)
    assert str(TlsFiles.load(tmp_path).me) == "device/board-1"  # a handshake with itself, which checks the chain
    issued = x509.load_pem_x509_certificate((tmp_path / "cert.pem").read_bytes())
    assert issued.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == digest


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ReleaseCertificates:
    """A release whose GPS and operator have certificates."""
    certificates = ReleaseCertificates(Release(name="lab", namespace="garden"), Kept())
    certificates.make({"gps": [Name("gps")], "operator": [Name("operator")]})
    monkeypatch.setattr("emulator.certs._certificates_of", lambda _: certificates)
    return certificates


@pytest.mark.usefixtures("release")
def test_a_boards_certificate_is_renewed_by_the_authority_of_its_release(tmp_path: Path) -> None:
    assert certs(tmp_path, "issue", "device", "board-1", "--release", "lab") == 0
    place = tmp_path / "devices" / "board-1"
    before = TlsFiles.load(place)
    assert certs(tmp_path, "renew", "--release", "lab") == 0
    after = TlsFiles.load(place)
    assert (after.me, after.ca) == (before.me, before.ca)
    assert after.key != before.key


def test_the_authority_of_a_release_is_changed_for_its_pods_and_its_boards_together(
    tmp_path: Path, release: ReleaseCertificates, capsys: pytest.CaptureFixture[str]
) -> None:
    step = "renew", "--release", "lab"
    assert certs(tmp_path, "issue", "device", "board-1", "--release", "lab") == 0
    board = tmp_path / "devices" / "board-1"
    assert certs(tmp_path, *step, "--authority", "new") == 0
    assert TlsFiles.load(board).ca == release.existing_authority().trusted()
    assert certs(tmp_path, *step, "--pods") == 0
    assert certs(tmp_path, *step, "--authority", "drop") == 2  # the board's is by the one before
    assert f"{board} still has a certificate from the former authority" in capsys.readouterr().err
    assert release.existing_authority().before
    assert certs(tmp_path, *step) == 0
    assert certs(tmp_path, *step, "--authority", "drop") == 0
    assert not release.existing_authority().before
    assert TlsFiles.load(board).ca.count(b"BEGIN") == 1
    told = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == [str(board), "lab-tls-gps", "lab-tls-operator", str(board)]


def test_of_a_release_names_are_revoked_in_its_secret(
    tmp_path: Path, release: ReleaseCertificates, capsys: pytest.CaptureFixture[str]
) -> None:
    for device in ("device-003", "board-1"):
        assert certs(tmp_path, "revoke", "device", device, "--release", "lab") == 0
    assert capsys.readouterr().out.split() == ["lab-tls-revoked"] * 2
    said = (release._secrets.read("lab-tls-revoked") or {})["revoked.txt"]
    assert said == b"device/board-1\ndevice/device-003\n"


@pytest.mark.parametrize("own", [["gps"], []])
def test_where_one_certificate_is_of_another_run_all_stay(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, own: list[str]
) -> None:
    other = tmp_path_factory.mktemp("other")
    assert certs(other, "init", "hospital") == 0
    assert certs(other, "issue", "operator") == 0
    for role in own:
        assert certs(folder, "issue", role) == 0
    (other / "operator").rename(folder / "operator")
    before = [TlsFiles.load(folder / role) for role in [*own, "operator"]]
    assert certs(folder, "renew") == 2
    assert [TlsFiles.load(folder / role) for role in [*own, "operator"]] == before


def test_an_authority_is_changed_in_three_steps_and_each_is_refused_out_of_turn(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(folder, "issue", "gps") == 0
    place = folder / "gps"
    first = TlsFiles.load(place)
    assert certs(folder, "renew", "--authority", "drop") == 2
    assert certs(folder, "renew", "--authority", "new") == 0
    both = TlsFiles.load(place)
    assert (both.cert, both.ca.count(b"BEGIN"), both.ca.endswith(first.ca)) == (first.cert, 2, True)
    assert certs(folder, "renew", "--authority", "new") == 2
    assert certs(folder, "renew", "--authority", "drop") == 2  # its certificate is by the one before
    assert TlsFiles.load(place) == both
    assert certs(folder, "renew") == 0
    assert certs(folder, "renew", "--authority", "drop") == 0
    last = TlsFiles.load(place)
    assert (last.me, last.ca.count(b"BEGIN")) == (first.me, 1)
    assert last.ca != first.ca
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == ["error"] * 3
    assert "make a second one with" in said[0]
    assert "has been renewed already" in said[1]
    assert "still has a certificate from the former authority" in said[2]


@pytest.mark.parametrize("words", [["--pods"], ["--pods", "--authority", "new", "--release", "lab"]])
def test_what_does_not_go_together_is_told_in_a_line(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(folder, "renew", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


def test_the_list_is_beside_all_certificates_of_a_folder_and_those_issued_later(folder: Path) -> None:
    for words in (["issue", "gps"], ["issue", "device", "pi-1"], ["revoke", "device", "pi-1"]):
        assert certs(folder, *words) == 0
    assert certs(folder, "issue", "lps", "lps-0") == 0
    assert certs(folder, "revoke", "lps", "lps-0") == 0
    lists = [path.read_text() for path in folder.rglob("revoked.txt")]
    assert lists == ["device/pi-1\nlps/lps-0\n"] * 4
    assert TlsFiles.load(folder / "gps").revoked().names == {Name("device", "pi-1"), Name("lps", "lps-0")}


def test_one_command_at_a_time_reads_and_writes_the_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, places = list[int](), work._places
    monkeypatch.setattr("fedstrata.store.whole_files.CLAIM_TRIES", 1)
    monkeypatch.setattr("fedstrata.store.whole_files.CLAIM_PAUSE_S", 0)

    def meanwhile(found: Path) -> list[Path]:
        monkeypatch.setattr("emulator.certs._places", places)
        tried.extend(certs(folder, *words) for words in (["revoke", "device", "pi-2"], ["issue", "gps"]))
        return places(found)

    monkeypatch.setattr("emulator.certs._places", meanwhile)
    assert certs(folder, "revoke", "device", "pi-1") == 0
    assert tried == [EXIT_RUN_FAILED] * 2
    assert certs(folder, "revoke", "device", "pi-2") == 0
    assert Revoked.load(folder / "authority" / "revoked.txt").names == {Name("device", "pi-1"), Name("device", "pi-2")}


def test_one_renewal_at_a_time_writes_a_key_and_its_certificate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert certs(folder, "issue", "gps") == 0
    tried, write = list[int](), work.write_private
    monkeypatch.setattr("fedstrata.store.whole_files.CLAIM_TRIES", 1)
    monkeypatch.setattr("fedstrata.store.whole_files.CLAIM_PAUSE_S", 0)

    def meanwhile(place: Path, files: dict[str, bytes]) -> None:
        monkeypatch.setattr("emulator.certs.write_private", write)
        tried.append(certs(folder, "renew"))
        write(place, files)

    monkeypatch.setattr("emulator.certs.write_private", meanwhile)
    assert certs(folder, "renew") == 0
    assert tried == [EXIT_RUN_FAILED]


def test_a_command_that_waits_for_another_issues_by_the_new_authority(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert certs(folder, "issue", "gps") == 0

    def after_another(place: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr("emulator.certs.claimed", claimed)
        assert certs(folder, "renew", "--authority", "new") == 0
        return claimed(place)

    monkeypatch.setattr("emulator.certs.claimed", after_another)
    assert certs(folder, "issue", "lps", "lps-0") == 0
    assert TlsFiles.load(folder / "lps-0").ca == (folder / "authority" / "ca.pem").read_bytes()
    assert TlsFiles.load(folder / "lps-0").ca == TlsFiles.load(folder / "gps").ca


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["issue", "lps", "lps-0"], "issue_into"),
        (["renew"], "_holders"),
        (["renew", "--authority", "new"], "_holders"),
        (["renew", "--authority", "drop"], "_holders"),
    ],
)
def test_what_a_command_has_checked_stays_until_it_has_written(
    folder: Path, words: list[str], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert certs(folder, "issue", "gps") == 0
    if "drop" in words:
        assert certs(folder, "renew", "--authority", "new") == 0
        assert certs(folder, "renew") == 0
    tried, taken = list[int](), getattr(work, step)
    monkeypatch.setattr("fedstrata.store.whole_files.CLAIM_TRIES", 1)
    monkeypatch.setattr("fedstrata.store.whole_files.CLAIM_PAUSE_S", 0)

    def with_another(*args: object, **options: object) -> object:
        monkeypatch.setattr(work, step, taken)
        tried.append(certs(folder, "issue", "lps", "lps-0"))
        return taken(*args, **options)

    monkeypatch.setattr(work, step, with_another)
    assert certs(folder, *words) == 0
    assert tried == [EXIT_RUN_FAILED]


def test_a_list_that_no_process_would_take_is_not_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs(folder, "issue", "gps") == 0
    assert certs(folder, "revoke", "device", *(f"{number}-{'x' * 50}" for number in range(5000))) == 2
    assert "processes accept 262144; remove names from revoked.txt" in capsys.readouterr().err
    assert not list(folder.rglob("revoked.txt"))


@pytest.mark.parametrize("words", [[], ["device"], ["boss"]])
def test_nobody_is_revoked_by_what_says_not_whom(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(folder, "revoke", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert not list(folder.rglob("revoked.txt"))


def test_a_certificate_is_as_long_valid_from_the_command_as_from_the_authority() -> None:
    assert commands.CERTIFICATE_DAYS == CERTIFICATE_DAYS
