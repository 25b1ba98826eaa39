"""Follow a run from its first status to its end. The run may be in processes on this machine or in pods."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from emulator.runs.run_client import RunClient
from fedstrata.errors import FedstrataError, RunStoppedError
from fedstrata.process.child_processes import REASON_CHARACTERS
from fedstrata.v1 import gps_service_pb2 as pb

# How long the GPS may take to end a run in which a part has failed, and to send the reason.
FAILURE_DEADLINE_S = 10.0
Show = Callable[[pb.RunStatus], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Hold how a run ended: its last status, and the error to raise if the run has no result."""

    status: pb.RunStatus
    failure: FedstrataError | None


class Backend(Protocol):
    """Define what `follow` needs from a backend. A backend runs the three tiers as processes on this machine, or in
    pods.
    """

    async def scale_lps(self, replicas: int) -> None:
        """Start LPSs until at least this number runs. LPSs that already run are not stopped."""

    async def failure(self) -> BaseException:
        """Wait until a part of the run fails for good. Return this failure as an error."""


async def follow(client: RunClient, backend: Backend, show: Show) -> Outcome:
    """Follow a run until it has ended. Show each status, and start the LPSs that the run requests. Return how the run
    ended.

    Raises:
        FedstrataError: a part of the run failed, and the GPS did not report the reason.
    """
    watching = asyncio.create_task(_watch_to_the_end(client, backend, show))
    failing = asyncio.create_task(backend.failure())
    try:
        await asyncio.wait({watching, failing}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            return _outcome(watching.result())
        return await _end_of_failed(client, watching, failing.result())
    finally:
        watching.cancel()
        failing.cancel()


async def _watch_to_the_end(client: RunClient, backend: Backend, show: Show) -> pb.RunStatus:
    """Return the last status of a run, which says that the run has a record. If a failed run writes no record in time,
    return its newest status.
    """
    status = pb.RunStatus()
    try:
        async with asyncio.timeout(None) as record_deadline:
            async for status in client.watch():
                show(status)
                if status.has_record:
                    return status
                if status.phase == "failed" and record_deadline.when() is None:
                    record_deadline.reschedule(asyncio.get_running_loop().time() + FAILURE_DEADLINE_S)
                if status.lps_wanted:
                    await backend.scale_lps(status.lps_wanted)
    except TimeoutError:
        return status
    raise RunStoppedError("the GPS ended the stream of states before the run ended; see the GPS's log")


async def _end_of_failed(client: RunClient, watching: asyncio.Task[pb.RunStatus], cause: BaseException) -> Outcome:
    """Stop the run after a part of it failed. Return how the run ended according to the GPS. If the GPS does not answer
    in time, raise `cause`, the failure of the part.
    """
    reason = " ".join(str(cause).split())[:REASON_CHARACTERS]
    try:
        async with asyncio.timeout(FAILURE_DEADLINE_S):
            await client.stop_run(reason)
            status = await watching
    except (FedstrataError, TimeoutError):
        raise cause from None
    # The GPS may have ended the run before. The failure here is then only a consequence.
    if status.phase == "failed" and status.reason == reason and isinstance(cause, FedstrataError):
        return Outcome(status=status, failure=cause)
    return _outcome(status)


def _outcome(status: pb.RunStatus) -> Outcome:
    failed = status.phase == "failed"
    return Outcome(status=status, failure=RunStoppedError(status.reason or "the run failed") if failed else None)
