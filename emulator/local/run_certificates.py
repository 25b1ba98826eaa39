"""Issue the certificates of a run on this machine: the run's own authority, and one certificate per process."""

from collections.abc import Collection, Iterable
from pathlib import Path

from fedstrata.experiment import Experiment
from fedstrata.process.private_files import private_folder
from fedstrata.store import claimed
from fedstrata.trust.authority import Authority
from fedstrata.trust.names import CERTIFICATE_DAYS, Name, device_names
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import CA, OPERATOR, REVOKED, Revoked, TlsFiles, write_private

AUTHORITY = "authority"


class RunCertificates:
    """Issue the certificates of one run's processes. They are written to a folder that only its owner may open."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        """Use the authority in the folder. If the folder has no authority, make one."""
        private_folder(folder)
        self._folder = folder
        self._ids = experiment.device_ids()
        if (folder / AUTHORITY / CA).exists():  # the file that is written last
            Authority.load(folder / AUTHORITY)  # raises now if the authority is damaged
        else:
            Authority.new(experiment.run_id).save(folder / AUTHORITY)

    def of_server(self, name: str) -> Path:
        """Issue a certificate to the GPS or to an LPS. Return the folder of the certificate."""
        return self._issued(name, [Name("gps") if name == "gps" else Name("lps", name)])

    def revoked(self) -> Revoked:
        """Return the names that the GPS refuses, because their certificates are revoked. Raises CertificateError if the
        GPS's list of revoked names cannot be read.
        """
        return Revoked.load(self._folder / "gps" / REVOKED)

    def of_devices(self, process: str, indexes: Iterable[int]) -> Path:
        """Issue a certificate to a process that runs these devices. Return the folder of the certificate."""
        return self._issued(process, device_names(self._ids[index] for index in indexes))

    def authority(self) -> Authority:
        """Return the run's authority."""
        return Authority.load(self._folder / AUTHORITY)

    def of_operator(self) -> TlsSecurity:
        """Issue a certificate to the emulator in its role as operator. Return the TLS settings with which the emulator
        calls the GPS.
        """
        return TlsSecurity(TlsFiles.load(self._issued("operator", [OPERATOR])))

    def _issued(self, name: str, names: list[Name]) -> Path:
        place = self._folder / name
        with claimed(self._folder):
            # A continued run issues all certificates again, so none must survive a crash of the machine.
            issue_into(self._folder, self.authority(), names, place, durable=False)
        return place


def issue_into(
    folder: Path,
    authority: Authority,
    names: Collection[Name],
    place: Path,
    *,
    days: int = CERTIFICATE_DAYS,
    server_domain: str = "",
    durable: bool = True,
) -> None:
    """Write a new certificate, and `folder`'s list of revoked names, into the subfolder `place` of `folder`. Call this
    in a block of `claimed(folder)`. With `durable`, flush each file to disk.
    """
    write_private(place, Revoked.load(folder / AUTHORITY / REVOKED).files(), durable=durable)
    authority.issue(names, place, days=days, server_domain=server_domain, durable=durable)
