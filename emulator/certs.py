"""Certificates for processes that are started by hand: an authority in a folder, and the certificates that it
issues.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.cluster.release import Release
from fedstrata.errors import CertificateError
from fedstrata.process.quoting import quoted
from fedstrata.trust.authority import Authority, Issued
from fedstrata.trust.files import CA, CERT, REVOKED, Revoked, write_private
from fedstrata.trust.names import NAMED, ROLES, Name, device_names

if TYPE_CHECKING:
    from emulator.cluster.certificates import ReleaseCertificates

AUTHORITY, DEVICES = "authority", "devices"


def init(folder: Path, run: str) -> Path:
    """Make an authority, and return its folder. Raises CertificateError if there is one already."""
    place = folder / AUTHORITY
    if (place / CA).exists():  # written last
        raise CertificateError(f"{place} has an authority already; go on with certs issue, or give another --folder")
    Authority.new(run).save(place)
    return place


def issue(folder: Path, role: str, ids: Sequence[str], days: int, release: Release | None = None) -> Path:
    """Issue a certificate for ids in a role. Return its folder, which the user copies to the machine of the process.

    The authority is in the folder, or belongs to a release on Kubernetes.

    Raises:
        CertificateError: there is no authority, the name is not allowed, or it has a certificate already.
    """
    names = names_of(role, ids)
    authority = Authority.load(folder / AUTHORITY) if release is None else _authority_of(release)
    place = folder / (names[0].id or role)
    if role == "device":
        place = folder / DEVICES / (ids[0] if len(ids) == 1 else f"{ids[0]}_{ids[-1]}")
    if (place / CERT).exists():
        raise CertificateError(f"{place} has a certificate already; fedstrata certs renew makes a new one")
    write_private(place, Revoked.load(folder / AUTHORITY / REVOKED).files())
    authority.issue(names, place, days=days)
    return place


def revoke(folder: Path, role: str, ids: Sequence[str]) -> Iterator[Path]:
    """Revoke all certificates of a name. Yield each folder that receives the new list.

    Raises:
        CertificateError: the name is not allowed, or there is no authority.
    """
    names = names_of(role, ids)
    Authority.load(folder / AUTHORITY)
    revoked = Revoked.load(folder / AUTHORITY / REVOKED).with_also(names)
    for place in (folder / AUTHORITY, *_places(folder)):
        write_private(place, revoked.files())
        yield place


def revoke_of_release(release: Release, role: str, ids: Sequence[str]) -> str:
    """Revoke like `revoke`, for a release on Kubernetes. Return the name of the Secret from which all its pods read the
    list.
    """
    return _certificates_of(release).revoke(names_of(role, ids))


def _authority_of(release: Release) -> Authority:
    return _certificates_of(release).existing_authority()


def renew_pods(release: Release) -> list[str]:
    """Renew the certificates of a release's pods. Return the names of their Secrets. Raises CertificateError."""
    return _certificates_of(release).renew()


def renew_authority_of_release(release: Release, folder: Path) -> Iterator[str]:
    """Renew like `renew_authority`, for a release on Kubernetes and a folder. Yield the holders."""
    certificates = _certificates_of(release)
    boards = _issued_by_release(folder, certificates.domain)
    yield from certificates.renew_authority()
    yield from _names(_told_to_trust(certificates.existing_authority(), boards))


def drop_authority_of_release(release: Release, folder: Path) -> Iterator[str]:
    """Drop like `drop_authority`, for a release on Kubernetes and a folder. Yield the holders."""
    certificates = _certificates_of(release)
    boards = _issued_by_release(folder, certificates.domain)
    _check_issued(certificates.existing_authority(), boards)
    yield from certificates.drop_authority_before()
    yield from _names(_told_to_trust(certificates.existing_authority(), boards))


def _issued_by_release(folder: Path, domain: str) -> list[Issued]:
    """Return the release's certificates in a folder and below it; none if the folder is missing."""
    return [one for one in map(Issued.read, _places(folder)) if one.peer.domain == domain]


def _names(told: Iterator[Issued]) -> Iterator[str]:
    return (str(one.folder) for one in told)


def _certificates_of(release: Release) -> "ReleaseCertificates":
    from emulator.cluster.certificates import ReleaseCertificates
    from emulator.cluster.kubernetes import InstalledRelease

    return ReleaseCertificates(release, InstalledRelease(release).secrets)


def names_of(role: str, ids: Sequence[str]) -> list[Name]:
    """Return the names for a certificate: as many as there are devices, else one. Raises CertificateError."""
    if role not in ROLES:
        raise CertificateError(f"{quoted(role)} is no role; they are {', '.join(ROLES)}")
    if role in NAMED and not ids:
        raise CertificateError(f"the {role} has no name; fedstrata certs issue {role} NAME")
    if role == "device":
        return device_names(ids)
    if len(ids) > 1:
        raise CertificateError(f"a certificate of {role} has one name, not {len(ids)}")
    return [Name(role, *ids)]


def renew(folder: Path, days: int, release: Release | None = None) -> Iterator[Issued]:
    """Renew all certificates in a folder, each with a new key. Yield each when it is made.

    The authority, in the folder or of a release on Kubernetes, has issued them before.

    Raises:
        CertificateError: there is no authority or no certificate, or one belongs to another run. All stay unchanged.
    """
    authority = Authority.load(folder / AUTHORITY) if release is None else _authority_of(release)
    for old in _issued_for(authority, folder):
        authority.issue(old.peer.names, old.folder, days=days)
        yield Issued.read(old.folder)


def renew_authority(folder: Path) -> Iterator[Issued]:
    """Make another authority, and let all holders of the folder's certificates trust both. Yield the holders.

    Certificates stay signed by the old authority until `renew` replaces them.

    Raises:
        CertificateError: there is no authority or no certificate, or an even older authority is still trusted. Nothing
            is changed.
    """
    authority = Authority.load(folder / AUTHORITY)
    holders, successor = _issued_for(authority, folder), authority.succeeded()
    successor.replace_in(folder / AUTHORITY)
    yield from _told_to_trust(successor, holders)


def drop_authority(folder: Path) -> Iterator[Issued]:
    """End the trust of all holders in the old authority. Yield each holder that receives the new list.

    Raises:
        CertificateError: there is no old authority, or it still vouches for a certificate in the folder. Nothing is
            changed.
    """
    authority = Authority.load(folder / AUTHORITY)
    if not authority.before:
        raise CertificateError(
            f"{folder / AUTHORITY} has one authority; fedstrata certs renew --authority new makes a second one"
        )
    holders = _issued_for(authority, folder)
    _check_issued(authority, holders)
    authority.alone().replace_in(folder / AUTHORITY)
    yield from _told_to_trust(authority.alone(), holders)


def _check_issued(authority: Authority, holders: Sequence[Issued]) -> None:
    """Refuse certificates that are not signed by an authority's own key. Raises CertificateError."""
    for one in holders:
        if authority.before and not authority.has_issued(one.certificate):
            raise CertificateError(
                f"{one.folder} still has a certificate by the old authority; run fedstrata certs renew first"
            )


def _told_to_trust(authority: Authority, holders: Sequence[Issued]) -> Iterator[Issued]:
    for one in holders:
        write_private(one.folder, {CA: authority.trusted()})
        yield one


def _issued_for(authority: Authority, folder: Path) -> list[Issued]:
    """Return the certificates in a folder. Raises CertificateError if there are none, or one belongs to another run."""
    found = show(folder)
    for one in found:
        if one.peer.domain != authority.domain:
            raise CertificateError(
                f"{one.folder} is of run {one.peer.domain!r}, and the authority of {authority.domain!r}"
            )
    return found


def show(folder: Path) -> list[Issued]:
    """Return the certificates in a folder and below it. Raises CertificateError if there are none."""
    found = [Issued.read(place) for place in _places(folder)]
    if not found:
        raise CertificateError(f"no certificate in {folder}; fedstrata certs issue makes one")
    return found


def _places(folder: Path) -> list[Path]:
    return sorted(Path(place) for place, _, files in os.walk(folder) if CERT in files)
