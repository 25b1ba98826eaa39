import shutil
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from fedstrata.errors import CertificateError
from fedstrata.trust import authority as authority_module
from fedstrata.trust.authority import Authority
from fedstrata.trust.credentials import load_tls
from fedstrata.trust.files import TlsFiles
from fedstrata.trust.names import Name, device_names


@pytest.fixture
def authority() -> Authority:
    return Authority.new("run-1")


@pytest.fixture
def issued(authority: Authority, tmp_path: Path) -> Path:
    authority.issue([Name("lps", "lps-0")], tmp_path / "lps-0")
    return tmp_path / "lps-0"


def test_a_certificate_says_who_its_holder_is(issued: Path) -> None:
    tls = TlsFiles.load(issued)
    assert (tls.me.domain, str(tls.me)) == ("run-1", "lps/lps-0")


def test_only_its_owner_may_read_what_is_issued(issued: Path) -> None:
    assert stat.S_IMODE(issued.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in issued.iterdir()} == {0o600}


def test_an_authority_goes_on_from_its_folder(authority: Authority, tmp_path: Path) -> None:
    authority.save(tmp_path / "authority")
    again = Authority.load(tmp_path / "authority")
    again.issue([Name("gps")], tmp_path / "gps")
    (tmp_path / "gps" / "ca.pem").write_bytes((tmp_path / "authority" / "ca.pem").read_bytes())
    assert again.domain == "run-1"
    assert str(TlsFiles.load(tmp_path / "gps").me) == "gps"


def test_ten_thousand_devices_in_a_row_have_a_small_certificate(authority: Authority, tmp_path: Path) -> None:
    authority.issue(device_names(f"device-{index:04d}" for index in range(10_000)), tmp_path)
    tls = TlsFiles.load(tmp_path)
    assert tls.me.is_("device", "device-9999")
    assert len(tls.cert) < 1000


def test_more_names_than_grpc_takes_of_a_peer_are_refused(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="1 to 64 names, not 65"):
        authority.issue([Name("device", f"pi-{index}-x") for index in range(65)], tmp_path)


@pytest.mark.parametrize("missing", ["ca.pem", "cert.pem", "key.pem"])
def test_a_missing_file_is_named(issued: Path, missing: str) -> None:
    (issued / missing).unlink()
    with pytest.raises(CertificateError, match=rf"{missing}: No such file.*--tls names a folder"):
        TlsFiles.load(issued)


@pytest.mark.parametrize("damaged", ["ca.pem", "cert.pem", "key.pem"])
@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_file_is_named(issued: Path, damaged: str, content: bytes) -> None:
    (issued / damaged).write_bytes(content)
    with pytest.raises(CertificateError, match=damaged):
        TlsFiles.load(issued)


def test_a_key_of_another_certificate_is_told(authority: Authority, issued: Path, tmp_path: Path) -> None:
    authority.issue([Name("gps")], tmp_path / "gps")
    shutil.copy(tmp_path / "gps" / "key.pem", issued)
    with pytest.raises(CertificateError, match="of different certificates"):
        TlsFiles.load(issued)


def test_a_certificate_of_another_authority_than_beside_it_is_told(issued: Path, tmp_path: Path) -> None:
    Authority.new("run-1").save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "ca.pem", issued)
    with pytest.raises(CertificateError, match=r"cert\.pem is not to be used: "):
        TlsFiles.load(issued)


@pytest.mark.parametrize(("days", "what"), [((-9, -1), "has expired"), ((9, 10), "not yet valid")])
def test_a_certificate_that_is_not_valid_now_is_told(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: tuple[int, int], what: str
) -> None:
    monkeypatch.setattr(authority_module, "CLOCKS_DIFFER", timedelta(days=-days[0]))
    authority.issue([Name("gps")], tmp_path, days=days[1])
    with pytest.raises(CertificateError, match=what):
        TlsFiles.load(tmp_path)


def test_a_process_does_not_start_with_the_certificate_of_another(issued: Path) -> None:
    assert load_tls(issued, Name("lps", "lps-0")) is not None
    with pytest.raises(CertificateError, match="names lps/lps-0, and this process is lps/lps-1"):
        load_tls(issued, Name("lps", "lps-1"))


def test_a_process_that_hosts_devices_needs_a_certificate_of_all(authority: Authority, tmp_path: Path) -> None:
    authority.issue(device_names(["device-000", "device-001"]), tmp_path)
    assert load_tls(tmp_path, Name("device", "device-000"), Name("device", "device-001")) is not None
    with pytest.raises(CertificateError, match="this process is device/device-002"):
        load_tls(tmp_path, Name("device", "device-001"), Name("device", "device-002"))


def test_a_folder_without_an_authority_is_told(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="make one with fedstrata certs init"):
        Authority.load(tmp_path)


def test_an_authority_of_somebody_elses_making_is_told(authority: Authority, issued: Path, tmp_path: Path) -> None:
    authority.save(tmp_path / "authority")
    shutil.copy(issued / "cert.pem", tmp_path / "authority" / "ca.pem")
    with pytest.raises(CertificateError, match="is not the key of"):
        Authority.load(tmp_path / "authority")
