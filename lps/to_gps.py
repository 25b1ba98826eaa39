"""The calls of a local parameter server (LPS) to the global parameter server (GPS), and the plans that the LPS learns
by these calls.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.clock.clocks import clock_of
from fedstrata.errors import RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.machine import software
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.time_limits import CALL_S, PATIENCE_S, payload_timeout_s
from fedstrata.process.waiting import Changes
from fedstrata.rounds import Identity, ParentCalls, ParentStream, ReceivedModel, RoundClient, Update
from fedstrata.rpc.client import Connection, ask, call_through_upgrade, call_until_answered
from fedstrata.rpc.messages import link_bytes_to_proto
from fedstrata.rpc.payload import Acceptance
from fedstrata.store.attempts import check_attempt
from fedstrata.streams.streams import Streams
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.trust.security import Security
from fedstrata.v1 import answers_pb2, rounds_pb2
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub

LAST_ANSWER_S = 1.0
AcceptsModel = Callable[[rounds_pb2.ModelHeader], Acceptance]


async def answered(call: Coroutine[Any, Any, object], within_s: float = LAST_ANSWER_S) -> None:
    """Wait for the reply to a call. If the process is stopped meanwhile, still wait up to `within_s` seconds for the
    reply, so that both ends count its bytes.

    A stop is likely here, because the GPS ends the run as soon as it has the last report.
    """
    job = asyncio.ensure_future(call)
    try:
        await asyncio.shield(job)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({job}, timeout=within_s)
        job.cancel()
        for each in done:
            each.exception()  # mark the exception as handled: the caller has been cancelled
        raise


class NewestPlan:
    """Hold the version of the newest plan that an LPS has received from the GPS, and wait for newer plans."""

    def __init__(self, wait_s: float | None) -> None:
        """Set `wait_s`, the most seconds that `until_heard` waits. None means no limit."""
        self.version = 0
        self.told: answers_pb2.Answer | None = None  # the GPS's values for all devices, if each cluster has an LPS
        self.planned_ns = 0  # when the GPS made the newest plan in a global round
        self.changes = Changes()
        self._wait_s = wait_s
        self._planned_rounds = 0

    def heard(self, reply: pb.FetchClustersResponse) -> None:
        """Use a plan that the GPS has sent."""
        self.told = reply.told if reply.HasField("told") else None
        self.version, self._planned_rounds, self.planned_ns = reply.plan_version, reply.planned_rounds, reply.planned_ns
        self.changes.tell()

    def is_planned(self, global_round: int) -> bool:
        """Return whether the plan of a global round has been made from the devices' answers."""
        return self._planned_rounds > global_round

    async def until_heard(self, version: int) -> None:
        """Wait until this LPS has received the plan with this version, or a newer plan. The wait takes at most `wait_s`
        seconds.

        Each model from the GPS states a version. It is the version of the plan at the time when the GPS opened the
        model's round.
        """
        await self.changes.wait_until(lambda: self.version >= version, self._wait_s)

    async def until_planned(self, global_round: int) -> None:
        """Wait, without limit, until the GPS has made the plan of a global round."""
        await self.changes.wait_until(lambda: self.is_planned(global_round), None)


class SessionClient:
    """Make the calls of one session to the GPS."""

    def __init__(
        self, stub: GpsServiceStub, uplink: RoundClient, newest_plan: NewestPlan, metrics: ProcessMetrics, log: EventLog
    ) -> None:
        self.newest_plan = newest_plan
        self.uplink = uplink
        self._stub = stub
        self._metrics = metrics
        self._log = log

    @property
    def attempt_id(self) -> str:
        """The id of the attempt in which this LPS takes part."""
        return self.uplink.identity.run_id

    async def model(self) -> ReceivedModel:
        """Fetch the model of the open global round. Raises RunStoppedError if the run is over."""
        return _model_of(await self.uplink.fetch(-1))

    async def exchange(self, update: Update) -> ReceivedModel:
        """Send an update to the GPS. If the GPS asks for it, send the update again. Return the model with which the
        next global round starts.

        Raises:
            RunStoppedError: the run is over.
        """
        while isinstance(answer := await self.uplink.exchange(update), rounds_pb2.SendAgain):
            pass
        return _model_of(answer)

    async def stream(self, call: str, parts: Callable[[], AsyncIterator[Any]], size: int) -> None:
        """Send the messages of `parts` to the GPS by the RPC `call`. If the GPS does not answer, send all of them
        again. `size` is the payload's size in bytes, on which the timeout depends.
        """
        timeout_s = payload_timeout_s(size, PATIENCE_S) + self.uplink.clock.on_link_s(size)
        rpc = getattr(self._stub, call)
        await call_until_answered(lambda: rpc(parts(), timeout=timeout_s, wait_for_ready=True), self._log, call)

    async def submit_report(self, report: pb.ReportHeader, model: Path | None) -> None:
        """Send a session's complete report, and the final model in the file `model`. If the GPS has the final model,
        `model` is None.
        """
        who = self.uplink.identity
        report.lps_id, report.term = who.lps_id, who.term
        parts, size = partial(_report_parts, report, model, self._metrics), model.stat().st_size if model else 0
        await answered(self.stream("SubmitReport", parts, size))
        self._log.info("reported")


class GpsClient:
    """Hold an LPS's channel to the GPS, and make the calls that concern the whole LPS. `of_session` returns the object
    for the calls of one session.
    """

    def __init__(
        self,
        experiment: Experiment,
        lps_id: str,
        address: str,
        *,
        metrics: ProcessMetrics,
        log: EventLog,
        security: Security,
    ) -> None:
        self._experiment = experiment
        self._lps_id = lps_id
        self._metrics = metrics
        self._log = log
        self._gps = Connection(address, security)
        self._stub = GpsServiceStub(self._gps.counted(metrics.links))
        self.attempt_id = ""  # set by `register`

    async def close(self) -> None:
        """Close the connection to the GPS."""
        await self._gps.close()

    async def register(self, address: str) -> bool:
        """Register this LPS and its address, and learn the attempt of the run. Return whether devices are grouped
        already.

        Raises:
            PayloadError: the GPS does not name an attempt of this run.
            HandshakeError: the LPS and the GPS do not trust each other.
        """
        await self._gps.until_reached(self._log)
        request = pb.RegisterLpsRequest(
            lps_id=self._lps_id,
            address=address,
            experiment_sha256=self._experiment.digest,
            software=software(sys.modules),
        )
        reply = await call_through_upgrade(
            lambda: self._stub.RegisterLps(request, timeout=PATIENCE_S, wait_for_ready=True), self._log, "RegisterLps"
        )
        check_attempt(reply.run_id, self._experiment.run_id)
        self.attempt_id = str(reply.run_id)
        self._log.info("registered", lps_id=self._lps_id, address=address)
        return bool(reply.is_grouped)

    async def clusters(self, known_version: int, waits: Iterable[pb.Wait]) -> pb.FetchClustersResponse:
        """Return the clusters of this LPS, as soon as the GPS has a plan that is newer than `known_version`. Also
        report to the GPS for which devices this LPS waits.
        """
        request = pb.FetchClustersRequest(
            run_id=self.attempt_id, lps_id=self._lps_id, known_version=known_version, waits=waits
        )
        reply: pb.FetchClustersResponse = await ask(self._stub, "FetchClusters", request, self._log)
        return reply

    async def fail(self, reason: str) -> None:
        """Report to the GPS that this LPS cannot continue, and the reason."""
        failure = pb.ReportFailureRequest(run_id=self.attempt_id, lps_id=self._lps_id, reason=reason)
        await call_until_answered(lambda: self._stub.ReportFailure(failure, timeout=CALL_S), self._log, "ReportFailure")

    def of_session(
        self,
        cluster: pb.Cluster,
        streams: Streams,
        newest_plan: NewestPlan,
        log: EventLog,
        accepts_model: AcceptsModel | None,
    ) -> SessionClient:
        """Return the object for the calls of a session, which runs the rounds of a cluster or of all devices of this
        LPS.
        """
        name = cluster.home_id
        identity = Identity(run_id=self.attempt_id, child_id=name, home_id=name, lps_id=self._lps_id, term=cluster.term)
        # Exact sums take 8 bytes per element, not 4.
        largest = 2 * streams.travelling.float32_bytes * max(1, cluster.clusters)
        calls = ParentCalls(
            stream=ParentStream(self._stub.Attend),
            submit=self._stub.SubmitAggregate,
            locate=self._stub.LocateUpdate,
            clock=clock_of(self._experiment).uplink(name, largest),
        )
        uplink = RoundClient(
            calls,
            identity,
            streams.everywhere,
            link=self._experiment.links.lps_gps,
            log=log,
            accepts_model=accepts_model,
            link_bytes=lambda: link_bytes_to_proto(self._metrics.links.snapshot()),
        )
        return SessionClient(self._stub, uplink, newest_plan, self._metrics, log)


def _model_of(answer: object) -> ReceivedModel:
    if isinstance(answer, ReceivedModel):
        return answer
    raise RunStoppedError(getattr(answer, "reason", "") or "the GPS ended the run")


async def _report_parts(
    report: pb.ReportHeader, model: Path | None, metrics: ProcessMetrics
) -> AsyncIterator[pb.ReportPart]:
    """Yield the messages of a final report. The first message has the report with the present byte counts of this LPS.
    If there is a model, the other messages have the model.
    """
    del report.link_bytes[:]
    report.link_bytes.extend(link_bytes_to_proto(metrics.links.snapshot()))
    yield pb.ReportPart(header=report)
    if model is None:
        return
    with model.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield pb.ReportPart(data=data)
