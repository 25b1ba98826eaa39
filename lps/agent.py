"""An LPS towards the GPS: it registers, asks which clusters are its own, runs them, and reports how they ended."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedstrata.clock.clocks import clock_of
from fedstrata.clock.presence import devices_come_to_others
from fedstrata.datasets import dataset_info
from fedstrata.errors import FedstrataError, NotAllowedError
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.models import build_model
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.sleeping import CALL_S, HOLD_S, PATIENCE_S, Changes, hold_s, payload_timeout_s
from fedstrata.rounds import Identity, ParentCalls, ParentStream, RoundClient, RoundServer
from fedstrata.rounds.mask_keys import CheckKey
from fedstrata.rpc.answers import bytes_of
from fedstrata.rpc.client import ask, call_through_upgrade, call_until_answered, open_channel, until_reached
from fedstrata.rpc.messages import link_bytes_from_proto, link_bytes_to_proto
from fedstrata.streams.streams import streams_of
from fedstrata.trust.files import GPS, TlsFiles
from fedstrata.trust.names import Peer
from fedstrata.trust.table import Claim
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from lps.kept.cluster import ClusterSession, LpsParts
from lps.kept.state import newest_reports
from lps.kept.takeover import ModelSearch
from lps.spanning.session import SpanningSession, model_of_plan
from lps.upward import bundle, report_parts
from lps.waits import Waits


@dataclass
class _Service:
    """One cluster as this LPS serves it in one term."""

    session: ClusterSession | SpanningSession
    job: "asyncio.Task[None] | None" = None
    is_open: bool = False  # whether its rounds have begun


class LpsAgent:
    """One LPS: its link to the GPS and the sessions of its clusters."""

    def __init__(
        self, experiment: Experiment, *, lps_id: str, gps: str, state: Path, metrics: ProcessMetrics, log: EventLog,
        tls: TlsFiles | None = None,
    ) -> None:  # fmt: skip
        self._experiment = experiment
        self._lps_id, self._state = lps_id, state
        self._metrics = metrics
        self._log = log
        self._channel, counting = open_channel(gps, metrics.links, tls)
        self._until_gps_reached = partial(until_reached, self._channel, gps, tls, GPS, log)
        self._gps = GpsServiceStub(counting)
        model = build_model(experiment.model, dataset_info(experiment.data))
        self._method = make_method(experiment)
        metrics.links.questions = frozenset(question.name for question in self._method.questions())
        self._around = LpsParts(
            experiment=experiment,
            method=self._method,
            streams=streams_of(experiment, self._method, model),
            model=model,
            state_folder=state,
            metrics=metrics,
            executor=ThreadPoolExecutor(1, thread_name_prefix="fold"),
            check_key=_check_of(experiment, tls),
        )
        self._services: dict[str, _Service] = {}
        self.held_s = hold_s(experiment.device_count)  # how long devices' calls are held back
        self._plan_wait_s = None if devices_come_to_others(experiment) else HOLD_S
        self._plan_version = 0
        self._planned = 0, 0  # how many global rounds have a plan of what devices answered in them; when the newest was
        self._plan_changes = Changes()
        self._told: answers_pb2.Answer | None = None  # to all devices, where clusters have LPSs of their own
        self.clusters: dict[str, RoundServer | ModelSearch] = {}
        self.waits = Waits(self.clusters)
        self.knows_clusters = asyncio.Event()
        self._has_heard = False  # of its clusters, or that there are none yet
        self._is_over = False

    @property
    def model_bytes(self) -> int:
        """The size of a model as float32."""
        return self._around.streams.travelling.float32_bytes

    @property
    def has_its_models(self) -> bool:
        """Whether a round of each of its clusters is open here; until then only the devices may hold their models.

        True as well before the devices are grouped, and when the run is over.
        """
        return self._is_over or (self._has_heard and all(service.is_open for service in self._services.values()))

    async def close(self) -> None:
        """Give up the connection to the GPS and the folding thread."""
        await self._channel.close(None)
        self._around.executor.shutdown(wait=False)

    async def register(self, address: str) -> None:
        """Make this LPS and its address known to the GPS. Raises HandshakeError where they do not trust each other."""
        await self._until_gps_reached()
        request = pb.RegisterLpsRequest(lps_id=self._lps_id, address=address, experiment_sha256=self._experiment.digest)
        reply = await call_through_upgrade(
            lambda: self._gps.RegisterLps(request, timeout=PATIENCE_S, wait_for_ready=True),
            self._log,
            "RegisterLps",
        )
        self._has_heard = not reply.is_grouped
        self._log.info("registered", lps_id=self._lps_id, address=address)

    async def run(self) -> None:
        """Serve the clusters that the GPS gives this LPS, as they come and go, until the run is over."""
        await asyncio.to_thread(self._recall_link_bytes)
        telling = asyncio.ensure_future(self.waits.tell(lambda: self._ask_clusters(0)))
        try:
            async with asyncio.TaskGroup() as jobs:
                async for clusters in self._plans():
                    self._follow(clusters, jobs)
        except* FedstrataError as errors:
            await self._give_up(errors.exceptions[0])
        finally:
            telling.cancel()
            self._is_over = True

    async def _give_up(self, error: BaseException) -> None:
        """Tell devices and the GPS that this LPS cannot go on, and why.

        Raises:
            NotAllowedError: the GPS hears this LPS no more; then it lets its devices go to another, for which they ask
                the GPS.
        """
        if isinstance(error, NotAllowedError):
            for cluster_id in list(self._services):
                self._drop(cluster_id)
            raise error
        reason = f"{self._lps_id}: {error}"
        self._log.error("run_stopped", reason=reason)
        for service in self._services.values():
            service.session.server.finish(reason)
        failure = pb.ReportFailureRequest(run_id=self._experiment.run_id, lps_id=self._lps_id, reason=reason)
        await call_until_answered(lambda: self._gps.ReportFailure(failure, timeout=CALL_S), self._log, "ReportFailure")

    def _recall_link_bytes(self) -> None:
        """Go on counting from where an earlier life stood; each report has all that the LPS had counted by then."""
        for report in newest_reports(self._state / self._experiment.run_id):
            self._metrics.links.go_on_from(link_bytes_from_proto(report.link_bytes))

    # --- what the GPS gives it to serve -------------------------------------------------------

    async def _plans(self) -> AsyncIterator[list[pb.Cluster]]:
        """The clusters of this LPS, each time there is something new, until the run is over.

        Raises:
            RunStoppedError: it has ended without a result; devices are told, and this LPS stays for whoever stops it.
        """
        while True:
            reply = await self._ask_clusters(self._plan_version)
            if reply.is_over:
                for cluster_id in [name for name, service in self._services.items() if not service.is_open]:
                    self._leave_out(cluster_id)
                return
            if reply.is_grouped and reply.plan_version != self._plan_version:
                self._told = reply.told if reply.HasField("told") else None
                yield list(reply.clusters)
                self._plan_version, self._planned = reply.plan_version, (reply.planned_rounds, reply.planned_ns)
                self._has_heard = True
                self.knows_clusters.set()
                self._plan_changes.tell()

    async def _ask_clusters(self, known_version: int) -> pb.FetchClustersResponse:
        request = pb.FetchClustersRequest(
            run_id=self._experiment.run_id,
            lps_id=self._lps_id,
            known_version=known_version,
            waits=self.waits.now(),
        )
        reply: pb.FetchClustersResponse = await ask(self._gps, "FetchClusters", request, self._log)
        return reply

    async def _until_heard(self, plan_version: int) -> None:
        """Wait to have heard of a plan that the GPS opened a round with: for ever where devices move or join."""
        await self._plan_changes.wait_until(lambda: self._plan_version >= plan_version, self._plan_wait_s)

    async def _until_planned(self, global_round: int) -> None:
        """Wait until the plan of a global round is made of what devices have answered in it, however long."""
        await self._plan_changes.wait_until(lambda: self._planned[0] > global_round, None)

    async def belongs(self, peer: Peer, claim: Claim) -> bool:
        """Whether a device is of the cluster that it speaks for; one may be here before this LPS has heard of it.

        True where there is no such cluster here: the servicer has its own word for that.
        """
        return await self._plan_changes.wait_until(lambda: self._has_member(claim), self.held_s if claim.id else 0)

    def _has_member(self, claim: Claim) -> bool:
        service = self._services.get(claim.cluster_id or "")
        return service is None or service.session.has_member(claim.id or "")

    def _follow(self, clusters: list[pb.Cluster], jobs: asyncio.TaskGroup) -> None:
        """Begin with what is new or to be begun again, drop what is not this LPS's, take who belongs to the rest."""
        given = {cluster.cluster_id: cluster for cluster in clusters}
        for name in [n for n, service in self._services.items() if not service.session.goes_on_with(given.get(n))]:
            self._drop(name)
        for cluster in clusters:
            known = self._services.get(cluster.cluster_id)
            if known is not None:
                known.session.take_members(cluster)
            else:
                session = self._session(cluster)
                self._services[cluster.cluster_id] = service = _Service(session)
                if not session.may_lack_state():  # devices that come at once are held until the first round is open
                    self.clusters[cluster.cluster_id] = session.server
                service.job = jobs.create_task(self._serve(cluster.cluster_id, service))

    def _drop(self, cluster_id: str) -> None:
        """Serve a cluster no more: its devices are told to ask the GPS again."""
        service = self._services.pop(cluster_id)
        face = self.clusters.pop(cluster_id, None)
        if face is not None:
            face.release()
        if service.job is not None and service.job is not asyncio.current_task():
            service.job.cancel()
        self._log.info("cluster_dropped", cluster=cluster_id, term=service.session.term)

    def _leave_out(self, cluster_id: str) -> None:
        """Tell the devices of a cluster that the run is over: it was completed without them, who came too late."""
        service, face = self._services[cluster_id], self.clusters.get(cluster_id)
        service.session.server.finish()
        self.clusters[cluster_id] = service.session.server
        if isinstance(face, ModelSearch):
            face.release()
        if service.job is not None and service.job is not asyncio.current_task():
            service.job.cancel()
        self._log.warning("cluster_left_out", cluster=cluster_id, term=service.session.term)

    # --- one cluster --------------------------------------------------------------------------

    async def _serve(self, cluster_id: str, service: _Service) -> None:
        session = service.session
        try:
            if isinstance(session, ClusterSession) and await asyncio.to_thread(session.needs_takeover):
                gathering = self.clusters[cluster_id] = session.gathering()
                await session.take_over(gathering)
                gathering.release()
            self.clusters[cluster_id], service.is_open = session.server, True
            report = await session.run()
            report.lps_id, report.term = self._lps_id, session.term
            await self._report(report, session.final_model)
        except FedstrataError as error:
            reply = await self._what_holds_now()
            if reply is None or (_has(reply, cluster_id, session.term) and not reply.is_over):
                raise
            self._log.warning("cluster_lost", cluster=cluster_id, reason=str(error))
            if self._services.get(cluster_id) is service:
                (self._leave_out if reply.is_over else self._drop)(cluster_id)
        finally:
            session.close()

    async def _what_holds_now(self) -> pb.FetchClustersResponse | None:
        """What an LPS that has trouble with a cluster may have missed: it stood still for long, or is refused."""
        try:
            return await self._ask_clusters(0)
        except FedstrataError:
            return None

    def _session(self, cluster: pb.Cluster) -> ClusterSession | SpanningSession:
        log = self._log.bind(cluster=cluster.cluster_id)
        uplink = self._uplink(cluster, log)
        log.info("cluster_served", devices=len(cluster.members), term=cluster.term)
        if not self._around.streams.spans:
            session = ClusterSession(self._around, cluster, uplink, log, self._told)
            session.on_plan = self._until_heard
            return session
        spanning = SpanningSession(self._around, cluster, uplink, log)
        spanning.on_plan, spanning.on_planned = self._until_heard, self._until_planned
        spanning.planned_rounds, spanning.planned_ns = lambda: self._planned[0], lambda: self._planned[1]

        async def submit(global_round: int, answers: Mapping[int, answers_pb2.Answer], answered_ns: int) -> None:
            await self._submit_answers(uplink, global_round, answers, answered_ns)

        spanning.submit_answers = submit
        return spanning

    def _uplink(self, cluster: pb.Cluster, log: EventLog) -> RoundClient:
        """What speaks for a cluster to the GPS."""
        name = cluster.cluster_id
        identity = Identity(
            run_id=self._experiment.run_id, child_id=name, cluster_id=name, lps_id=self._lps_id, term=cluster.term
        )
        largest = 2 * self._around.streams.travelling.float32_bytes * max(1, cluster.clusters)  # exact sums
        attended = ParentStream(self._gps.Attend)
        calls = ParentCalls(
            fetch=attended.fetch,
            submit=self._gps.SubmitAggregate,
            locate=self._gps.LocateUpdate,
            exchange=attended.exchange,
            close=attended.close,
            clock=clock_of(self._experiment).uplink(name, largest),
        )
        link = self._experiment.links.lps_gps
        return RoundClient(
            calls,
            identity,
            self._around.streams.everywhere,
            link=link,
            log=log,
            accepts_model=partial(model_of_plan, self._around) if self._around.streams.spans else None,
            link_bytes=lambda: link_bytes_to_proto(self._metrics.links.snapshot()),
        )

    async def _submit_answers(
        self, uplink: RoundClient, global_round: int, answers: Mapping[int, answers_pb2.Answer], answered_ns: int
    ) -> None:
        """Tell the GPS what the devices of an LPS have answered in a global round, and when on the virtual clock."""
        size = bytes_of(answers)
        timeout_s = payload_timeout_s(size, PATIENCE_S) + uplink.clock.on_link_s(size)
        await call_until_answered(
            lambda: self._gps.SubmitAnswers(
                bundle(uplink.identity, global_round, answers, answered_ns), timeout=timeout_s, wait_for_ready=True
            ),
            self._log,
            "SubmitAnswers",
        )

    async def _report(self, report: pb.ReportHeader, model: Path | None) -> None:
        """Tell the GPS how a cluster has ended, with its model unless the GPS has that."""
        timeout_s = payload_timeout_s(model.stat().st_size if model else 0, PATIENCE_S)
        await call_until_answered(
            lambda: self._gps.SubmitReport(
                report_parts(report, model, self._metrics), timeout=timeout_s, wait_for_ready=True
            ),
            self._log,
            "SubmitReport",
        )
        self._log.info("reported", cluster=report.cluster_id)


def _check_of(experiment: Experiment, tls: TlsFiles | None) -> CheckKey:
    """Return what checks devices' keys for masks; the package that it needs is loaded for secure aggregation alone."""
    if experiment.secure_aggregation is None:
        return lambda device_id, key: None
    from fedstrata.trust.key_check import KeyCheck

    return KeyCheck(experiment.run_id, tls).check


def _has(reply: pb.FetchClustersResponse, cluster_id: str, term: int) -> bool:
    return any((cluster.cluster_id, cluster.term) == (cluster_id, term) for cluster in reply.clusters)
