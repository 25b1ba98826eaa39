"""Keep the certificates of a release in Secrets: its own authority, and a certificate for each of its pods."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emulator.cluster.release import Release
from emulator.cluster.secrets import KubernetesSecrets
from fedstrata.errors import CertificateError
from fedstrata.experiment import Experiment
from fedstrata.trust.authority import Authority, Issued, server_names
from fedstrata.trust.certificates import dns_names
from fedstrata.trust.names import Name, device_names
from fedstrata.trust.tls_files import CA, CA_KEY, CERT, KEY, REVOKED, Revoked, TlsFiles, write_private

AUTHORITY, REVOKED_LIST = "authority", "revoked"  # Secrets of the release that belong to no process
GENERATED = "generated"  # the tls.mode in which `fedstrata up` makes the certificates
FILES = {"ca.crt": CA, "tls.crt": CERT, "tls.key": KEY}  # keys of a Secret, as Kubernetes and cert-manager have them
AUTHORITY_FILES = {"tls.crt": CA, "tls.key": CA_KEY}
FIRST = "first"  # after a renewal of the authority, also the fingerprint of the first one, for pods that know it
RENEW_DAYS = 120  # a certificate with fewer days left is made again by the next `fedstrata up`
# Whoever may read Secrets or make pods in the namespace can sign with a release's authority. So it ends earlier than an
# authority in a folder.
AUTHORITY_DAYS = 730
MOST_LPS = 16  # LPSs that get a certificate if only the GPS knows how many the run needs; the chart has the same limit


class ReleaseCertificates:
    """Issue the certificates of a release's pods. A certificate that is still valid and suitable is not replaced."""

    def __init__(self, release: Release, secrets: KubernetesSecrets) -> None:
        self.command = f"fedstrata certs renew {release.options}"
        self.renewal = f"{self.command} --pods"
        self._release = release
        self._secrets = secrets
        self._new: list[str] = []

    def __str__(self) -> str:
        return f"release {self._release.name}"

    def make(self, holders: Mapping[str, list[Name]], server_domain: str = "") -> list[str]:
        """Issue a certificate to each process in `holders` that has no valid certificate. Return the names of these
        processes. Secrets of other processes stay. With `server_domain`, certificates of servers also have the servers'
        names in this domain.

        Raises:
            CertificateError: another program has made a Secret with a required name. In this case nothing is written.
        """
        authority = self._found_authority()
        if authority is not None and authority.days_left < 0:
            self._secrets.delete(self.secret(AUTHORITY))
            authority = None
        lacking = list(holders)
        if authority is not None:
            lacking = [who for who in holders if not self._fits(who, holders[who], authority, server_domain)]
        for who in lacking:
            self._secrets.check_replaceable(self.secret(who))
        authority = authority or self._new_authority()
        for who in lacking:
            files = authority.issued(holders[who], server_domain=server_domain)
            if self._secrets.write(self.secret(who), _as_secret(files)):
                self._new.append(self.secret(who))
        return lacking

    def keep(self, authority: Authority) -> None:
        """Store this authority as the authority of the release. The fingerprint of the first authority stays, so the
        next `fedstrata up` does not restart the pods.
        """
        first = self.fingerprint().encode()
        self._secrets.write(self.secret(AUTHORITY), {**_authority_secret(authority), FIRST: first})

    def holders(self) -> list[Issued]:
        """Return the certificates of the release's pods. Raises CertificateError if there is no certificate, or if one
        is damaged.
        """
        others = {self.secret(AUTHORITY), self.secret(REVOKED_LIST)}
        found = [self._holder(name) for name in sorted(set(self._secrets.made_here()) - others)]
        if not found:
            raise CertificateError(f"namespace {self._release.namespace} has no certificate of {self._release.name}")
        return found

    def _holder(self, name: str) -> Issued:
        try:
            return Issued.parse((self._secrets.read(name) or {}).get("tls.crt", b""), name)
        except (CertificateError, ValueError):
            raise CertificateError(
                f"Secret {name} has no certificate of this release; run fedstrata up, which makes a new one"
            ) from None

    def give(self, name: str, files: Mapping[str, bytes]) -> None:
        """Replace these files in the Secret `name`, which has the certificate of a process."""
        self._secrets.change(name, lambda had: {**had, **_as_secret(files)})

    def revoke(self, names: Iterable[Name]) -> str:
        """Revoke all certificates of these names. Return the name of the Secret with the list of revoked names.

        Raises:
            CertificateError: another program has made this Secret, or the list in it cannot be read.
        """
        name = self.secret(REVOKED_LIST)

        def changed(had: Mapping[str, bytes]) -> Mapping[str, bytes]:
            try:
                revoked = Revoked.parse(had.get(REVOKED, b"").decode())
            except (CertificateError, UnicodeDecodeError) as error:
                raise CertificateError(f"Secret {name}: {error}; put its former content back, or delete it") from None
            return revoked.with_also(names).files()

        self._secrets.change(name, changed)
        return name

    def take_back(self) -> None:
        """Delete the Secrets that this object has made. This cleans up after a failure."""
        while self._new:
            self._secrets.delete(self._new.pop())

    def prune(self, holders: Iterable[str]) -> None:
        """Delete the Secrets with certificates of all processes except these."""
        kept = {self.secret(who) for who in [*holders, AUTHORITY, REVOKED_LIST]}
        for name in self._secrets.made_here():
            if name not in kept:
                self._secrets.delete(name)

    def drop_authority(self) -> None:
        """Delete the authority's Secret if `fedstrata up` has made it. Call this when the release's pods no longer use
        an authority of `fedstrata up`.
        """
        name = self.secret(AUTHORITY)
        if name in self._secrets.made_here():
            self._secrets.delete(name)

    def fingerprint(self) -> str:
        """Return the fingerprint of the release's first authority, even after a later authority has replaced it. A new
        fingerprint would make Kubernetes replace all pods. This is not necessary, because running pods read new
        certificates without a restart.
        """
        first = (self._secrets.read(self.secret(AUTHORITY)) or {}).get(FIRST)
        if first is not None:
            return first.decode()
        return hashlib.sha256(self.existing_authority().files()[CA]).hexdigest()[:16]

    def advice(self) -> str:
        """Return a text with advice if the release's authority expires soon. Otherwise return an empty text."""
        left = self.existing_authority().days_left
        if left >= RENEW_DAYS:
            return ""
        return f"the authority of {self} ends in {left} days; change it: {self.command} --authority new"

    @property
    def domain(self) -> str:
        """The domain in the release's certificates. It consists of the release's name and namespace. The chart uses the
        same domain.
        """
        return f"{self._release.name}.{self._release.namespace}"

    def secret(self, who: str) -> str:
        """Return the name of the Secret with a process's certificate. The chart uses the same name."""
        return f"{self._release.name}-tls-{who}"

    def existing_authority(self) -> Authority:
        """Return the authority of the release. Raises CertificateError if `fedstrata up` has not made an authority."""
        authority = self._found_authority()
        if authority is None:
            raise CertificateError(
                f"namespace {self._release.namespace} has no Secret {self.secret(AUTHORITY)}; if tls.mode is "
                "generated, run fedstrata up; otherwise make the certificate as you made the release's others"
            )
        return authority

    def _found_authority(self) -> Authority | None:
        """Return the authority of the release. If the release has no authority, return None. Raises CertificateError if
        the Secret with the authority is damaged.
        """
        name = self.secret(AUTHORITY)
        found = self._secrets.read(name)
        if found is None:
            return None
        with _folder_of(found, AUTHORITY_FILES, name) as folder:
            try:
                return Authority.load(folder)
            except CertificateError:
                raise CertificateError(
                    f"tls.crt and tls.key of Secret {name} in namespace {self._release.namespace} are not a Fedstrata "
                    "authority with its key; put the former content back, or delete the Secret and run fedstrata up"
                ) from None

    def _new_authority(self) -> Authority:
        """Make an authority, and return it. If another `fedstrata up` has made an authority in the meantime, return
        that authority instead.
        """
        authority, name = Authority.new(self.domain, AUTHORITY_DAYS), self.secret(AUTHORITY)
        if self._secrets.create(name, _authority_secret(authority)):
            self._new.append(name)
        return self.existing_authority()

    def _fits(self, who: str, names: list[Name], authority: Authority, server_domain: str) -> bool:
        """Return whether the certificate in a process's Secret can stay. It must have the right names, be signed by
        this authority, and be valid for long enough.
        """
        found = self._secrets.read(self.secret(who))
        if found is None or found.get("ca.crt") != authority.files()[CA]:
            return False
        try:
            with _folder_of(found, FILES, self.secret(who)) as folder:
                TlsFiles.load(folder)
                issued = Issued.read(folder)
        except CertificateError:
            return False
        has_names = set(issued.peer.names) == set(names)
        is_known = {*server_names(names, server_domain)} <= {*dns_names(issued.certificate)}
        return has_names and is_known and issued.days_left >= min(RENEW_DAYS, authority.days_left)


def holders_of(values: Mapping[str, Any], experiment: Experiment) -> dict[str, list[Name]]:
    """Return the processes of a release that get a certificate, each with the names in the certificate. `values` are
    the values of the chart, including all defaults.

    If `values` has tls.lps, this is the number of LPSs that get a certificate. Otherwise the number is lps.replicas,
    the number of LPSs at the start of the run. If lps.replicas is null, the GPS decides on the number later. Then as
    many LPSs get a certificate as there are devices, but at most MOST_LPS.
    """
    given = values["tls"]["lps"]
    count = int(given) if given is not None else values["lps"]["replicas"] or min(MOST_LPS, experiment.device_count)
    holders = {"gps": [Name("gps")], "operator": [Name("operator")]}
    holders |= {f"lps-{number}": [Name("lps", f"lps-{number}")] for number in range(count)}
    return holders | _device_holders(values["device"], experiment)


def _device_holders(device: Mapping[str, Any], experiment: Experiment) -> dict[str, list[Name]]:
    ids, per_pod = experiment.device_ids(), int(device["devicesPerPod"])
    if experiment.partition.is_local:
        return {f"device-{one}": [Name("device", one)] for one in ids} if device["kind"] == "DaemonSet" else {}
    hosted = range(0, len(ids) - int(device["external"]), per_pod)
    return {f"device-{pod}": device_names(ids[first : first + per_pod]) for pod, first in enumerate(hosted)}


def with_mode(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with tls.mode set to `generated`: then `fedstrata up` makes the certificates. A tls.mode that
    is already set stays.

    The key tls.authority, which an earlier `fedstrata up` has set, is removed, because its fingerprint may be outdated.
    """
    tls = values.get("tls", {})
    if not isinstance(tls, dict):
        return values  # the chart will refuse these values
    given = {key: value for key, value in tls.items() if key != "authority"}
    if given.get("mode") in (None, ""):
        given["mode"] = GENERATED
    return {**values, "tls": given}


def authority_is_taken_over(values: Mapping[str, Any]) -> bool:
    """Return whether cert-manager now uses the Secret in which `fedstrata up` stores its own authority. In this case
    the Secret must not be deleted.
    """
    tls = values["tls"]
    issuer = (tls.get("certManager") or {}).get("issuer") or {}
    return tls["mode"] == "cert-manager" and not issuer.get("name")


@contextmanager
def tls_of_secret(found: Mapping[str, bytes], name: str) -> Iterator[TlsFiles]:
    """Write the certificate in a Secret to temporary files that only this user may read, and yield these files.

    Raises:
        CertificateError: the certificate is not usable.
    """
    with _folder_of(found, FILES, name) as folder:
        try:
            tls = TlsFiles.load(folder)
        except CertificateError as error:
            raise CertificateError(f"Secret {name}: {str(error).replace(f'{folder}/', '')}") from None
        yield tls


@contextmanager
def _folder_of(found: Mapping[str, bytes], files: Mapping[str, str], name: str) -> Iterator[Path]:
    missing = [key for key in files if key not in found]
    if missing:
        raise CertificateError(
            f"Secret {name} has no {' and no '.join(missing)}; delete it, and run fedstrata up again"
        )
    with tempfile.TemporaryDirectory(prefix="fedstrata-tls-") as folder:
        write_private(Path(folder), {file: found[key] for key, file in files.items()})
        yield Path(folder)


def _as_secret(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: files[file] for key, file in FILES.items() if file in files}


def _authority_secret(authority: Authority) -> dict[str, bytes]:
    files = authority.files()
    return {key: files[file] for key, file in AUTHORITY_FILES.items()}
