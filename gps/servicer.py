"""The gRPC services GpsService and RunService. They translate gRPC messages into calls of a run's parts."""

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any

from fedstrata.errors import NotServedError, PayloadError, RunStoppedError, UnknownChildError, WrongRunError
from fedstrata.privacy.report import EpsilonSpent
from fedstrata.process.quoting import brief, quoted
from fedstrata.process.time_limits import hold_s
from fedstrata.rounds.parent.child_calls import ChildStream
from fedstrata.rounds.parent.open_round import Message
from fedstrata.rounds.parent.report_checks import check_run
from fedstrata.rpc.stream import first_part, header_first, write_all
from fedstrata.rpc.upload_limit import UPLOAD_WAIT, UploadWait
from fedstrata.streams.streams import shares_of
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.v1 import answers_pb2, rounds_pb2
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceServicer, RunServiceServicer
from gps.devices.repeats import Repeats
from gps.devices.roster import Device
from gps.plans.plan import cluster_of
from gps.run import Run
from gps.status import status_of


class GpsServicer(GpsServiceServicer):
    """Pass the calls of devices and LPSs on to a run."""

    def __init__(self, run: Run, uploads: UploadWait = UPLOAD_WAIT) -> None:
        """Set `uploads`, the time that an LPS may take to upload an aggregate on a stream of `Attend`."""
        self._run, self._run_id = run, run.journal.attempt_id
        self._uploads = uploads
        self._repeats = Repeats(run.reports.counts.note_repeated, run.reports.counts.keep)

    def _check(self, run_id: str) -> None:
        check_run(self._run_id, run_id)

    def _check_going(self, run_id: str) -> None:
        self._check(run_id)
        if self._run.phase == "failed":
            raise RunStoppedError(f"the run has stopped: {self._run.reason}")

    async def Enroll(self, request: pb.EnrollRequest, context: Any) -> pb.EnrollResponse:
        """Enrol a device."""
        self._check_going(self._run_id)
        return self._repeats.enrolled(request, self._run.enrolment.enroll(request))

    async def SubmitAnswer(
        self, requests: AsyncIterator[answers_pb2.AnswerPart], context: Any
    ) -> answers_pb2.SubmitAnswerResponse:
        """Take a device's answer to a question before training."""
        with self._repeats.upload(requests) as upload:
            first = await first_part(upload.parts, "an answer")
            self._check_going(first.header.run_id)
            upload.is_known = first.question in self._run.roster.by_id(first.header.device_id).answered
            await self._run.questions.take(first.header, first.question, upload.parts)
        return self._repeats.answered(upload, answers_pb2.SubmitAnswerResponse(run_id=self._run_id))

    async def FetchAnswers(
        self, request: answers_pb2.FetchAnswersRequest, context: Any
    ) -> AsyncIterator[answers_pb2.AnswerPart]:
        """Send a device the answers of the other devices, as a stream."""
        self._check_going(request.run_id)
        async for part in self._repeats.relayed(request, self._run.questions.relayed_to(request)):
            yield part

    async def FetchAssignment(self, request: pb.FetchAssignmentRequest, context: Any) -> pb.FetchAssignmentResponse:
        """Return the address of a device's LPS. Wait for a limited time until the LPS is known and has registered."""
        run = self._run
        self._check(request.run_id)
        with self._repeats.asking(request), run.roster.call_of(request.device_id, request.process_id) as device:
            is_known = lambda: run.serving.assignment(device).is_assigned or run.phase == "failed"  # noqa: E731
            await run.changes.wait_until(is_known, hold_s(run.experiment.device_count))
            self._check_going(request.run_id)
            return self._repeats.assigned(request, run.serving.assignment(device))

    async def RegisterLps(self, request: pb.RegisterLpsRequest, context: Any) -> pb.RegisterLpsResponse:
        """Register an LPS and its address."""
        self._run.serving.register(request)
        self._run.log.info("lps_registered", lps_id=request.lps_id, address=request.address)
        self._run.tell()
        return pb.RegisterLpsResponse(run_id=self._run_id, is_grouped=self._run.plans.is_made)

    async def FetchClusters(self, request: pb.FetchClustersRequest, context: Any) -> pb.FetchClustersResponse:
        """Return an LPS's clusters. Wait for a limited time until devices are grouped, and the plan is newer than the
        plan that the LPS knows.
        """
        run = self._run
        self._check(request.run_id)
        answered = run.reports.call_began()
        context.add_done_callback(lambda _: answered())
        run.serving.presence.hear(request.lps_id)
        with run.waiting.call_of(request):
            await run.changes.wait_until(lambda: run.has_news(request.known_version), run.serving.presence.hold_s)
        self._check_going(request.run_id)
        return pb.FetchClustersResponse(
            run_id=self._run_id,
            is_grouped=run.plans.is_made and run.clock.knows_start,
            clusters=[self._cluster(name) for name in run.serving.clusters_of(request.lps_id)],
            plan_version=run.places.version if run.plans.is_made else 0,
            is_over=run.is_over,
            planned_rounds=run.plans.planned_rounds,
            planned_ns=run.bundles.planned_ns,
            told=None if run.places.spans_lps else run.plans.told(run.plans.newest),
        )

    def _cluster(self, home_id: str) -> pb.Cluster:
        places, plans = self._run.places, self._run.plans
        began_in = cluster_of(plans.at_start(self._run.rounds.global_round)) if places.spans_lps else None
        return pb.Cluster(
            home_id=home_id,
            members=[self._member(device, began_in) for device in places.members(home_id)],
            refused=_refused(places.members(home_id), self._run.journal.refused_in_training()),
            term=self._run.serving.term_of(home_id),
            global_round=self._run.rounds.global_round,
            clusters=len(plans.newest.clusters) if places.spans_lps else 0,
            mixed=plans.newest.weights,
            began_unix_ns=self._run.clock.began_unix_ns,
        )

    def _member(self, device: Device, began_in: Mapping[int, int] | None) -> pb.Member:
        shares = shares_of(self._run.plans.newest, device.device_index)
        return pb.Member(
            device_id=device.device_id,
            device_index=device.device_index,
            num_examples=self._run.places.weight(device),
            num_held_out=device.num_held_out,
            from_global_round=device.from_global_round,
            cluster=device.cluster or 0,
            began_in=0 if began_in is None else began_in.get(device.device_index, device.cluster or 0),
            shares=[
                pb.Share(channel=channel, stream=stream, weight=weight)
                for channel, streams in shares.items()
                for stream, weight in streams.items()
            ],
        )

    async def FetchShared(self, request: rounds_pb2.FetchModelRequest, context: Any) -> None:
        """Stream the shared layers of the open global round to the LPS that serves the cluster of the request. Any
        other LPS gets the reply that it must wait.
        """
        run = self._run
        if not run.serving.is_current(request.home_id, request.term):  # it learns its clusters by FetchClusters
            await run.changes.wait_until(lambda: run.is_over, run.serving.presence.hold_s)
            if not run.is_over:
                waiting = rounds_pb2.Waiting(current_round=run.rounds.global_round)
                await context.write(rounds_pb2.ModelPart(waiting=waiting))
                return
        await write_all(run.rounds.fetch(request), context)

    async def SubmitAggregate(
        self, requests: AsyncIterator[rounds_pb2.UpdatePart], context: Any
    ) -> rounds_pb2.UpdateReply:
        """Take a cluster's aggregate of the shared layers."""
        parts = aiter(requests)
        header, run = await header_first(parts, "an aggregate"), self._run
        self._check(header.run_id)
        is_current = run.serving.is_current(header.home_id, header.term)
        try:
            run.reports.note(header)  # even if it is late: the reported rounds did happen
        except PayloadError as error:
            if is_current:
                run.rounds.server.ban(header.home_id, str(error))
            raise
        run.tell_soon()
        if not is_current:
            run.rounds.server.check_payload(header)
            return rounds_pb2.UpdateReply(run_id=self._run_id, current_round=run.rounds.global_round)
        return await run.rounds.server.submit(header, parts)

    async def Attend(self, requests: AsyncIterator[rounds_pb2.UpdatePart], context: Any) -> None:
        """On one stream, reply to an LPS's requests for models and to its aggregates for one cluster, one after the
        other.
        """
        stream = ChildStream(self.FetchShared, self.SubmitAggregate, _asks_nothing, self._uploads)
        await stream.answer(requests, context)

    async def SubmitAnswers(
        self, requests: AsyncIterator[answers_pb2.BundlePart], context: Any
    ) -> answers_pb2.SubmitAnswersResponse:
        """Take the answers of an LPS's devices in a global round."""
        parts, run = aiter(requests), self._run
        header = await header_first(parts, "a bundle of answers")
        self._check(header.run_id)
        if not 0 <= header.answers <= run.experiment.device_count:
            raise PayloadError(f"{header.answers} answers announced; the run has {run.experiment.device_count} devices")
        answers: dict[int, answers_pb2.Answer] = {}
        left = header.answers
        async for part in parts:
            if not left:
                raise PayloadError(f"more answers arrived than the {header.answers} announced")
            left -= 1
            answers[part.answer.device_index] = part.answer.answer
        is_current = partial(run.serving.is_current, header.home_id, header.term)
        if is_current():
            await run.bundles.take(header, answers, is_current)
        return answers_pb2.SubmitAnswersResponse(run_id=self._run_id)

    async def LocateUpdate(
        self, request: rounds_pb2.LocateUpdateRequest, context: Any
    ) -> rounds_pb2.LocateUpdateResponse:
        """Return how many bytes of an LPS's upload for a cluster have arrived. The LPS continues from there."""
        return self._run.rounds.server.locate(request)

    async def SubmitReport(self, requests: AsyncIterator[pb.ReportPart], context: Any) -> pb.SubmitReportResponse:
        """Take a cluster's final report and model."""
        parts = aiter(requests)
        header = await header_first(parts, "a report")
        self._check(header.run_id)
        await self._run.reports.take(header, parts)
        answered = self._run.reports.call_began()  # only after the upload: a slow sender must not delay the record
        context.add_done_callback(lambda _: answered())
        self._run.tell()
        return pb.SubmitReportResponse(run_id=self._run_id)

    async def ReportFailure(self, request: pb.ReportFailureRequest, context: Any) -> pb.ReportFailureResponse:
        """End the run without a result, because an LPS reports that it cannot continue."""
        self._check(request.run_id)
        serving = self._run.serving
        if not serving.is_known(request.lps_id):
            raise UnknownChildError(f"no LPS is called {quoted(request.lps_id)}")
        if self._run.plans.is_made and not serving.clusters_of(request.lps_id) and not self._run.is_over:
            raise NotServedError(f"{request.lps_id} serves no cluster now; the run goes on without it")
        self._run.stop(brief(request.reason) or f"{request.lps_id} cannot go on, and gave no reason")
        return pb.ReportFailureResponse()


async def _asks_nothing(message: Message) -> None:
    """Raise PayloadError for a message that an LPS must not send on a stream of `Attend`: an answer, or an announcement
    of an update. Only requests for models and aggregates are allowed there.
    """
    if isinstance(message, rounds_pb2.UpdateHeader):
        raise PayloadError("the GPS takes no announced updates; send the update itself")
    raise PayloadError("answers are not taken on this stream; send them by SubmitAnswers")


class RunServicer(RunServiceServicer):
    """Pass the calls of the experimenter on to a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._epsilon = EpsilonSpent(run.experiment)

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> AsyncIterator[pb.RunStatus]:
        """Stream the run's state, at once and at every change, until the record of the run is available."""
        run = self._run
        while True:
            changed, status = run.news.next, status_of(run, self._epsilon)
            yield status
            if status.has_record:
                return
            await changed.wait()

    async def FetchRecord(self, request: pb.FetchRecordRequest, context: Any) -> AsyncIterator[pb.FilePart]:
        """Stream the files of the record."""
        run = self._run
        if request.run_id and request.run_id != run.experiment.run_id:
            raise WrongRunError(f"this is run {run.experiment.run_id}, not {quoted(request.run_id)}")
        if not run.has_record:
            raise RunStoppedError(f"the run is in phase {run.phase}; its record is not written yet")
        files = [path for path in run.record_folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        for path in sorted(files):
            yield pb.FilePart(name=path.relative_to(run.record_folder).as_posix())
            with path.open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    yield pb.FilePart(data=data)

    async def StopRun(self, request: pb.StopRunRequest, context: Any) -> pb.StopRunResponse:
        """End the run without a result."""
        self._run.stop(brief(request.reason) or "stopped by the experimenter")
        return pb.StopRunResponse()


def _refused(members: Iterable[Device], reasons: Mapping[str, str]) -> list[rounds_pb2.Exclusion]:
    ids = [device.device_id for device in members if device.device_id in reasons]
    return [rounds_pb2.Exclusion(device_id=name, stage="training", reason=reasons[name]) for name in ids]
