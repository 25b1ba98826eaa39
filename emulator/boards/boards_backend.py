"""Run an experiment with the GPS and the LPSs on this machine, and with the devices on the boards of a fleet."""

import asyncio
import json
import secrets
import socket
import sys
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from emulator.boards.fleet_client import FleetClient, FleetPlace
from emulator.boards.loans import Share, offer_of, shares, shares_again
from emulator.local.faults import refuse_faults
from emulator.local.processes import SERVERS, LocalBackend
from fedstrata.errors import AddressError, ExperimentError, FedstrataError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.process.address import joined_address, split_address
from fedstrata.process.child_processes import Restart, to_the_end
from fedstrata.process.quoting import quoted
from fedstrata.process.starting import INTERPRETER, Starter
from fedstrata.store import write_aside
from fedstrata.v1 import fleet_service_pb2 as pb


class FleetBackend(LocalBackend):
    """Run the GPS and the LPSs on this machine, and the devices on boards of a fleet.

    The fleet lends the boards to the run. When the run ends for any reason, the boards are given back. The GPS and the
    LPSs listen at the local address that this machine uses for connections to the fleet.
    """

    programs = SERVERS

    def __init__(
        self, folder: Path, *, device_processes: int | None, on_restart: Callable[[Restart], None], has_tls: bool,
        fleet: FleetPlace, most_boards: int | None, starter: Starter = INTERPRETER,
    ) -> None:  # fmt: skip
        if not has_tls:
            raise ExperimentError("--no-tls: boards need a certificate for each run; leave --no-tls out")
        host = own_host(fleet.address)
        if ip_address(host.partition("%")[0]).is_loopback:
            reached = "which only boards on this machine reach; for others, give --fleet an address in their network"
            print(f"the GPS listens at {host}, {reached}", file=sys.stderr)
        at = {"grpc": joined_address(host, 0)}
        super().__init__(
            folder,
            device_processes=device_processes,
            on_restart=on_restart,
            has_tls=has_tls,
            servers_at=at,
            starter=starter,
        )
        self._fleet = FleetClient(fleet)
        self._address = fleet.address
        self._most_boards = most_boards
        self._offer_file = folder / "state" / "offer"
        self._offer_id = ""  # set when boards are offered the run

    async def start(self, experiment: Experiment) -> str:
        """Start the GPS, and offer the run to boards. Return the address of the GPS."""
        refuse_faults(experiment, "a run on a fleet")
        await self._fleet.reach()
        return await super().start(experiment)

    async def _start_devices(self, experiment: Experiment, gps: str) -> None:
        """Choose boards, and offer the run to them. From then on, a background job watches the boards."""
        if self._certificates is None:
            raise RunStoppedError("the run has no certificates")
        offer_id, boards = self._lent(experiment, await self._fleet.everything())
        self._offer_id = offer_id
        await self._fleet.offer(offer_of(offer_id, experiment, gps, self._certificates.authority(), boards))
        self._watches.add(asyncio.create_task(self._watch_boards()))

    def _lent(self, experiment: Experiment, fleet: pb.FetchFleetResponse) -> tuple[str, list[Share]]:
        """Return the id of the run's offer to the fleet, and the boards with their devices. If the run continues, they
        are the id and the boards of its first start, so that each device finds its earlier state.
        """
        if self._offer_file.exists():
            kept = json.loads(self._offer_file.read_text(encoding="utf-8"))
            here = {state.board.name for state in fleet.boards if state.is_here}
            if away := sorted(set(kept["boards"]) - here):
                way_out = f"to give their devices to other boards, without their state, delete {self._offer_file}"
                print(f"the run waits for {quoted(*away)}, away from the fleet; {way_out}", file=sys.stderr)
            return kept["id"], shares_again(kept["boards"], fleet, self._most_boards)
        offer_id = f"{experiment.run_id}-{secrets.token_hex(4)}"
        boards = shares(experiment, fleet, self._most_boards)
        ranges = {share.board.name: (share.devices.start, share.devices.stop) for share in boards}
        with write_aside(self._offer_file) as file:
            file.write(json.dumps({"id": offer_id, "boards": ranges}).encode())
        return offer_id, boards

    async def _watch_boards(self) -> None:
        """Watch the boards until the run ends. If a board reports that it cannot take part, or if the fleet takes the
        boards back, end the run as failed.
        """
        version = b""
        while True:
            try:
                fleet = await self._fleet.next_after(version)
            except FedstrataError as error:
                self._supervisor.fail(error)
                return
            version = fleet.version
            if self._offer_id not in {offer.offer_id for offer in fleet.offers}:
                lost = f"the fleet at {self._address} has withdrawn the boards of {self._offer_id}"
                self._supervisor.fail(RunStoppedError(f"{lost}; fedstrata run --resume asks for them again"))
                return
            for state in fleet.boards:
                for run in state.runs:
                    if run.offer_id == self._offer_id and run.state == "failed":
                        self._supervisor.fail(RunStoppedError(f"board {state.board.name}: {run.reason}"))
                        return

    async def stop(self) -> None:
        """End all processes of the run on this machine, and give the boards back, even if this call is cancelled."""
        try:
            await super().stop()
        finally:
            await to_the_end(self._give_back())

    async def _give_back(self) -> None:
        offer_id, self._offer_id = self._offer_id, ""
        try:
            if offer_id:
                await self._fleet.withdraw(offer_id)
        except FedstrataError as error:
            command = f"fedstrata fleet withdraw {self._address} {offer_id}"
            print(f"the boards could not be given back: {error}; {command} frees them", file=sys.stderr)
        finally:
            await self._fleet.close()


def own_host(peer: str) -> str:
    """Return the local address that this machine uses for connections to `peer`. If the peer has several addresses, the
    first one to which this machine has a route is used.

    Raises:
        AddressError: this machine has no route to any address of the peer.
    """
    host, port = split_address(peer)
    reason: str | None = "it has no address"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise AddressError(f"cannot find the fleet at {peer}: {error.strerror}; check the address") from None
    except UnicodeError:  # Python cannot encode the name for DNS
        raise AddressError(f"{quoted(peer)} is not an address: a part is empty or too long; check the dots") from None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # a UDP socket: nothing is sent
                return str(probe.getsockname()[0])
        except OSError as error:
            reason = error.strerror
    raise AddressError(f"no route to the fleet at {peer}: {reason}; check the address")
