"""The pod of a run's Job ends as the run does: through restarts of the GPS, and never with the run of another Job."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceServicer, add_RunServiceServicer_to_server

BEFORE = pb.RunStatus(job="demo-1", phase="failed", reason="of the run before")
TRAINING = pb.RunStatus(job="demo-2", phase="training", global_round=3)


class Told(RunServiceServicer):
    """A GPS that tells one list of statuses to each call, and then breaks off, as if it was killed."""

    def __init__(self, *lives: list[pb.RunStatus], ends_with: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self._lives = iter(lives)
        self._ends_with = ends_with

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> AsyncIterator[pb.RunStatus]:
        for status in next(self._lives):
            yield status
        await context.abort(self._ends_with, "killed")


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        (pb.RunStatus(job="demo-2", phase="completed"), 0, '"phase": "completed"'),
        (pb.RunStatus(job="demo-2", phase="failed", reason="the quorum is 10"), 4, "error: the quorum is 10"),
    ],
)
async def test_it_ends_with_its_own_run_after_a_lost_gps_and_the_run_of_another_job(
    end: pb.RunStatus, code: int, last: str
) -> None:
    follower = await _follow(Told([BEFORE], [TRAINING], [], [TRAINING, end]))
    assert follower.returncode == code
    assert last in follower.stderr.splitlines()[-1]
    assert follower.stderr.count('"phase": "training"') == 1
    assert "works on the run of another Job" in follower.stderr


async def test_a_watch_that_ends_after_its_time_is_not_a_gps_that_is_away() -> None:
    end = pb.RunStatus(job="demo-2", phase="completed")
    follower = await _follow(Told([TRAINING], [TRAINING, end], ends_with=grpc.StatusCode.DEADLINE_EXCEEDED))
    assert follower.returncode == 0
    assert "gps_away" not in follower.stderr


async def _follow(gps: Told) -> "subprocess.CompletedProcess[str]":
    server = grpc.aio.server()
    add_RunServiceServicer_to_server(gps, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    follower = await _run([sys.executable, "-m", "gps.kubernetes.job", "--gps", f"127.0.0.1:{port}"])
    await server.stop(None)
    return follower


async def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    import asyncio

    environment = {**os.environ, "FEDSTRATA_JOB": "demo-2"}
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
