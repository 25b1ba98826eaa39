"""Certificates for processes that are started by hand: an authority in a folder, and what it issues."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from emulator.place import Release
from fedstrata.errors import CertificateError
from fedstrata.quoting import quoted
from fedstrata.trust.authority import Authority, Issued
from fedstrata.trust.files import CA, CERT
from fedstrata.trust.names import NAMED, ROLES, Name, device_names

AUTHORITY, DEVICES = "authority", "devices"


def init(folder: Path, run: str) -> Path:
    """Make an authority; gives its folder. Raises CertificateError where there is one already."""
    place = folder / AUTHORITY
    if (place / CA).exists():  # written last
        raise CertificateError(f"{place} has an authority already; go on with certs issue, or give another --folder")
    Authority.new(run).save(place)
    return place


def issue(folder: Path, role: str, ids: Sequence[str], days: int, release: Release | None = None) -> Path:
    """Issue a certificate of who is in a role; gives its folder, to be copied to where the process will run.

    By the authority of the folder, or by that of a release on Kubernetes.

    Raises:
        CertificateError: there is no authority, nobody can have such a name, or it has a certificate already.
    """
    names = names_of(role, ids)
    authority = Authority.load(folder / AUTHORITY) if release is None else _authority_of(release)
    place = folder / (names[0].id or role)
    if role == "device":
        place = folder / DEVICES / (ids[0] if len(ids) == 1 else f"{ids[0]}_{ids[-1]}")
    if (place / CERT).exists():
        raise CertificateError(f"{place} has a certificate already; fedstrata certs renew makes a new one")
    authority.issue(names, place, days=days)
    return place


def _authority_of(release: Release) -> Authority:
    from emulator.kubernetes import InstalledRelease
    from emulator.release_certificates import ReleaseCertificates

    return ReleaseCertificates(release, InstalledRelease(release).secrets).existing_authority()


def names_of(role: str, ids: Sequence[str]) -> list[Name]:
    """The names for a certificate: of devices as many as there are, else one. Raises CertificateError."""
    if role not in ROLES:
        raise CertificateError(f"{quoted(role)} is no role; they are {', '.join(ROLES)}")
    if role in NAMED and not ids:
        raise CertificateError(f"say of which {role}: fedstrata certs issue {role} NAME")
    if role == "device":
        return device_names(ids)
    if len(ids) > 1:
        raise CertificateError(f"a certificate of {role} has one name, not {len(ids)}")
    return [Name(role, *ids)]


def renew(folder: Path, days: int, release: Release | None = None) -> Iterator[Issued]:
    """Issue all certificates of a folder anew, each with a new key; gives them as they are made.

    By the authority of the folder, or by that of a release on Kubernetes, which has issued them before.

    Raises:
        CertificateError: there is no authority, or no certificate; or one is of another run, and then all stay.
    """
    authority = Authority.load(folder / AUTHORITY) if release is None else _authority_of(release)
    for old in (before := show(folder)):
        if old.peer.domain != authority.domain:
            raise CertificateError(
                f"{old.folder} is of run {old.peer.domain!r}, and the authority of {authority.domain!r}"
            )
    for old in before:
        authority.issue(old.peer.names, old.folder, days=days)
        yield Issued.read(old.folder)


def show(folder: Path) -> list[Issued]:
    """The certificates of a folder and those below it. Raises CertificateError where there is none."""
    found = [Issued.read(place) for place in _places(folder)]
    if not found:
        raise CertificateError(f"no certificate in {folder}; fedstrata certs issue makes one")
    return found


def _places(folder: Path) -> list[Path]:
    return sorted(Path(place) for place, _, files in os.walk(folder) if CERT in files)
