"""An LPS when the run is over for a cluster that it still serves: the cluster's devices are told how it ended."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from fedstrata.errors import RunStoppedError
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.server import ERROR_KEY
from fedstrata.trust.names import Peer, device_names
from fedstrata.trust.table import Claim
from fedstrata.v1 import gps_service_pb2 as pb
from lps import agent as agent_module
from lps.agent import LpsAgent
from tests.support.gps_parts import TEXT

CLUSTER = pb.Cluster(cluster_id="lps-0")
GROUPED = pb.FetchClustersResponse(is_grouped=True, plan_version=1, clusters=[CLUSTER])
OVER = pb.FetchClustersResponse(is_grouped=True, plan_version=1, clusters=[CLUSTER], is_over=True)
STOPPED = grpc.aio.AioRpcError(
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.aio.Metadata(),
    grpc.aio.Metadata((ERROR_KEY, "RunStoppedError")),
    "lps-1: the disk is full",
    None,
)
Rounds = Callable[[], Any]


async def conducted(folder: Path, rounds: Rounds, *answers: Any) -> Any:
    """The face that devices of a cluster see at the end, after an LPS with these rounds has heard these answers."""
    experiment = parse_experiment(TEXT, overrides=["deadlines.gps.deadline_s=60"])
    agent = LpsAgent(
        experiment, lps_id="lps-0", gps="127.0.0.1:1", state=folder, metrics=ProcessMetrics("lps"), log=EventLog("test")
    )
    plans, may_answer = list(answers), asyncio.Event()

    async def fetch_clusters(request: pb.FetchClustersRequest, **kwargs: Any) -> pb.FetchClustersResponse:
        if request.known_version:
            await may_answer.wait()
        answer = plans.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast(pb.FetchClustersResponse, answer)

    async def run() -> None:
        asyncio.get_running_loop().call_soon(may_answer.set)
        await rounds()

    server = Mock(awaited=(-1, (), ""))
    session = SimpleNamespace(
        term=0, server=server, run=run, may_lack_state=lambda: False, needs_takeover=lambda: False,
        take_members=lambda cluster: None, close=lambda: None,
    )  # fmt: skip
    agent.__dict__.update(
        _gps=SimpleNamespace(FetchClusters=fetch_clusters, ReportFailure=(failed := AsyncMock())),
        _session=lambda cluster: session,
    )  # fmt: skip
    async with asyncio.timeout(60):
        await agent.run()
    assert agent.clusters["lps-0"] is server
    await agent.close()
    server.failed = failed
    return server


async def raising() -> None:
    raise RunStoppedError("the GPS ended the run")


async def test_devices_of_a_cluster_that_a_completed_run_went_on_without_hear_that_it_is_over(tmp_path: Path) -> None:
    server = await conducted(tmp_path, raising, GROUPED, OVER, OVER)
    server.finish.assert_called_once_with()


async def test_devices_hear_that_the_run_has_stopped_while_another_device_is_waited_for(tmp_path: Path) -> None:
    server = await conducted(tmp_path, asyncio.Event().wait, GROUPED, STOPPED)
    server.finish.assert_called_once_with("lps-0: lps-1: the disk is full")
    told = server.failed.call_args.args[0]
    assert (told.lps_id, told.reason) == ("lps-0", "lps-0: lps-1: the disk is full")


@pytest.mark.parametrize("moves", [True, False])
async def test_where_devices_move_a_round_begins_with_its_plan_however_late_that_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    monkeypatch.setattr(agent_module, "HOLD_S", 0.01)
    schedule = "schedule=[{at: 5s, move: {devices: 0, to: lps-1}}]" if moves else "schedule=[]"
    experiment = parse_experiment(
        TEXT, overrides=["topology={lps: 2}", "method={name: fedavg}", "clock=virtual", schedule]
    )
    metrics, log = ProcessMetrics("lps"), EventLog("test")
    agent = LpsAgent(experiment, lps_id="lps-0", gps="127.0.0.1:1", state=tmp_path, metrics=metrics, log=log)
    hearing = asyncio.ensure_future(agent._until_heard(2))
    done, _ = await asyncio.wait([hearing], timeout=0.3 if moves else 60)
    assert bool(done) != moves
    agent.__dict__.update(_plan_version=2)
    agent.__dict__["_plan_changes"].tell()
    async with asyncio.timeout(60):
        await hearing
    await agent.close()


async def test_a_device_that_comes_before_the_lps_has_heard_of_it_is_waited_for_and_another_cluster_is_not_known(
    tmp_path: Path,
) -> None:
    experiment = parse_experiment(TEXT)
    metrics, log = ProcessMetrics("lps"), EventLog("test")
    agent = LpsAgent(experiment, lps_id="lps-0", gps="127.0.0.1:1", state=tmp_path, metrics=metrics, log=log)
    agent.held_s = 0.05
    known = {"device-000"}
    agent.__dict__.update(_services={"lps-0": SimpleNamespace(session=SimpleNamespace(has_member=known.__contains__))})
    peer = Peer("run-1", tuple(device_names(["device-000", "device-001"])))
    assert await agent.belongs(peer, Claim("device-000", "lps-0"))
    assert not await agent.belongs(peer, Claim("device-001", "lps-0"))
    assert not await agent.belongs(peer, Claim("", "lps-0"))
    assert await agent.belongs(peer, Claim("device-001", "lps-9"))  # the servicer says that it is not served here
    agent.held_s = 30.0
    asking = asyncio.ensure_future(agent.belongs(peer, Claim("device-001", "lps-0")))
    await asyncio.sleep(0)
    known.add("device-001")
    agent.__dict__["_plan_changes"].tell()
    async with asyncio.timeout(60):
        assert await asking
    await agent.close()
