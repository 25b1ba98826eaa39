"""Issue certificates for processes that are started by hand. The authority is in a folder, or belongs to a release on
Kubernetes.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from emulator.cluster.release import Release
from emulator.local.run_certificates import AUTHORITY, issue_into
from fedstrata.errors import CertificateError
from fedstrata.process.private_files import private_folder
from fedstrata.process.quoting import quoted
from fedstrata.store import claimed
from fedstrata.trust.authority import Authority, Issued
from fedstrata.trust.names import NAMED, ROLES, SERVERS, Name, check_server_domain, device_names
from fedstrata.trust.tls_files import CA, CERT, REVOKED, Revoked, write_private

if TYPE_CHECKING:
    from emulator.cluster.release_certificates import ReleaseCertificates

    Place: TypeAlias = "Folder | ReleaseCertificates"

DEVICES = "devices"


class Folder:
    """Read and write the certificates in a folder and its subfolders. The folder may also have the authority that
    issued them.
    """

    def __init__(self, folder: Path, of: "ReleaseCertificates | None" = None) -> None:
        """Use the authority in the folder by default. If the authority belongs to a release on Kubernetes instead, `of`
        has the certificates of this release. In this case, certificates in the folder from other authorities are
        ignored.
        """
        self.command = "fedstrata certs renew"
        self.renewal = self.command if of is None else of.command
        self._folder = folder
        self._domain = None if of is None else of.domain

    def __str__(self) -> str:
        return str(self._folder / AUTHORITY)

    def existing_authority(self) -> Authority:
        return Authority.load(self._folder / AUTHORITY)

    def keep(self, authority: Authority) -> None:
        authority.replace_in(self._folder / AUTHORITY)

    def holders(self) -> list[Issued]:
        if self._domain is None:
            return show(self._folder)
        return [one for one in map(Issued.read, _places(self._folder)) if one.peer.domain == self._domain]

    def give(self, place: str, files: Mapping[str, bytes]) -> None:
        write_private(Path(place), files)


def init(folder: Path, run: str) -> Path:
    """Make an authority, and return its folder. Raises CertificateError if the folder already has an authority."""
    place = folder / AUTHORITY
    if (place / CA).exists():  # the file that is written last
        raise CertificateError(
            f"{place} has an authority already; use it (fedstrata certs issue), or give another --folder"
        )
    Authority.new(run).save(place)
    return place


def issue(
    folder: Path,
    role: str,
    ids: Sequence[str],
    days: int,
    release: Release | None = None,
    *,
    server_domain: str = "",
) -> Path:
    """Issue a certificate for a process with this role and these ids. Return the folder of the certificate. The user
    copies this folder to the machine of the process.

    With `release`, the authority of this release issues the certificate. Otherwise the authority in the folder does.
    With `server_domain`, a server's certificate also has the server's name in this domain.

    Raises:
        CertificateError: there is no authority, a name is not allowed, or the name already has a certificate.
    """
    names = names_of(role, ids)
    if check_server_domain(server_domain) and role not in SERVERS:
        raise CertificateError(f"--server-domain is for certificates of servers, not of {role}; leave it out")
    if not folder.exists():
        authority_of(folder, release)  # raises if there is none, before a folder is made
        private_folder(folder)
    place = folder / (names[0].id or role)
    if role == "device":
        place = folder / DEVICES / (ids[0] if len(ids) == 1 else f"{ids[0]}_{ids[-1]}")
    with _only_command(folder):
        authority = authority_of(folder, release)
        if (place / CERT).exists():
            raise CertificateError(
                f"{place} has a certificate already; fedstrata certs renew [--server-domain D] makes a new one"
            )
        issue_into(folder, authority, names, place, days=days, server_domain=server_domain)
    return place


def revoke(folder: Path, role: str, ids: Sequence[str]) -> list[Path]:
    """Revoke all certificates of a name. Return the folders into which the new list of revoked names is written.

    Raises:
        CertificateError: the name is not allowed, there is no authority, or the list is too long.
    """
    names = names_of(role, ids)
    with _only_command(folder):
        Authority.load(folder / AUTHORITY)
        files = Revoked.load(folder / AUTHORITY / REVOKED).with_also(names).files()
        places = [folder / AUTHORITY, *_places(folder)]
        for place in places:
            write_private(place, files)
    return places


def revoke_of_release(release: Release, role: str, ids: Sequence[str]) -> str:
    """Revoke all certificates of a name in a release on Kubernetes. Return the name of the Secret with the list of
    revoked names. All pods of the release read this Secret.
    """
    return _certificates_of(release).revoke(names_of(role, ids))


def authority_of(folder: Path, release: Release | None) -> Authority:
    """Return the authority of a release on Kubernetes. Without `release`, return the authority in the folder.

    Raises:
        CertificateError: there is no authority.
    """
    return _places_of(folder, release)[0].existing_authority()


def _certificates_of(release: Release) -> "ReleaseCertificates":
    from emulator.cluster.release_certificates import ReleaseCertificates
    from emulator.cluster.release_objects import InstalledRelease

    return ReleaseCertificates(release, InstalledRelease(release).secrets)


def names_of(role: str, ids: Sequence[str]) -> list[Name]:
    """Return the names for a certificate: one name per device, and a single name for any other role. Raises
    CertificateError if the role is unknown, or if the number of ids does not fit the role.
    """
    if role not in ROLES:
        raise CertificateError(f"{quoted(role)} is not a role; give one of {', '.join(ROLES)}")
    if role in NAMED and not ids:
        raise CertificateError(f"the {role} has no name; give one: fedstrata certs issue {role} NAME")
    if role == "device":
        return device_names(ids)
    if len(ids) > 1:
        raise CertificateError(f"a certificate of {role} has one name, not {len(ids)}")
    return [Name(role, *ids)]


def renew(
    folder: Path, days: int, release: Release | None = None, *, of_pods: bool = False, server_domain: str = ""
) -> Iterator[Issued]:
    """Renew all certificates in a folder, each with a new key. Yield each new certificate when it is made.

    With `release`, the authority of this release renews them. Otherwise the authority in the folder does. The same
    authority must have issued the old certificates. With `of_pods`, the certificates of the release's pods are renewed
    instead of the folder's. With `server_domain`, certificates of servers get names in this domain. Otherwise they keep
    their names.

    Raises:
        CertificateError: there is no authority or no certificate, or a certificate belongs to another run. In this case
            no certificate is changed.
    """
    check_server_domain(server_domain)
    keeper, *_ = _places_of(folder, release)
    with _only_command(folder):
        authority = keeper.existing_authority()
        for place, old in _holders([keeper if of_pods else Folder(folder)], authority):
            files = authority.issued(old.peer.names, days=days, server_domain=server_domain or old.server_domain)
            place.give(old.place, files)
            yield Issued.parse(files[CERT], old.place)


def renew_authority(folder: Path, release: Release | None = None) -> Iterator[Issued]:
    """Make a new authority, and let all processes with certificates trust both the new and the old authority. Yield the
    certificate of each process as soon as the process's list of trusted authorities is written.

    The certificates keep the signature of the old authority until `renew` replaces them.

    Raises:
        CertificateError: there is no authority or no certificate, or processes still trust an even older authority. In
            this case nothing is changed.
    """
    places = _places_of(folder, release)
    with _only_command(folder):
        authority = places[0].existing_authority()
        holders = _holders(places, authority)
        yield from _trusted(places[0], authority.succeeded(), holders)


def drop_authority(folder: Path, release: Release | None = None) -> Iterator[Issued]:
    """Let all processes with certificates trust only the new authority. Yield the certificate of each process as soon
    as the process's list of trusted authorities is written.

    Raises:
        CertificateError: there is no old authority, or a certificate that it signed is still in use. In this case
            nothing is changed.
    """
    places = _places_of(folder, release)
    keeper = places[0]
    with _only_command(folder):
        authority = keeper.existing_authority()
        if not authority.before:
            raise CertificateError(
                f"{keeper} has only one authority; make a second one with {keeper.command} --authority new"
            )
        holders = _holders(places, authority)
        for place, one in holders:
            if not authority.has_issued(one.certificate):
                raise CertificateError(
                    f"{one.place} still has a certificate from the former authority; run {place.renewal} first"
                )
        yield from _trusted(keeper, authority.alone(), holders)


def _only_command(folder: Path) -> AbstractContextManager[None]:
    """Let no other command read or change the certificates in a folder while the block runs. Otherwise a new authority
    could miss a certificate that is issued meanwhile, and a key could stay beside another key's certificate. A missing
    folder is not made.
    """
    return claimed(folder) if folder.exists() else nullcontext()


def _trusted(keeper: "Place", authority: Authority, holders: "Sequence[tuple[Place, Issued]]") -> Iterator[Issued]:
    """Store the authority in the place `keeper`, and write the list of trusted authorities next to each of these
    certificates. Yield each certificate after that.
    """
    keeper.keep(authority)
    for place, one in holders:
        place.give(one.place, {CA: authority.trusted()})
        yield one


def _holders(places: "Sequence[Place]", authority: Authority) -> "list[tuple[Place, Issued]]":
    """Return all certificates in these places. Each is paired with its place: a folder, or a release on Kubernetes.
    Raises CertificateError if a certificate belongs to another run.
    """
    found = [(place, one) for place in places for one in place.holders()]
    for _, one in found:
        if one.peer.domain != authority.domain:
            raise CertificateError(
                f"the certificate in {one.place} is of run {one.peer.domain!r}, but the authority is of "
                f"{authority.domain!r}; give the folder of one run"
            )
    return found


def _places_of(folder: Path, release: Release | None) -> "list[Place]":
    """Return the places that have certificates of one authority. Without `release`, this is the folder. With `release`,
    they are the release on Kubernetes and then the folder. The first place also has the authority's key.
    """
    if release is None:
        return [Folder(folder)]
    certificates = _certificates_of(release)
    return [certificates, Folder(folder, certificates)]


def show(folder: Path) -> list[Issued]:
    """Return the certificates in a folder and its subfolders. Raises CertificateError if there is no certificate."""
    found = [Issued.read(place) for place in _places(folder)]
    if not found:
        raise CertificateError(f"no certificate in {folder}; fedstrata certs issue makes one")
    return found


def _places(folder: Path) -> list[Path]:
    return sorted(Path(place) for place, _, files in os.walk(folder) if CERT in files)
