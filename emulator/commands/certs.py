"""Define the commands for certificates of processes that are started by hand: certs init, issue, renew, revoke and
show.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from emulator.commands.options import Place, with_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from emulator.cluster.release import Release
    from fedstrata.trust.authority import Issued

CERTIFICATE_DAYS = 365  # the value in fedstrata.trust.names, whose import would load gRPC in each command

certs = typer.Typer(help="Make certificates for services that are started by hand.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(metavar="DIR", help="Keep the authority and its certificates in this folder.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="Make certificates valid for this many days.")]
OfRelease = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use the authority of this Helm release, not the folder's.")
]
ServerDomain = Annotated[
    str,
    typer.Option(metavar="DOMAIN", help="Also put gps.DOMAIN or lps-0.DOMAIN into the certificate of a server."),
]
CERTS = Path("certs")


@certs.command()
def init(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The name of the run, or a name for many runs, such as the lab's.")
    ],
    folder: Folder = CERTS,
) -> None:
    """Make the authority that all processes of a run trust."""
    from emulator.certs import init as make

    print(f"{make(folder, run)}: keep it apart from the run's processes; its key can issue a certificate for any name")


@certs.command()
@with_groups
def issue(
    *,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="The role: gps, operator, fleet, lps or device.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="The name of an LPS, or of all devices of a process.")
    ] = None,
    folder: Folder = CERTS,
    days: Days = CERTIFICATE_DAYS,
    server_domain: ServerDomain = "",
    release: OfRelease = None,
    place: Place,
) -> None:
    """Issue a certificate: a folder to copy to the machine of the process. The option --tls of the process takes the
    folder.
    """
    from emulator.certs import issue as make

    print(make(folder, role, names or [], days, release_or_none(release, place), server_domain=server_domain))


@certs.command()
@with_groups
def renew(
    *,
    folder: Folder = CERTS,
    days: Days = CERTIFICATE_DAYS,
    server_domain: ServerDomain = "",
    authority: Annotated[
        Literal["new", "drop"] | None,
        typer.Option(
            help="Renew no certificates: make a new authority beside the present one, or drop the former one."
        ),
    ] = None,
    release: OfRelease = None,
    pods: Annotated[
        bool,
        typer.Option("--pods", help="Renew the certificates of the release's pods, in their Secrets, not a folder's."),
    ] = False,
    place: Place,
) -> None:
    """Renew all certificates of a folder, with new keys. Running processes use the new certificates without a
    restart.
    """
    from emulator import certs as work
    from fedstrata.errors import CertificateError

    where = release_or_none(release, place)
    if pods and (where is None or authority is not None):
        raise CertificateError("--pods needs --release NAME, and does not go with --authority")
    if server_domain and authority is not None:
        raise CertificateError(
            "--server-domain does not go with --authority, which renews no certificates; leave one of them out"
        )
    if authority is None:
        _print(work.renew(folder, days, where, of_pods=pods, server_domain=server_domain))
    else:
        _print((work.renew_authority if authority == "new" else work.drop_authority)(folder, where))


@certs.command()
@with_groups
def revoke(
    *,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="The role: gps, operator, fleet, lps or device.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="The name of an LPS, or of devices; all their certificates are revoked."
        ),
    ] = None,
    folder: Folder = CERTS,
    release: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Revoke certificates of this Helm release. All its pods get the list in a Secret."
        ),
    ] = None,
    place: Place,
) -> None:
    """Revoke all certificates of a name: write a new list of revoked names next to each certificate. Running processes
    read this list.
    """
    from emulator import certs as work

    where = release_or_none(release, place)
    if where is not None:
        print(work.revoke_of_release(where, role, names or []))
    else:
        print("\n".join(map(str, work.revoke(folder, role, names or []))))


@certs.command()
def show(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with certificates, or with folders of certificates.")
    ] = CERTS,
) -> None:
    """List certificates, each with the name in it and the date on which it expires."""
    from emulator.certs import show as found

    _print(found(folder))


def release_or_none(name: str | None, place: Place) -> "Release | None":
    """Return the release of the option --release; None without the option."""
    return None if name is None else place.release(name)


def _print(certificates: "Iterable[Issued]") -> None:
    for one in certificates:
        left = "expired" if one.days_left < 0 else f"{one.days_left} days left"
        print(f"{one.place}: {one.peer} of {one.peer.domain}, until {one.until:%Y-%m-%d}, {left}")
