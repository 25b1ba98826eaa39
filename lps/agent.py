"""An LPS towards the GPS: it registers, asks for its clusters, runs them, and reports how they ended."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedstrata.datasets import dataset_info
from fedstrata.errors import FedstrataError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.link import CALL_S, HOLD_S, payload_timeout_s
from fedstrata.logs import EventLog
from fedstrata.methods import make_method
from fedstrata.metrics import ProcessMetrics
from fedstrata.models import build_model
from fedstrata.rounds import Identity, ParentCalls, RoundClient, RoundServer
from fedstrata.rpc.client import call_through_upgrade, call_until_answered, open_channel
from fedstrata.rpc.messages import link_bytes_to_proto
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub, RunServiceStub
from lps.cluster import ClusterSession, Surroundings


class LpsAgent:
    """One LPS: its link to the GPS and the sessions of its clusters."""

    def __init__(
        self, experiment: Experiment, *, lps_id: str, gps: str, state: Path, metrics: ProcessMetrics, log: EventLog
    ) -> None:
        self._experiment = experiment
        self._lps_id = lps_id
        self._state = state
        self._metrics = metrics
        self._log = log
        self._channel, counting = open_channel(gps, metrics.links)
        self._gps = GpsServiceStub(counting)
        self._run = RunServiceStub(counting)
        self._model = build_model(experiment.model, dataset_info(experiment.data))
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fold")
        self.clusters: dict[str, RoundServer] = {}
        self.knows_clusters = asyncio.Event()

    async def close(self) -> None:
        """Give up the connection to the GPS and the folding thread."""
        await self._channel.close(None)
        self._executor.shutdown(wait=False)

    async def register(self, address: str) -> None:
        """Make this LPS and its address known to the GPS."""
        request = pb.RegisterLpsRequest(lps_id=self._lps_id, address=address, experiment_sha256=self._experiment.digest)
        await call_through_upgrade(
            lambda: self._gps.RegisterLps(request, timeout=CALL_S + HOLD_S, wait_for_ready=True),
            self._log,
            "RegisterLps",
        )
        self._log.info("registered", lps_id=self._lps_id, address=address)

    async def run(self) -> None:
        """Serve the clusters of this LPS until they are done."""
        try:
            clusters = await self._fetch_clusters()
        except RunStoppedError as error:  # before it came to this LPS; it stays, for whoever stops it, and is idle
            self._log.error("run_stopped", reason=str(error))
            return
        try:
            async with asyncio.TaskGroup() as jobs:
                for cluster in clusters:
                    jobs.create_task(self._serve(self._session(cluster)))
                self.knows_clusters.set()
        except* FedstrataError as errors:
            reason = f"{self._lps_id}: {errors.exceptions[0]}"
            self._log.error("run_stopped", reason=reason)
            for server in self.clusters.values():
                server.finish(reason)
            await call_until_answered(
                lambda: self._run.StopRun(pb.StopRunRequest(reason=reason), timeout=CALL_S), self._log, "StopRun"
            )

    async def _fetch_clusters(self) -> list[pb.Cluster]:
        request = pb.FetchClustersRequest(run_id=self._experiment.run_id, lps_id=self._lps_id)
        while True:
            reply: pb.FetchClustersResponse = await self._call("FetchClusters", request)
            if reply.is_grouped:
                return list(reply.clusters)

    async def _serve(self, session: ClusterSession) -> None:
        report = await session.run()
        report.lps_id = self._lps_id
        await self._report(report, session.final_model.path)

    def _session(self, cluster: pb.Cluster) -> ClusterSession:
        method = make_method(self._experiment.method)
        log = self._log.bind(cluster=cluster.cluster_id)
        identity = Identity(run_id=self._experiment.run_id, child_id=cluster.cluster_id, cluster_id=cluster.cluster_id)
        calls = ParentCalls(
            fetch=self._gps.FetchShared, submit=self._gps.SubmitAggregate, locate=self._gps.LocateUpdate
        )
        shared = self._model.layout.select(self._model.shared)
        link = self._experiment.links.lps_gps
        uplink = RoundClient(calls, identity, shared, link=link, part=method.sums[0], log=log)
        uplink.link_bytes = lambda: link_bytes_to_proto(self._metrics.links.snapshot())
        around = Surroundings(
            experiment=self._experiment,
            model=self._model,
            sum_name=method.sums[0],
            state_folder=self._state,
            metrics=self._metrics,
            executor=self._executor,
        )
        session = ClusterSession(around, cluster, uplink, log)
        session.on_late_devices = self._take_late_devices
        self.clusters[cluster.cluster_id] = session.server
        log.info("cluster_served", devices=len(cluster.members))
        return session

    async def _take_late_devices(self, session: ClusterSession) -> None:
        """Ask again who belongs to a cluster, once the GPS has placed late devices."""
        for cluster in await self._fetch_clusters():
            if self.clusters.get(cluster.cluster_id) is session.server:
                session.members.update({member.device_id: member.num_examples for member in cluster.members})

    async def _report(self, report: pb.ReportHeader, model: Path) -> None:
        with model.open("rb") as file:
            report.model_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        timeout_s = payload_timeout_s(model.stat().st_size)
        await call_until_answered(
            lambda: self._gps.SubmitReport(
                _report_parts(report, model, self._metrics), timeout=timeout_s, wait_for_ready=True
            ),
            self._log,
            "SubmitReport",
        )
        self._log.info("reported", cluster=report.cluster_id, model_sha256=report.model_sha256)

    async def _call(self, name: str, request: Any) -> Any:
        call = getattr(self._gps, name)
        return await call_until_answered(
            lambda: call(request, timeout=CALL_S + HOLD_S, wait_for_ready=True), self._log, name
        )


async def _report_parts(report: pb.ReportHeader, model: Path, metrics: ProcessMetrics) -> AsyncIterator[pb.ReportPart]:
    del report.link_bytes[:]
    report.link_bytes.extend(link_bytes_to_proto(metrics.links.snapshot()))
    yield pb.ReportPart(header=report)
    with model.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield pb.ReportPart(data=data)
