"""Health says ready only when it is, and every process shows what it measures."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest

from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import add_GpsServiceServicer_to_server
from gps.run import Run
from gps.servicer import GpsServicer
from tests.support.programs import Program, http_get
from tests.support.tiers import SMALL, Tiers, small

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LPS_SERVICE = "fedstrata.v1.LpsService"


class GateGps(GpsServicer):
    """A GPS that registers no LPS before the test opens the gate."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.gate = asyncio.Event()

    async def RegisterLps(self, request: pb.RegisterLpsRequest, context: Any) -> pb.RegisterLpsResponse:
        await self.gate.wait()
        return await super().RegisterLps(request, context)


async def test_an_lps_is_ready_once_the_gps_knows_it_and_not_before(tmp_path: Path) -> None:
    servicers = []

    def gated(run: Run) -> GateGps:
        servicers.append(GateGps(run))
        return servicers[0]

    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("clusters: 2", "clusters: auto"))  # else LPSs would be started here
    async with Tiers(small("method.clusters=auto"), tmp_path / "run", gated) as tiers:
        words = ("--experiment", str(file), "--gps", tiers.address, "--lps-id", "lps-0", "--state", str(tmp_path / "s"))
        with Program("lps", *words, log=tmp_path / "log") as lps:
            addresses = await asyncio.to_thread(lps.addresses)
            async with grpc.aio.insecure_channel(addresses["grpc"]) as channel:
                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=LPS_SERVICE))
                states = aiter(watch)
                assert (await anext(states)).status == NOT_SERVING
                assert await asyncio.to_thread(http_get, addresses["http"], "/readyz") == (
                    503,
                    "503 Service Unavailable\n",
                )
                assert (await asyncio.to_thread(http_get, addresses["http"], "/healthz"))[0] == 200
                servicers[0].gate.set()
                assert (await anext(states)).status == SERVING
                assert (await asyncio.to_thread(http_get, addresses["http"], "/readyz"))[0] == 200
                watch.cancel()


async def test_a_server_says_not_serving_for_each_of_its_services_until_it_is_ready() -> None:
    server = RpcServer(ProcessMetrics("gps").links, security=OPEN)
    server.add(add_GpsServiceServicer_to_server, GpsServicer.__new__(GpsServicer), "fedstrata.v1.GpsService")
    await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(server.address) as channel:
        for is_ready, status in ((False, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
            await server.set_ready(is_ready)
            for service in ("", "fedstrata.v1.GpsService"):
                request = health_pb2.HealthCheckRequest(service=service)
                assert (await health_pb2_grpc.HealthStub(channel).Check(request)).status == status
    await server.stop(0)


async def test_of_a_run_that_has_failed_nobody_is_waited_for_any_more(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path / "run") as tiers:
        await tiers.start_devices()
        tiers.metrics.waits({"device-000": 7.0}, 1)
        tiers.run.stop("the building is on fire")
        await tiers.ended()
    shown = generate_latest(tiers.metrics.registry)
    assert b"fedstrata_awaited 0.0" in shown
    assert b"fedstrata_waits_seconds{" not in shown
