"""The certificates of a release as Secrets: an authority of its own, and a certificate for each of its pods."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from emulator.place import Release
from fedstrata.errors import CertificateError
from fedstrata.experiment import Experiment
from fedstrata.partition_settings import LocalPartition
from fedstrata.trust.authority import Authority, Issued
from fedstrata.trust.files import CA, CA_KEY, CERT, KEY, TlsFiles, write_private
from fedstrata.trust.names import Name, device_names

AUTHORITY = "authority"
FILES = {"ca.crt": CA, "tls.crt": CERT, "tls.key": KEY}  # keys of a Secret, as Kubernetes and cert-manager have them
AUTHORITY_FILES = {"tls.crt": CA, "tls.key": CA_KEY}
RENEW_DAYS = 120  # a certificate with fewer days left is made anew by the next `fedstrata up`
MOST_LPS = 16  # that get a certificate where only the GPS knows how many there will be; as the chart has it


class Secrets(Protocol):
    """The Secrets of a release's namespace."""

    def read_secret(self, name: str) -> dict[str, bytes] | None:
        """What a Secret holds; None where there is none."""

    def write_secret(self, name: str, data: Mapping[str, bytes]) -> None:
        """Make a Secret of the release, or put this in its place."""

    def delete_secret(self, name: str) -> None:
        """Delete a Secret, if it is there."""

    def certificate_secrets(self) -> list[str]:
        """Names of the release's Secrets that hold certificates."""


class ReleaseCertificates:
    """Issues what the pods of a release show each other; keeps what is there and still fits."""

    def __init__(self, release: Release, secrets: Secrets) -> None:
        self._release = release
        self._secrets = secrets

    def ensure(self, holders: Mapping[str, list[Name]]) -> list[str]:
        """See to a valid certificate for each; gives whose were made. Secrets of who is no longer there go."""
        authority = self._authority()
        made = [who for who, names in holders.items() if not self._fits(who, names, authority)]
        for who in made:
            self._secrets.write_secret(self.secret(who), _as_secret(authority.issued(holders[who])))
        kept = {self.secret(who) for who in [*holders, AUTHORITY]}
        for name in self._secrets.certificate_secrets():
            if name not in kept:
                self._secrets.delete_secret(name)
        return made

    def secret(self, who: str) -> str:
        """The name of somebody's Secret, as the chart has it."""
        return f"{self._release.name}-tls-{who}"

    def existing_authority(self) -> Authority:
        """The authority of the release. Raises CertificateError where `fedstrata up` has made none."""
        name = self.secret(AUTHORITY)
        found = self._secrets.read_secret(name)
        if found is None:
            raise CertificateError(
                f"namespace {self._release.namespace} has no Secret {name}: fedstrata up makes it where tls.mode is "
                "generated; else who issues the release's certificates issues this one, too"
            )
        with _folder_of(found, AUTHORITY_FILES, name) as folder:
            return Authority.load(folder)

    def _authority(self) -> Authority:
        name = self.secret(AUTHORITY)
        if self._secrets.read_secret(name) is not None:
            return self.existing_authority()
        authority = Authority.new(f"{self._release.name}.{self._release.namespace}")
        files = authority.files()
        self._secrets.write_secret(name, {key: files[file] for key, file in AUTHORITY_FILES.items()})
        return authority

    def _fits(self, who: str, names: list[Name], authority: Authority) -> bool:
        """Whether somebody's Secret is theirs, by this authority, and valid for long enough."""
        found = self._secrets.read_secret(self.secret(who))
        if found is None or found.get("ca.crt") != authority.files()[CA]:
            return False
        try:
            with _folder_of(found, FILES, self.secret(who)) as folder:
                TlsFiles.load(folder)
                issued = Issued.read(folder)
        except CertificateError:
            return False
        return set(issued.peer.names) == set(names) and issued.days_left >= RENEW_DAYS


def holders_of(values: Mapping[str, Any], experiment: Experiment, lps_count: int) -> dict[str, list[Name]]:
    """Who of a release has a certificate, and of which names; `values` are the chart's with all defaults.

    `lps_count` is how many LPSs the run begins with, 0 where only the GPS will know.
    """
    given = values["tls"]["lps"]
    count = given if given is not None else lps_count or min(MOST_LPS, experiment.device_count)
    holders = {"gps": [Name("gps")], "operator": [Name("operator")]}
    holders |= {f"lps-{number}": [Name("lps", f"lps-{number}")] for number in range(count)}
    return holders | _device_holders(values["device"], experiment)


def _device_holders(device: Mapping[str, Any], experiment: Experiment) -> dict[str, list[Name]]:
    ids, per_pod = experiment.device_ids(), device["devicesPerPod"]
    if isinstance(experiment.partition, LocalPartition):
        return {f"device-{one}": [Name("device", one)] for one in ids} if device["kind"] == "DaemonSet" else {}
    hosted = range(0, len(ids) - device["external"], per_pod)
    return {f"device-{pod}": device_names(ids[first : first + per_pod]) for pod, first in enumerate(hosted)}


def with_mode(values: dict[str, Any]) -> dict[str, Any]:
    """Values in which certificates are generated, unless they say where they come from."""
    tls = values.get("tls", {})
    if not isinstance(tls, dict) or tls.get("mode") not in {None, ""}:
        return values  # as asked, or what the chart refuses
    return {**values, "tls": {**tls, "mode": "generated"}}


@contextmanager
def tls_of_secret(found: Mapping[str, bytes], name: str) -> Iterator[TlsFiles]:
    """The certificate of a Secret, in files that only this user may read and that go with the block.

    Raises:
        CertificateError: it is not to be used.
    """
    with _folder_of(found, FILES, name) as folder:
        yield TlsFiles.load(folder)


@contextmanager
def _folder_of(found: Mapping[str, bytes], files: Mapping[str, str], name: str) -> Iterator[Path]:
    missing = [key for key in files if key not in found]
    if missing:
        raise CertificateError(f"Secret {name} has no {' and no '.join(missing)}; delete it, and fedstrata up again")
    with tempfile.TemporaryDirectory(prefix="fedstrata-tls-") as folder:
        write_private(Path(folder), {file: found[key] for key, file in files.items()})
        yield Path(folder)


def _as_secret(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: files[file] for key, file in FILES.items()}
