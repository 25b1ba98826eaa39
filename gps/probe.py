"""`python -m gps.probe`: print the state of a GPS's run, for helm's test hook and for scripts."""

import argparse
import asyncio
import json
import sys

from fedstrata.errors import (
    EXIT_HANDSHAKE,
    EXIT_NETWORK,
    EXIT_OK,
    EXIT_RUN_FAILED,
    AddressError,
    CertificateError,
    NotServedError,
)
from fedstrata.rpc.client import CallError, Connection
from fedstrata.trust.security import add_operator_option, security_of
from fedstrata.trust.tls_files import GPS, OPERATOR
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub


def parse() -> argparse.Namespace:
    """Return the command-line options, which name the state to wait for."""
    arguments = argparse.ArgumentParser(prog="python -m gps.probe", description=__doc__)
    arguments.add_argument("--gps", required=True, help="Ask the GPS at this host:port.")
    arguments.add_argument("--rounds", type=int, default=0, help="Wait until this many global rounds are done.")
    arguments.add_argument("--completed", action="store_true", help="Wait until the run is completed.")
    add_operator_option(arguments)
    arguments.add_argument("--timeout", type=float, default=60.0, help="Wait at most this many seconds.")
    return arguments.parse_args()


def is_met(status: pb.RunStatus, *, rounds: int, completed: bool) -> bool:
    """Return whether a run has reached the state to wait for: it is completed, or has closed `rounds` global rounds. If
    `completed` is true, closed rounds are not enough.
    """
    return status.phase == "completed" or (status.global_round >= rounds and not completed)


async def probe(options: argparse.Namespace) -> int:
    """Wait until the run has reached the state that the options name, and print the run's state as one JSON line.
    Return the exit code, which says whether the run has reached that state.
    """
    status = pb.RunStatus()
    try:
        security = security_of(options, OPERATOR)
        async with Connection(options.gps, security) as channel:
            watch = RunServiceStub(channel).WatchRun(pb.WatchRunRequest(), timeout=options.timeout, wait_for_ready=True)
            async for status in watch:
                if status.phase == "failed" or is_met(status, rounds=options.rounds, completed=options.completed):
                    break
    except (AddressError, CertificateError, NotServedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except CallError as error:
        if not status.run_id:
            why = await security.why_refused(options.gps, GPS)
            print(f"error: {why or f'no answer from {options.gps}: {error.details()}'}", file=sys.stderr)
            return EXIT_HANDSHAKE if why else EXIT_NETWORK
    print(
        json.dumps({
            "run_id": status.run_id, "phase": status.phase, "reason": status.reason,
            "global_round": status.global_round, "global_rounds": status.global_rounds,
            "clusters": {cluster.home_id: cluster.devices for cluster in status.clusters},
        })
    )  # fmt: skip
    met = status.phase != "failed" and is_met(status, rounds=options.rounds, completed=options.completed)
    return EXIT_OK if met else EXIT_RUN_FAILED


if __name__ == "__main__":
    sys.exit(asyncio.run(probe(parse())))
