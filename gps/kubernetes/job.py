"""`python -m gps.kubernetes.job`: wait for the end of a run, and exit with the run's exit code. The pod of the run's
Job executes this command.
"""

import argparse
import asyncio
import os
import sys
from contextlib import suppress

from fedstrata.errors import EXIT_OK, EXIT_RUN_FAILED, AddressError, CertificateError, NotServedError
from fedstrata.process.logs import EventLog, configure_logs
from fedstrata.process.waiting import Backoff
from fedstrata.rpc.client import CallError, Connection
from fedstrata.trust.security import add_operator_option, security_of
from fedstrata.trust.tls_files import OPERATOR
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceStub

WATCH_S = 600.0  # the longest duration of one call that watches the run; a new call follows


def parse() -> argparse.Namespace:
    """Return the command-line options. The environment variable FEDSTRATA_JOB has the name of the Job."""
    arguments = argparse.ArgumentParser(prog="python -m gps.kubernetes.job", description=__doc__)
    arguments.add_argument("--gps", required=True, help="Ask the GPS at this host:port.")
    add_operator_option(arguments)
    return arguments.parse_args()


async def follow(options: argparse.Namespace, job: str) -> int:
    """Log the phases of a Job's run until the run ends. Return the exit code of the run.

    If the GPS does not answer, or still works on the run of another Job, ask again. Kubernetes is then about to start a
    GPS for this Job's run.
    """
    log, backoff = EventLog("run"), Backoff()
    phase = waits_for = ""
    while True:
        why, is_there = f"the GPS at {options.gps} still works on the run of another Job", False
        try:
            async with Connection(options.gps, security_of(options, OPERATOR)) as channel:
                async for status in RunServiceStub(channel).WatchRun(
                    pb.WatchRunRequest(), timeout=WATCH_S, wait_for_ready=True
                ):
                    if status.job != job:
                        break
                    is_there = True
                    if status.phase != phase:
                        phase, waits_for = status.phase, ""
                        log.info("phase", run_id=status.run_id, phase=phase)
                    if phase == "completed":
                        return EXIT_OK
                    if phase == "failed":
                        print(f"error: {status.reason}", file=sys.stderr)
                        return EXIT_RUN_FAILED
        except (CallError, CertificateError, NotServedError) as error:
            if is_there and isinstance(error, CallError) and error.code().name == "DEADLINE_EXCEEDED":
                continue  # the call has ended after WATCH_S, and the GPS is not away
            why = " ".join(str(error.details() if isinstance(error, CallError) else error).split())
        if why != waits_for:
            log.info("gps_away", reason=why)
        waits_for = why
        await backoff.pause()


if __name__ == "__main__":
    configure_logs()
    with suppress(KeyboardInterrupt):
        try:
            sys.exit(asyncio.run(follow(parse(), os.environ.get("FEDSTRATA_JOB", ""))))
        except AddressError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
