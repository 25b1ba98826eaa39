"""A run with GPS and LPSs on this machine, and its devices on the boards of a fleet."""

import asyncio
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from emulator.boards.client import FleetClient, FleetPlace
from emulator.boards.loans import offer_of, shares
from emulator.local.faults import refuse_faults
from emulator.local.local import LocalBackend
from fedstrata.errors import AddressError, ExperimentError, FedstrataError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.process.address import joined_address, split_address
from fedstrata.process.owned import Restart
from fedstrata.store import write_aside


class FleetBackend(LocalBackend):
    """Take boards for a run, and give them back at its end, however the run ends.

    GPS and LPSs listen at this machine's address on the way to the fleet.
    """

    def __init__(
        self, folder: Path, *, device_processes: int | None, on_restart: Callable[[Restart], None], has_tls: bool,
        fleet: FleetPlace, most_boards: int | None,
    ) -> None:  # fmt: skip
        if not has_tls:
            raise ExperimentError("boards get a certificate of each run; leave out --no-tls")
        at = {"grpc": joined_address(own_host(fleet.address), 0)}
        super().__init__(
            folder, device_processes=device_processes, on_restart=on_restart, has_tls=has_tls, servers_at=at
        )
        self._fleet = FleetClient(fleet)
        self._most_boards = most_boards
        self._offer_file = folder / "state" / "offer"
        self._offer_id = ""  # once boards are asked

    async def start(self, experiment: Experiment) -> str:
        """Start the GPS, and offer the run to boards. Return the GPS's address."""
        refuse_faults(experiment, "a run on a fleet")
        await self._fleet.reach()
        return await super().start(experiment)

    async def _start_devices(self, experiment: Experiment, gps: str) -> None:
        """Offer the run to the boards that it needs."""
        if self._certificates is None:
            raise RunStoppedError("the run has no certificates")
        boards = shares(experiment, await self._fleet.everything(), self._most_boards)
        self._offer_id = self._read_offer_id(experiment)
        offer = offer_of(self._offer_id, experiment, gps, self._certificates.authority(), boards)
        await self._fleet.offer(offer)
        self._watches.add(asyncio.create_task(self._watch_boards()))

    def _read_offer_id(self, experiment: Experiment) -> str:
        """Return the id of the run's offer. A continued run has the same id, and finds its state on the boards."""
        if not self._offer_file.exists():
            with write_aside(self._offer_file) as file:
                file.write(f"{experiment.run_id}-{secrets.token_hex(4)}".encode())
        return self._offer_file.read_text(encoding="utf-8")

    async def _watch_boards(self) -> None:
        """Let the run fail if one of its boards cannot take part."""
        version = b""
        while True:
            try:
                fleet = await self._fleet.next_after(version)
            except FedstrataError as error:
                self._supervisor.fail(error)
                return
            version = fleet.version
            for state in fleet.boards:
                for run in state.runs:
                    if run.offer_id == self._offer_id and run.state == "failed":
                        self._supervisor.fail(RunStoppedError(f"board {state.board.name}: {run.reason}"))
                        return

    async def stop(self) -> None:
        """End all processes of this machine, and give the boards back."""
        await super().stop()
        if self._offer_id:
            try:
                await self._fleet.withdraw(self._offer_id)
            except FedstrataError as error:
                print(f"the boards are not given back: {error}; fedstrata fleet withdraw does it", file=sys.stderr)
        await self._fleet.close()


def own_host(peer: str) -> str:
    """Return this machine's address on the way to a peer. Raises AddressError if there is no way."""
    host, port = split_address(peer)
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
    except OSError as error:
        raise AddressError(f"no way to the fleet at {peer}: {error.strerror}") from None
    raise AddressError(f"no way to the fleet at {peer}")
