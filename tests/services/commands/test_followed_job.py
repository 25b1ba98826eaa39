"""The pod of a run's Job ends as the run does: through restarts of the GPS, and never with the run of another Job."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import RunServiceServicer, add_RunServiceServicer_to_server
from gps.kubernetes.job import follow, parse

BEFORE = pb.RunStatus(job="demo-1", phase="failed", reason="of the run before")
TRAINING = pb.RunStatus(job="demo-2", phase="training", global_round=3)
COMPLETED = pb.RunStatus(job="demo-2", phase="completed")


class Told(RunServiceServicer):
    """A GPS that tells one list of statuses to each call, and then breaks off, as if it was killed."""

    def __init__(self, *lives: list[pb.RunStatus], ends_with: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self._lives = iter(lives)
        self._ends_with = ends_with

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> AsyncIterator[pb.RunStatus]:
        for status in next(self._lives):
            yield status
        await context.abort(self._ends_with, "killed")


@asynccontextmanager
async def served(gps: Told) -> AsyncIterator[list[str]]:
    """The options of a follower of this GPS."""
    server = grpc.aio.server()
    add_RunServiceServicer_to_server(gps, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield ["--gps", f"127.0.0.1:{port}"]
    await server.stop(None)


async def test_it_ends_with_its_own_run_after_a_lost_gps_and_the_run_of_another_job(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    async with served(Told([BEFORE], [TRAINING], [], [TRAINING, COMPLETED])) as words:
        monkeypatch.setattr(sys, "argv", ["job", *words])
        assert await follow(parse(), "demo-2") == 0
    said = [str(getattr(record, "fields", {})) for record in caplog.records]
    assert [line for line in said if "'phase'" in line][-1].endswith("'phase': 'completed'}")
    assert "".join(said).count("'phase': 'training'") == 1
    assert "works on the run of another Job" in "".join(said)


async def test_a_watch_that_ends_after_its_time_is_not_a_gps_that_is_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    ended = grpc.StatusCode.DEADLINE_EXCEEDED
    async with served(Told([TRAINING], [TRAINING, COMPLETED], ends_with=ended)) as words:
        monkeypatch.setattr(sys, "argv", ["job", *words])
        assert await follow(parse(), "demo-2") == 0
    assert "gps_away" not in caplog.messages


async def test_the_process_of_a_failed_run_ends_with_its_reason_and_exit_code_4() -> None:
    failed = pb.RunStatus(job="demo-2", phase="failed", reason="the quorum is 10")
    async with served(Told([BEFORE], [TRAINING, failed])) as words:
        follower = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "gps.kubernetes.job", *words], check=False,
            env={**os.environ, "FEDSTRATA_JOB": "demo-2"}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert follower.returncode == 4
    assert follower.stderr.splitlines()[-1] == "error: the quorum is 10"
