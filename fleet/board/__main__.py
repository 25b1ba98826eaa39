"""`python -m fleet.board`: the agent of a board in a fleet."""

import argparse
import asyncio
import os
import platform
from pathlib import Path

from fedstrata.errors import CertificateError, ExperimentError
from fedstrata.process.logs import EventLog
from fedstrata.process.openblas import openblas_kernel
from fedstrata.process.process import Arguments, first_of, folder, program_arguments, run_process
from fedstrata.rpc.client import Connection
from fedstrata.store import claim
from fedstrata.trust.board_keys import key_of
from fedstrata.trust.security import tls_security_of, with_tls_options
from fedstrata.trust.tls_files import FLEET
from fedstrata.v1 import fleet_service_pb2 as pb
from fedstrata.v1.fleet_service_pb2_grpc import FleetServiceStub
from fleet.board.agent import BoardAgent
from fleet.board.runs import Owned

log = EventLog("board")


def options_of_process() -> Arguments:
    """Return the options of a board's agent."""
    description = "The agent of a board starts a device for each run of the fleet."
    arguments = with_tls_options(program_arguments("fleet.board", description))
    arguments.option("fleet", "Connect to the service of the fleet at this host:port.", required=True)
    arguments.option("state", "Keep the board's key, and the state of its runs, in this folder.", required=True)
    arguments.option(
        "data-folder", "Give runs with data.name folder the data in this folder, not in the folder that they name."
    )
    arguments.option("runs", "Take part in this many runs at a time.", default="1")
    arguments.option("own-code", "Allow experiments to use this code on the board: module:name, separated by commas.")
    return arguments


async def main(options: argparse.Namespace, stop: asyncio.Event) -> int | None:
    """Run the agent of a board until a stop signal. Then return None."""
    if not options.runs.isdecimal() or not int(options.runs):
        raise ExperimentError(f"--runs must be a number of runs, 1 or more, not {options.runs!r}")
    security = tls_security_of(options, issue="device NAME")
    me = security.tls.me
    if [(name.role, name.last) for name in me.names] != [("device", "")]:
        raise CertificateError(
            f"--tls {options.tls}: the certificate names {me}; give a certificate that names one device"
        )
    state = folder(options.state)
    claim(state)
    private, public = key_of(state)
    data = Path(options.data_folder).resolve() if options.data_folder else None
    board = pb.Board(
        name=me.names[0].id,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        processor=f"{platform.machine()} {openblas_kernel()}".strip(),
        data=str(data or ""),
        public_key=public,
        most_runs=int(options.runs),
    )
    own_code = frozenset(name.strip() for name in (options.own_code or "").split(","))
    owned = Owned(key=private, data=data, own_code=own_code)
    connection = Connection(options.fleet, security, FLEET)
    agent = BoardAgent(board, owned, state, FleetServiceStub(connection.channel), log)
    log.info("serving", board=board.name, fleet=options.fleet, processor=board.processor, runs=board.most_runs)

    async def work() -> int:
        await agent.go_on()
        await connection.until_reached(log)
        return await agent.serve()

    try:
        return await first_of(stop, work())
    finally:
        await agent.stop()
        await connection.close()


if __name__ == "__main__":
    run_process(options_of_process().parse_args(), main)
