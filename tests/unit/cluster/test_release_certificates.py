"""Secrets of a release's certificates: what is made, what is kept, and what goes, on a Kubernetes that is a mapping."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509

from emulator import certs
from emulator.cluster.release import Release
from emulator.cluster.release_certificates import AUTHORITY, ReleaseCertificates, holders_of, tls_of_secret
from fedstrata.errors import CertificateError
from fedstrata.experiment_file import parse_experiment
from fedstrata.trust.authority import Authority
from fedstrata.trust.certificates import dns_names
from fedstrata.trust.names import Name
from fedstrata.trust.tls_files import CA, CA_KEY
from tests.support.kept_secrets import Kept

LAB = Release(name="lab", namespace="garden")
GPS = {"gps": [Name("gps")], "operator": [Name("operator")]}
PODS = ["lab-tls-gps", "lab-tls-operator"]


@pytest.fixture
def kept() -> Kept:
    """The Secrets of a release whose GPS and operator have certificates."""
    kept = Kept()
    ReleaseCertificates(LAB, kept).make(GPS)
    return kept


@pytest.fixture
def certificates(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> ReleaseCertificates:
    """The certificates in these Secrets, which the commands change, too."""
    certificates = ReleaseCertificates(LAB, kept)
    monkeypatch.setattr("emulator.certs._certificates_of", lambda _: certificates)
    return certificates


def renewed_pods(folder: Path) -> list[str]:
    return [one.place for one in certs.renew(folder, 365, LAB, of_pods=True)]


def test_a_release_gets_an_authority_and_each_of_its_pods_a_certificate_by_it() -> None:
    kept = Kept()
    assert ReleaseCertificates(LAB, kept).make(GPS) == ["gps", "operator"]
    assert set(kept) == {"lab-tls-authority", "lab-tls-gps", "lab-tls-operator"}
    with tls_of_secret(kept["lab-tls-gps"], "lab-tls-gps") as tls:
        assert (tls.me.domain, str(tls.me)) == ("lab.garden", "gps")
        assert tls.ca == kept["lab-tls-authority"]["tls.crt"]
    assert kept["lab-tls-gps"].keys() == {"ca.crt", "tls.crt", "tls.key"}


def test_what_fits_is_kept_and_what_does_not_is_made_anew(kept: Kept, certificates: ReleaseCertificates) -> None:
    before = dict(kept)
    assert certificates.make(GPS) == []
    assert kept == before
    renamed = {**GPS, "operator": [Name("device", "a")]}
    assert certificates.make(renamed) == ["operator"]
    kept["lab-tls-gps"]["tls.key"] = b"-----BEGIN nothing"
    assert certificates.make(renamed) == ["gps"]
    del kept["lab-tls-operator"]
    assert certificates.make(renamed) == ["operator"]
    assert kept["lab-tls-authority"] == before["lab-tls-authority"]


def test_servers_alone_get_new_certificates_for_another_domain(kept: Kept, certificates: ReleaseCertificates) -> None:
    assert certificates.make(GPS, "fl.example.org") == ["gps"]
    assert certificates.make(GPS, "fl.example.org") == []
    assert certificates.make(GPS) == []  # its name without a domain is in that certificate, too
    assert certificates.make(GPS, "b.example.org") == ["gps"]
    with tls_of_secret(kept["lab-tls-gps"], "lab-tls-gps") as tls:
        assert dns_names(x509.load_pem_x509_certificate(tls.cert)) == ["gps", "gps.b.example.org"]


def test_a_certificate_near_its_end_or_of_an_authority_before_is_made_anew(
    kept: Kept, certificates: ReleaseCertificates
) -> None:
    soon = certificates.existing_authority().issued(GPS["gps"], days=100)
    kept["lab-tls-gps"] = {"ca.crt": soon[CA], "tls.crt": soon["cert.pem"], "tls.key": soon["key.pem"]}
    assert certificates.make(GPS) == ["gps"]
    del kept["lab-tls-authority"]
    assert certificates.make(GPS) == ["gps", "operator"]


def test_the_secret_of_who_is_no_longer_there_goes() -> None:
    kept = Kept()
    certificates = ReleaseCertificates(LAB, kept)
    certificates.make({**GPS, "device-0": [Name("device", "device-000", "device-004")]})
    certificates.make(GPS)
    assert "lab-tls-device-0" in kept  # until the release is one without it
    certificates.prune(GPS)
    assert set(kept) == {"lab-tls-authority", "lab-tls-gps", "lab-tls-operator"}


def test_where_nobody_has_made_an_authority_a_line_says_who_would() -> None:
    with pytest.raises(CertificateError, match=f"namespace garden has no Secret lab-tls-{AUTHORITY}; if tls.mode is"):
        ReleaseCertificates(LAB, Kept()).existing_authority()


def test_a_secret_of_another_make_is_refused_by_name() -> None:
    with pytest.raises(CertificateError, match=r"Secret x has no ca\.crt and no tls\.key; delete it"):  # noqa: SIM117
        with tls_of_secret({"tls.crt": b""}, "x"):
            pass


def test_an_authority_from_a_secret_issues_as_one_from_a_folder(
    certificates: ReleaseCertificates, tmp_path: Path
) -> None:
    certificates.existing_authority().save(tmp_path)
    assert Authority.load(tmp_path).files() == certificates.existing_authority().files()


def test_devices_of_a_pod_are_a_row_and_boards_have_a_name_each() -> None:
    five = parse_experiment("name: a\npartition: {kind: iid, devices: 5, examples_per_device: 9}\n")
    device = {"kind": "StatefulSet", "devicesPerPod": 2, "external": 0}
    found = holders_of({"tls": {"lps": None}, "lps": {"replicas": None}, "device": device}, five)
    assert [str(names[0]) for who, names in found.items() if who.startswith("device")] == [
        "device/device-000_device-001", "device/device-002_device-003", "device/device-004",
    ]  # fmt: skip
    assert [who for who in found if who.startswith("lps")] == [f"lps-{number}" for number in range(5)]
    values = {"tls": {"lps": 1}, "lps": {"replicas": 4}, "device": {**device, "external": 3}}
    elsewhere = holders_of(values, five)
    assert [who for who in elsewhere if who not in {"gps", "operator"}] == ["lps-0", "device-0"]


def test_a_secret_that_somebody_else_has_made_is_named_and_then_nothing_is_written() -> None:
    kept = Kept({"lab-tls-operator": {"tls.key": b"the user's"}})
    kept.others.add("lab-tls-operator")
    with pytest.raises(CertificateError, match="Secret lab-tls-operator"):
        ReleaseCertificates(LAB, kept).make(GPS)
    assert kept == {"lab-tls-operator": {"tls.key": b"the user's"}}


def test_of_two_that_make_an_authority_at_once_both_sign_with_the_first() -> None:
    class Contested(Kept):
        def create(self, name: str, data: Mapping[str, bytes]) -> bool:
            files = first.files()
            self.setdefault(name, {"tls.crt": files["ca.pem"], "tls.key": files["ca-key.pem"]})
            return super().create(name, data)

    first, kept = Authority.new("lab.garden"), Contested()
    certificates = ReleaseCertificates(LAB, kept)
    certificates.make(GPS)
    assert {kept[f"lab-tls-{who}"]["ca.crt"] for who in GPS} == {first.files()["ca.pem"]}
    certificates.take_back()
    assert list(kept) == ["lab-tls-authority"]  # which is the other's


def test_of_what_is_half_made_all_is_taken_back() -> None:
    class Halting(Kept):
        def write(self, name: str, data: Mapping[str, bytes]) -> bool:
            if name == "lab-tls-operator":
                raise KeyboardInterrupt
            return super().write(name, data)

    kept = Halting()
    certificates = ReleaseCertificates(LAB, kept)
    with pytest.raises(KeyboardInterrupt):
        certificates.make(GPS)
    assert set(kept) == {"lab-tls-authority", "lab-tls-gps"}
    certificates.take_back()
    assert not kept


def test_what_was_there_before_is_not_taken_back() -> None:
    kept = Kept()
    ReleaseCertificates(LAB, kept).make({"gps": GPS["gps"]})
    before = set(kept)
    certificates = ReleaseCertificates(LAB, kept)
    certificates.make(GPS)
    certificates.take_back()
    assert set(kept) == before


def test_what_is_damaged_is_told_by_the_name_of_its_secret() -> None:
    kept = Kept()
    ReleaseCertificates(LAB, kept).make(GPS)
    kept["lab-tls-gps"]["tls.key"] = kept["lab-tls-authority"]["tls.crt"] = b"-----BEGIN nothing"
    with pytest.raises(CertificateError, match="Secret lab-tls-authority in namespace garden") as of_authority:
        ReleaseCertificates(LAB, kept).existing_authority()
    with (
        pytest.raises(CertificateError, match=r"Secret lab-tls-gps: key\.pem is not the key of cert\.pem") as of_gps,
        tls_of_secret(kept["lab-tls-gps"], "lab-tls-gps"),
    ):
        pass
    assert "/" not in f"{of_authority.value} {of_gps.value}"


def test_the_fingerprint_is_of_the_authority(kept: Kept, certificates: ReleaseCertificates) -> None:
    first = certificates.fingerprint()
    certificates.make({**GPS, "lps-0": [Name("lps", "lps-0")]})
    assert certificates.fingerprint() == first
    del kept["lab-tls-authority"]
    certificates.make(GPS)
    assert certificates.fingerprint() != first


def test_all_certificates_of_pods_are_renewed_by_their_authority_and_no_secret_of_others(
    kept: Kept, certificates: ReleaseCertificates, tmp_path: Path
) -> None:
    kept["lab-tls-mine"] = {"tls.crt": b"mine"}
    kept.others.add("lab-tls-mine")
    before = dict(kept)
    assert renewed_pods(tmp_path) == PODS
    changed = {name for name in kept if kept[name] != before[name]}
    assert changed == {"lab-tls-gps", "lab-tls-operator"}
    with tls_of_secret(kept["lab-tls-gps"], "lab-tls-gps") as tls:
        assert (str(tls.me), tls.ca) == ("gps", kept["lab-tls-authority"]["tls.crt"])


def test_where_a_pods_certificate_cannot_be_read_none_is_renewed(
    kept: Kept, certificates: ReleaseCertificates, tmp_path: Path
) -> None:
    kept["lab-tls-operator"]["tls.crt"] = b"-----BEGIN nothing"
    before = dict(kept)
    with pytest.raises(CertificateError, match="Secret lab-tls-operator has no certificate of this release"):
        renewed_pods(tmp_path)
    assert kept == before


# --- another authority, in steps ----------------------------------------------------------------------------


def trusted(kept: Kept, name: str) -> int:
    """How many authorities a pod trusts. Raises CertificateError where its files do not fit each other."""
    with tls_of_secret(kept[name], name) as tls:
        return tls.ca.count(b"BEGIN")


def test_an_authority_is_changed_in_three_steps_in_each_of_which_all_know_each_other(
    kept: Kept, certificates: ReleaseCertificates, tmp_path: Path
) -> None:
    first, fingerprint = certificates.existing_authority(), certificates.fingerprint()

    assert [one.place for one in certs.renew_authority(tmp_path, LAB)] == PODS
    assert [trusted(kept, name) for name in PODS] == [2, 2]
    assert certificates.existing_authority().before == (first.certificate,)
    assert certificates.make(GPS) == []  # what fits goes on
    with pytest.raises(
        CertificateError,
        match=r"lab-tls-gps still has a certificate from .* authority; run .* --release lab --namespace garden --pods",
    ):
        [*certs.drop_authority(tmp_path, LAB)]

    assert renewed_pods(tmp_path) == PODS
    assert [one.place for one in certs.drop_authority(tmp_path, LAB)] == PODS
    assert [trusted(kept, name) for name in PODS] == [1, 1]
    assert certificates.make(GPS) == []
    assert not certificates.existing_authority().has_issued(first.certificate)
    assert certificates.fingerprint() == fingerprint  # so that no `up` replaces pods that have taken it
    with pytest.raises(
        CertificateError, match=r"release lab has only one .* renew --release lab --namespace garden --authority new"
    ):
        [*certs.drop_authority(tmp_path, LAB)]


def test_an_authority_that_is_made_anew_replaces_pods_though_one_before_was_changed_in_steps(
    kept: Kept, certificates: ReleaseCertificates, tmp_path: Path
) -> None:
    [*certs.renew_authority(tmp_path, LAB)]
    before = certificates.fingerprint()
    del kept["lab-tls-authority"]
    certificates.make(GPS)
    assert certificates.fingerprint() != before


# --- who counts no more -------------------------------------------------------------------------------------


def test_who_is_revoked_is_in_a_secret_that_is_no_pods_and_stays_at_the_next_up(
    kept: Kept, certificates: ReleaseCertificates, tmp_path: Path
) -> None:
    assert certificates.revoke([Name("device", "pi-kitchen")]) == "lab-tls-revoked"
    certificates.revoke([Name("operator")])
    assert kept["lab-tls-revoked"] == {"revoked.txt": b"device/pi-kitchen\noperator\n"}
    certificates.prune(GPS)
    assert "lab-tls-revoked" in kept
    assert renewed_pods(tmp_path) == PODS
    assert [one.place for one in certs.renew_authority(tmp_path, LAB)] == PODS


@pytest.mark.parametrize("said", [b"nobody in particular\n", b"\xff\n", b"device/pi"])
def test_a_list_that_says_nothing_is_left_as_it_is(said: bytes) -> None:
    kept = Kept({"lab-tls-revoked": {"revoked.txt": said}})
    with pytest.raises(CertificateError, match="Secret lab-tls-revoked: "):
        ReleaseCertificates(LAB, kept).revoke([Name("operator")])
    assert kept == {"lab-tls-revoked": {"revoked.txt": said}}


def test_a_list_that_somebody_else_keeps_is_not_written() -> None:
    kept = Kept({"lab-tls-revoked": {"revoked.txt": b"operator\n"}})
    kept.others.add("lab-tls-revoked")
    with pytest.raises(CertificateError, match="Secret lab-tls-revoked was not made here"):
        ReleaseCertificates(LAB, kept).revoke([Name("gps")])


# --- the end of an authority ----------------------------------------------------------------------------------------


def with_authority_of(days: int) -> tuple[Kept, ReleaseCertificates]:
    """A release whose authority is valid for so many days from now."""
    kept = Kept()
    certificates = ReleaseCertificates(LAB, kept)
    certificates.make(GPS)
    files = Authority.new("lab.garden", days).files()
    kept["lab-tls-authority"] = {"tls.crt": files[CA], "tls.key": files[CA_KEY]}
    return kept, certificates


def days_of(certificate: bytes) -> int:
    found = x509.load_pem_x509_certificate(certificate)
    return (found.not_valid_after_utc - found.not_valid_before_utc).days


def test_a_releases_authority_is_valid_for_two_years_and_so_is_its_successor(kept: Kept) -> None:
    assert days_of(kept["lab-tls-authority"]["tls.crt"]) == 730
    authority = ReleaseCertificates(LAB, kept).existing_authority()
    assert days_of(authority.succeeded().files()[CA]) == 730


@pytest.mark.parametrize(
    ("days", "issued", "says"), [(500, 365, ""), (100, 99, "ends in 99 days; change it"), (1, 0, "ends in 0")]
)
def test_a_certificate_ends_no_later_than_its_authority_and_is_not_made_again_and_again(
    days: int, issued: int, says: str
) -> None:
    kept, certificates = with_authority_of(days)
    assert certificates.make(GPS) == ["gps", "operator"]
    assert issued <= days_of(kept["lab-tls-gps"]["tls.crt"]) <= issued + 1
    assert says in certificates.advice()
    assert bool(certificates.advice()) is bool(says)
    assert certificates.make(GPS) == []


def test_an_authority_that_has_ended_is_replaced() -> None:
    kept, certificates = with_authority_of(0)
    assert certificates.make(GPS) == ["gps", "operator"]
    assert days_of(kept["lab-tls-authority"]["tls.crt"]) == 730
    assert certificates.advice() == ""


def test_a_process_shows_the_end_of_its_authority_if_this_is_earlier() -> None:
    kept, certificates = with_authority_of(100)
    certificates.make(GPS)
    end = certificates.existing_authority().certificate.not_valid_after_utc.timestamp()
    with tls_of_secret(kept["lab-tls-gps"], "lab-tls-gps") as tls:
        assert tls.end_s() == end
