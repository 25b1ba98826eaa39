"""Define the commands for a fleet of boards: fleet list, offer and withdraw."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from emulator.commands.certs import OfRelease, release_or_none
from emulator.commands.options import Changes, Place, with_groups
from emulator.commands.package import EXPERIMENT

if TYPE_CHECKING:
    from emulator.boards.fleet_client import FleetClient
    from fedstrata.v1 import fleet_service_pb2 as pb

T = TypeVar("T")
fleet = typer.Typer(help="See the boards of a fleet, offer runs to them, and withdraw the runs.", no_args_is_help=True)

Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The address of the fleet's service.")]
Operator = Annotated[Path, typer.Option(metavar="DIR", help="Use the operator's certificate in this folder.")]
OPERATOR = Path("certs/operator")


@fleet.command("list")
def show(address: Address, tls: Operator = OPERATOR) -> None:
    """List the boards of a fleet, and the runs of each board."""
    for line in _lines(_called(address, tls, lambda client: client.everything())):
        print(line)


@fleet.command()
@with_groups
def offer(
    *,
    address: Address,
    experiment: Annotated[Path, EXPERIMENT],
    gps: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address by which boards reach the run's GPS.")],
    changes: Changes,
    tls: Operator = OPERATOR,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the run's authority.")] = Path("certs"),
    release: OfRelease = None,
    place: Place,
) -> None:
    """Offer a run to boards. The GPS of the run is elsewhere, for instance on Kubernetes."""
    from emulator.boards.fleet_client import FleetClient
    from emulator.boards.loans import offer_of, shares
    from emulator.certs import authority_of
    from fedstrata.errors import CertificateError
    from fedstrata.trust.tls_files import TlsFiles

    run = changes.load(experiment)
    authority = authority_of(folder, release_or_none(release, place))
    if authority.domain == TlsFiles.load(tls).me.domain:
        raise CertificateError(
            f"the authority in {folder} is the fleet's own, {authority.domain!r}, but a run needs another one; make it "
            "with fedstrata certs init RUN --folder DIR, and give --folder DIR here"
        )

    async def call(client: FleetClient) -> None:
        await client.offer(offer_of(run.run_id, run, gps, authority, shares(run, await client.everything())))

    _called(address, tls, call)
    print(f"{run.run_id}: offered; fedstrata fleet withdraw {address} {run.run_id} frees the boards")


@fleet.command()
def withdraw(
    address: Address,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run, as fedstrata fleet list names it.")],
    tls: Operator = OPERATOR,
) -> None:
    """Free the boards of a run, for instance after the run's command was killed."""
    from fedstrata.errors import ExperimentError
    from fedstrata.process.quoting import quoted

    if not _called(address, tls, lambda client: client.withdraw(run)):
        raise ExperimentError(f"no run {quoted(run)} has boards; fedstrata fleet list {address} names those that do")
    print(f"{run}: its boards are free")


def _called(address: str, tls: Path, call: "Callable[[FleetClient], Coroutine[Any, Any, T]]") -> T:
    """Connect to a fleet, make one call, and return its reply."""
    import asyncio

    from emulator.boards.fleet_client import FleetClient, FleetPlace

    async def work() -> T:
        async with FleetClient(FleetPlace(address=address, tls=tls)) as client:
            return await call(client)

    return asyncio.run(work())


def _lines(told: "pb.FetchFleetResponse") -> list[str]:
    """Return a line for each board, followed by a line for each run of the board. At the end, a line for each run names
    the boards that have not reported on the run yet.
    """
    from emulator.console.units import human_bytes
    from fedstrata.process.quoting import printable

    lines, said = [], set()
    for state in told.boards:
        board = state.board
        what = f"{board.cores} cores, {human_bytes(board.memory_bytes)}, {board.processor}"
        what += f", data {board.data}" if board.data else ""
        lines.append(f"{board.name}: {'here' if state.is_here else 'away'}, {what}, {board.most_runs} at a time")
        for run in state.runs:
            said.add((run.offer_id, board.name))
            lines.append(f"  {run.offer_id}: {run.state}{f', {run.reason}' if run.reason else ''}")
    for offer in told.offers:
        silent = [name for name in offer.boards if (offer.offer_id, name) not in said]
        lines += [f"{offer.offer_id}: not yet at {', '.join(silent)}"] if silent else []
    return [printable(line) for line in lines] or ["no board has called this fleet yet"]
