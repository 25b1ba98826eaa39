"""`python -m fleet`: the service that offers runs to the boards of a fleet."""

import argparse
import asyncio

from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.process.process import Arguments, folder, program_arguments, run_process, say_listening
from fedstrata.rpc.server import RpcServer
from fedstrata.store import claim
from fedstrata.trust.security import tls_security_of, with_tls_options
from fedstrata.trust.tls_files import FLEET
from fedstrata.v1.fleet_service_pb2_grpc import add_FleetServiceServicer_to_server
from fleet.offers import Fleet
from fleet.servicer import FleetServicer

log = EventLog("fleet")


def options_of_process() -> Arguments:
    """Return the options of the fleet's service."""
    description = "The service of a fleet hands runs out to boards, which call it."
    arguments = with_tls_options(program_arguments("fleet", description))
    arguments.option("listen", "Serve boards and operators at this host:port.", default="127.0.0.1:0")
    arguments.option("state", "Keep boards and offers in this folder.", required=True)
    return arguments


async def main(options: argparse.Namespace, stop: asyncio.Event) -> int | None:
    """Serve the fleet until a stop signal."""
    security = tls_security_of(options, FLEET, issue="fleet")
    state = folder(options.state)
    claim(state)
    fleet = Fleet(state)
    server = RpcServer(LinkMeter(), security=security)
    server.add(add_FleetServiceServicer_to_server, FleetServicer(fleet, log), "fedstrata.v1.FleetService")
    await server.start(options.listen)
    say_listening(grpc=server.address)
    await server.set_ready()
    log.info("serving", boards=len(fleet.boards), offers=len(fleet.offers))
    await stop.wait()
    await server.stop()
    return None


if __name__ == "__main__":
    run_process(options_of_process().parse_args(), main)
