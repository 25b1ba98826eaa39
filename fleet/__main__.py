"""`python -m fleet`: the service that offers runs to the boards of a fleet."""

import argparse
import asyncio

from fedstrata.errors import CertificateError
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter
from fedstrata.process.process import Arguments, folder, program_arguments, run_process, say_listening
from fedstrata.rpc.server import RpcServer
from fedstrata.store import claim
from fedstrata.trust.files import FLEET, load_tls
from fedstrata.trust.guard import guard_of
from fedstrata.trust.names import Peer
from fedstrata.trust.table import Claim
from fedstrata.v1.fleet_service_pb2_grpc import add_FleetServiceServicer_to_server
from fleet.offers import Fleet
from fleet.servicer import FleetServicer

log = EventLog("fleet")


class _NoClusters:
    """Refuse every claim to a cluster, because a fleet has no clusters."""

    async def belongs(self, peer: Peer, claim: Claim) -> bool:
        return False


def options_of_process() -> Arguments:
    """Return the options of the fleet's service."""
    arguments = program_arguments("fleet", "The service of a fleet hands runs out to boards, which call it.")
    arguments.option("listen", "Serve boards and operators at this host:port.", default="127.0.0.1:0")
    arguments.option("state", "Keep boards and offers in this folder.", required=True)
    return arguments


async def main(options: argparse.Namespace, stop: asyncio.Event) -> int | None:
    """Serve the fleet until a stop signal."""
    tls = load_tls(options.tls, FLEET, revoked=options.revoked, server_domain=options.server_domain)
    if tls is None:
        raise CertificateError("a fleet needs certificates; give --tls (fedstrata certs issue fleet makes one)")
    state = folder(options.state)
    claim(state)
    fleet = Fleet(state)
    server = RpcServer(LinkMeter(), tls=tls, guard=guard_of(tls, _NoClusters(), lambda reason: None))
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
