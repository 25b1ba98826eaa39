"""Secrets of a release's certificates: what is made, what is kept, and what goes, on a Kubernetes that is a mapping."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from emulator.place import Release
from emulator.release_certificates import AUTHORITY, ReleaseCertificates, holders_of, tls_of_secret
from fedstrata.errors import CertificateError
from fedstrata.experiment import parse_experiment
from fedstrata.trust.authority import Authority
from fedstrata.trust.files import CA
from fedstrata.trust.names import Name

LAB = Release(name="lab", namespace="garden")
GPS = {"gps": [Name("gps")], "operator": [Name("operator")]}


class Kept(dict[str, dict[str, bytes]]):
    """The Secrets of a namespace."""

    def read_secret(self, name: str) -> dict[str, bytes] | None:
        return self.get(name)

    def write_secret(self, name: str, data: Mapping[str, bytes]) -> None:
        self[name] = dict(data)

    def delete_secret(self, name: str) -> None:
        self.pop(name, None)

    def certificate_secrets(self) -> list[str]:
        return list(self)


def test_a_release_gets_an_authority_and_each_of_its_pods_a_certificate_by_it() -> None:
    kept = Kept()
    assert ReleaseCertificates(LAB, kept).ensure(GPS) == ["gps", "operator"]
    assert set(kept) == {"lab-tls-authority", "lab-tls-gps", "lab-tls-operator"}
    with tls_of_secret(kept["lab-tls-gps"], "lab-tls-gps") as tls:
        assert (tls.me.domain, str(tls.me)) == ("lab.garden", "gps")
        assert tls.ca == kept["lab-tls-authority"]["tls.crt"]
    assert kept["lab-tls-gps"].keys() == {"ca.crt", "tls.crt", "tls.key"}


def test_what_fits_is_kept_and_what_does_not_is_made_anew() -> None:
    kept = Kept()
    certificates = ReleaseCertificates(LAB, kept)
    certificates.ensure(GPS)
    before = dict(kept)
    assert certificates.ensure(GPS) == []
    assert kept == before
    renamed = {**GPS, "operator": [Name("device", "a")]}
    assert certificates.ensure(renamed) == ["operator"]
    kept["lab-tls-gps"]["tls.key"] = b"-----BEGIN nothing"
    assert certificates.ensure(renamed) == ["gps"]
    del kept["lab-tls-operator"]
    assert certificates.ensure(renamed) == ["operator"]
    assert kept["lab-tls-authority"] == before["lab-tls-authority"]


def test_a_certificate_near_its_end_or_of_an_authority_before_is_made_anew() -> None:
    kept = Kept()
    certificates = ReleaseCertificates(LAB, kept)
    certificates.ensure(GPS)
    soon = certificates.existing_authority().issued(GPS["gps"], days=100)
    kept["lab-tls-gps"] = {"ca.crt": soon[CA], "tls.crt": soon["cert.pem"], "tls.key": soon["key.pem"]}
    assert certificates.ensure(GPS) == ["gps"]
    del kept["lab-tls-authority"]
    assert certificates.ensure(GPS) == ["gps", "operator"]


def test_the_secret_of_who_is_no_longer_there_goes() -> None:
    kept = Kept()
    certificates = ReleaseCertificates(LAB, kept)
    certificates.ensure({**GPS, "device-0": [Name("device", "device-000", "device-004")]})
    assert "lab-tls-device-0" in kept
    certificates.ensure(GPS)
    assert set(kept) == {"lab-tls-authority", "lab-tls-gps", "lab-tls-operator"}


def test_where_nobody_has_made_an_authority_a_line_says_who_would() -> None:
    with pytest.raises(CertificateError, match=f"namespace garden has no Secret lab-tls-{AUTHORITY}: fedstrata up"):
        ReleaseCertificates(LAB, Kept()).existing_authority()


def test_a_secret_of_another_make_is_refused_by_name() -> None:
    with pytest.raises(CertificateError, match=r"Secret x has no ca\.crt and no tls\.key; delete it"):  # noqa: SIM117
        with tls_of_secret({"tls.crt": b""}, "x"):
            pass


def test_an_authority_from_a_secret_issues_as_one_from_a_folder(tmp_path: Path) -> None:
    kept = Kept()
    certificates = ReleaseCertificates(LAB, kept)
    certificates.ensure(GPS)
    certificates.existing_authority().save(tmp_path)
    assert Authority.load(tmp_path).files() == certificates.existing_authority().files()


def test_devices_of_a_pod_are_a_row_and_boards_have_a_name_each() -> None:
    five = parse_experiment("name: a\npartition: {kind: iid, devices: 5, examples_per_device: 9}\n")
    device = {"kind": "StatefulSet", "devicesPerPod": 2, "external": 0}
    found = holders_of({"tls": {"lps": None}, "device": device}, five, 0)
    assert [str(names[0]) for who, names in found.items() if who.startswith("device")] == [
        "device/device-000_device-001", "device/device-002_device-003", "device/device-004",
    ]  # fmt: skip
    assert [who for who in found if who.startswith("lps")] == [f"lps-{number}" for number in range(5)]
    elsewhere = holders_of({"tls": {"lps": 1}, "device": {**device, "external": 3}}, five, 4)
    assert [who for who in elsewhere if who not in {"gps", "operator"}] == ["lps-0", "device-0"]
