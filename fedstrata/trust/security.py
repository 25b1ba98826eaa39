"""The security of a process. It decides how the process connects to others, and which callers it accepts.

A process chooses once, by its options, between `OpenSecurity` (without TLS) and `TlsSecurity`.
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from fedstrata.errors import CertificateError
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.trust.channel import Options, SecureChannel
from fedstrata.trust.diagnosis import why_refused
from fedstrata.trust.guard import Guard, Membership, Outdated
from fedstrata.trust.names import Name, Role, check_server_domain
from fedstrata.trust.rate_limits import Shares
from fedstrata.trust.tls_files import LOOK_S, TlsFiles

if TYPE_CHECKING:  # it loads the event loop
    from fedstrata.process.process import Arguments


class Security(ABC):
    """Define how a process opens channels and listens, and which callers it accepts."""

    tls: TlsFiles | None = None
    look_s: float | None = None  # for how long `has_revoked` returns the same; None: for ever

    @abstractmethod
    def channel(self, address: str, parent: Name, options: Options = ()) -> grpc.aio.Channel:
        """Return a channel to a parent. With TLS, it accepts only a parent with the name `parent`."""

    @abstractmethod
    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Let a server listen at an address, and return the port."""

    @abstractmethod
    def guards(self, membership: Membership, refused: Callable[[str], None], children: int) -> list[Guard]:
        """Return a list with a guard for a server. `children`, the number of devices of the run, determines how many
        calls the guard allows. Without TLS, the list is empty.
        """

    @abstractmethod
    def measured_by(self, metrics: ProcessMetrics) -> None:
        """Let the metrics of the process show when its certificate ends, if it has a certificate."""

    async def why_refused(self, address: str, parent: Name) -> str | None:
        """Return why calls to a parent can never succeed. If calls may succeed later, return None."""
        return await why_refused(address, self.tls, parent)

    def has_revoked(self, role: Role, device_or_lps_id: str) -> bool:
        """Return whether the name of a device or LPS is revoked."""
        return False

    def advice_on(self, device_id: str) -> str:
        """If a device is refused because of its certificate or its name, return a text that tells an operator the
        reason. Otherwise return an empty text.
        """
        return ""


class OpenSecurity(Security):
    """Connect without TLS, and accept every caller."""

    def channel(self, address: str, parent: Name, options: Options = ()) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=options)

    def measured_by(self, metrics: ProcessMetrics) -> None:
        """Do nothing, because there is no certificate."""

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        return server.add_insecure_port(address)

    def guards(self, membership: Membership, refused: Callable[[str], None], children: int) -> list[Guard]:
        return []


OPEN = OpenSecurity()


class TlsSecurity(Security):
    """Connect with TLS, and accept only calls that the certificates of their callers allow."""

    tls: TlsFiles
    look_s = LOOK_S

    def __init__(self, tls: TlsFiles, *me: Name) -> None:
        """Set the files. Raises CertificateError if their certificate lacks one of the names `me`."""
        tls.require(*me)
        self.tls = tls
        self._outdated = Outdated()

    def measured_by(self, metrics: ProcessMetrics) -> None:
        metrics.certificate(lambda: self.tls.newest().end_s())

    def channel(self, address: str, parent: Name, options: Options = ()) -> grpc.aio.Channel:
        return SecureChannel(address, self.tls, parent, options)

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        return server.add_secure_port(address, self.tls.server_credentials())

    def guards(self, membership: Membership, refused: Callable[[str], None], children: int) -> list[Guard]:
        return [Guard(self.tls, membership, refused, shares=Shares(children), outdated=self._outdated)]

    def has_revoked(self, role: Role, device_or_lps_id: str) -> bool:
        return self.tls.revoked().revokes((role,), device_or_lps_id)

    def advice_on(self, device_id: str) -> str:
        if self.has_revoked("device", device_id):
            return "it is revoked"
        is_outdated = self._outdated.shuts_out("device", device_id)
        return "its certificate has expired or is of an old authority, renew it" if is_outdated else ""


def with_tls_options(arguments: "Arguments") -> "Arguments":
    """Add the options of `security_of` to the options of a process, and return all options."""
    arguments.option("tls", "Speak TLS with ca.pem, cert.pem and key.pem of this folder.")
    arguments.option(
        "revoked", "Read the list of revoked certificates from this file, not from revoked.txt beside the certificate."
    )
    arguments.option(
        "server-domain",
        "Expect the names gps.DOMAIN and lps-0.DOMAIN in servers' certificates; a proxy tells servers apart by these "
        "names.",
    )
    return arguments


def add_operator_option(arguments: argparse.ArgumentParser) -> None:
    """Add the option `--tls` to a program that an operator runs. `security_of` reads this option."""
    arguments.add_argument("--tls", help="Show the operator's certificate of this folder, if the GPS speaks TLS.")
    arguments.set_defaults(revoked=None, server_domain=None)


def security_of(options: argparse.Namespace, *me: Name) -> Security:
    """Return the security that the options of a process choose. Without a folder of TLS files, it is `OPEN`.

    Raises:
        CertificateError: the files are unusable, or their certificate lacks one of the names `me`. Or the domain for
            servers' names is wrong. Or an option needs a folder of TLS files, and there is none.
    """
    domain = options.server_domain or ""
    if options.tls:
        revoked = Path(options.revoked) if options.revoked else None
        if revoked and not revoked.parent.is_dir():  # the list itself may come later
            raise CertificateError(f"--revoked {revoked}: there is no folder {revoked.parent}; correct the path")
        return TlsSecurity(TlsFiles.load(Path(options.tls), revoked, check_server_domain(domain)), *me)
    for option, value in (("--server-domain", domain), ("--revoked", options.revoked)):
        if value:
            raise CertificateError(f"{option} {value} needs certificates; give --tls, too")
    return OPEN


def tls_security_of(options: argparse.Namespace, *me: Name, issue: str) -> TlsSecurity:
    """Return the security of a process that needs a certificate. `issue` has the arguments with which `fedstrata certs
    issue` makes this certificate. Raises CertificateError if the options name no folder with a certificate. The error
    message then shows this command.
    """
    security = security_of(options, *me)
    if not isinstance(security, TlsSecurity):
        raise CertificateError(
            f"this process needs a certificate; give --tls (fedstrata certs issue {issue} makes one)"
        )
    return security
