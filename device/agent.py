"""One device: shares its profile and a relevance row, then trains for its LPS until the run is over."""

import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from device.bench import Bench
from device.channels import Channels
from device.enrolment import GpsLink
from device.evaluation import Evaluation, EvaluationJob
from device.served import Served
from device.training import TrainingJob
from fedstrata.datasets import Dataset
from fedstrata.errors import NotServedError, ParentAwayError, PayloadError, RunStoppedError, UnknownChildError
from fedstrata.experiment import Experiment
from fedstrata.features import feature_map
from fedstrata.link import CALL_S, Backoff, payload_timeout_s
from fedstrata.logs import EventLog
from fedstrata.methods import Method
from fedstrata.metrics import ProcessMetrics
from fedstrata.models import Model
from fedstrata.partitions import DeviceData, device_data
from fedstrata.relevance import Spectrum, spectrum_of
from fedstrata.rounds import Identity, ParentCalls, RoundClient, Session, Update
from fedstrata.rounds import Model as Received
from fedstrata.rounds.server import MODEL_PART
from fedstrata.rpc.client import call_until_answered
from fedstrata.rpc.payload import payload_header
from fedstrata.tensors import PayloadCodec
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import lps_service_pb2 as pb
from fedstrata.v1 import rounds_pb2

LPS_PATIENCE = 7  # tries, about five seconds, before the GPS is asked where the LPS is now


@dataclass(frozen=True, kw_only=True)
class Host:
    """What all devices of one process share."""

    experiment: Experiment
    dataset: Dataset
    model: Model
    method: Method
    bench: Bench
    channels: Channels
    metrics: ProcessMetrics
    process_id: str
    pod_name: str
    # what devices of a cluster received last, one model a cluster: for an LPS that has lost it or never had it
    held: dict[str, Received] = field(default_factory=dict)


class DeviceAgent:
    """One device of a process."""

    def __init__(self, host: Host, device_index: int) -> None:
        self._host = host
        self._index = device_index
        self.device_id = host.experiment.device_ids()[device_index]
        self._log = EventLog("device", device=self.device_id)
        self._sent: Update | None = None
        self._silence_s = host.experiment.deadlines.gps.deadline_s

    async def run(self) -> None:
        """From enrolment to the end of the run. Raises FedstrataError when a parent refuses this device."""
        host = self._host
        data = await host.bench.compute(lambda: device_data(host.experiment, host.dataset, self._index))
        link = GpsLink(
            host.channels.gps(),
            host.experiment,
            device_id=self.device_id,
            device_index=self._index,
            process_id=host.process_id,
            log=self._log,
        )
        await self._enroll(link, data)
        backoff = Backoff()
        while True:
            assignment = await self._assignment(link, data)
            self._log.info("assigned", cluster=assignment.cluster_id, lps=assignment.lps_address)
            served = Served(assignment, lambda: self._assignment(link, data), self._silence_s, backoff)
            try:
                return await self._train(served, data)
            except ParentAwayError as error:  # it may have come up again somewhere else, or another serves the cluster
                self._log.info("lps_away", lps=assignment.lps_address, reason=str(error))
            except NotServedError as error:  # the GPS knows already, or this LPS has not heard of it yet
                self._log.info("not_served", lps=assignment.lps_address, reason=str(error))
                await backoff.pause()

    async def _enroll(self, link: GpsLink, data: DeviceData) -> None:
        enrolled = await link.enroll(len(data.train), self._host.pod_name)
        self._log.info("enrolled", is_late=enrolled.is_late)
        if enrolled.wants_profile:
            await self._relate(link, data, is_late=enrolled.is_late)

    async def _assignment(self, link: GpsLink, data: DeviceData) -> gps_pb.FetchAssignmentResponse:
        """The LPS that serves this device now; a GPS that has lost its last notes is told again who is here."""
        while True:
            try:
                return await link.assignment()
            except UnknownChildError as error:
                self._log.info("enrolled_again", reason=str(error))
                await self._enroll(link, data)

    async def _relate(self, link: GpsLink, data: DeviceData, *, is_late: bool) -> None:
        host = self._host
        features = feature_map(host.experiment.method)

        def spectrum() -> Spectrum:
            return spectrum_of(features(data.train.inputs))

        own = await host.bench.compute(spectrum)
        if not is_late:
            await link.submit_profile(own.profile(host.experiment.method.eigenvectors))
        row = await link.relate(own)
        await link.submit_relevance(row)
        self._log.info("related", devices=len(row))

    async def _train(self, served: Served, data: DeviceData) -> None:
        lps = self._host.channels.lps(served.by.lps_address)
        session = Session(lps.Attend)
        try:
            await self._rounds(served, lps, session, data)
        finally:
            session.close()

    async def _rounds(self, served: Served, lps: Any, session: Session, data: DeviceData) -> None:
        client = self._client(lps, session, served.by.cluster_id)
        sent: Update | None = None  # what goes up before the next is asked for
        while True:
            held = self._host.held.get(served.by.cluster_id)
            client.held_round = held.round if held else None
            with self._host.bench.listening(served.by.cluster_id):
                offer = await served.hear(client.exchange(sent) if sent else client.fetch(*self._sent_of))
            sent = None
            if isinstance(offer, Received):
                self._host.held[served.by.cluster_id] = offer
            match offer:
                case rounds_pb2.Finished():
                    if offer.reason:
                        raise RunStoppedError(f"the run has stopped: {offer.reason}")
                    return self._log.info("finished")
                case rounds_pb2.SendAgain() if self._sent is not None:
                    self._log.info("sent_again", round=offer.round)
                    sent = self._sent
                case rounds_pb2.SendModel() if held is not None:
                    self._log.info("model_sent", round=held.round)
                    await served.hear(self._send_held(lps, client, held))
                case Received() if offer.evaluate_only:
                    await served.hear(self._measure(lps, client, offer, data))
                case Received():
                    self._sent = sent = await self._update(client, offer, data)
                case _:
                    raise PayloadError("asked to send what was never sent or received")

    @property
    def _sent_of(self) -> tuple[int, bytes]:
        """The round and the model that the last update is against."""
        return (self._sent.round, self._sent.base_digest) if self._sent else (-1, b"")

    async def _send_held(self, lps: Any, client: RoundClient, held: Received) -> None:
        """Send the model last received to an LPS that has taken the cluster over, or lost its state."""
        codec = PayloadCodec(client.layout, "float32")
        chunks = partial(codec.chunks, lambda start, stop: held.flat[start:stop])
        digest = await self._host.bench.compute(lambda: _sha256(chunks()))
        header = pb.HeldModelHeader(
            run_id=client.identity.run_id,
            device_id=self.device_id,
            cluster_id=client.identity.cluster_id,
            round=held.round,
            payload=payload_header(codec, name=MODEL_PART),
            sha256=digest,
        )

        async def parts() -> AsyncIterator[pb.HeldModelPart]:
            yield pb.HeldModelPart(header=header)
            for chunk in chunks():
                yield pb.HeldModelPart(data=bytes(chunk))

        timeout_s = payload_timeout_s(codec.payload_bytes)
        await call_until_answered(
            lambda: lps.SubmitModel(parts(), timeout=timeout_s), self._log, "SubmitModel", attempts=LPS_PATIENCE
        )

    def _client(self, lps: Any, session: Session, cluster_id: str) -> RoundClient:
        host = self._host
        identity = Identity(run_id=host.experiment.run_id, child_id=self.device_id, cluster_id=cluster_id)
        calls = ParentCalls(
            fetch=session.fetch,
            submit=lps.SubmitUpdate,
            locate=lps.LocateUpdate,
            exchange=session.exchange,
            patience=LPS_PATIENCE,
        )
        link = host.experiment.links.device_lps
        return RoundClient(calls, identity, host.model.layout, link=link, part=host.method.sums[0], log=self._log)

    async def _update(self, client: RoundClient, received: Received, data: DeviceData) -> Update:
        host = self._host
        job = TrainingJob(
            model=host.model,
            received=received.flat,
            examples=data.train,
            training=host.experiment.training,
            seed=host.experiment.seed,
            device_index=self._index,
            lps_round=received.round,
            global_round=received.global_round,
            local_loss=host.method.local_loss,
            held_out=data.test if host.experiment.training.is_measured(received.global_round) else None,
        )
        result = await host.bench.train(job, client.identity.cluster_id)
        update = result.weights - received.flat
        return Update(
            round=received.round,
            num_examples=len(data.train),
            codec=client.codec_for(update),
            read=lambda start, stop: update[start:stop],
            train_loss=result.train_loss,
            evaluations=(self._evaluation(received, result.evaluation),) if result.evaluation else (),
            base_digest=received.digest,
        )

    def _evaluation(self, received: Received, measured: Evaluation) -> rounds_pb2.Evaluation:
        loss, correct, examples = measured
        return rounds_pb2.Evaluation(
            device_id=self.device_id, round=received.round, loss_sum=loss, correct=correct, num_examples=examples
        )

    async def _measure(self, lps: Any, client: RoundClient, received: Received, data: DeviceData) -> None:
        """Measure the final model and say so."""
        who = client.identity
        job = EvaluationJob(model=self._host.model, received=received.flat, examples=data.test)
        evaluation = self._evaluation(received, await self._host.bench.evaluate(job, who.cluster_id))
        request = pb.SubmitEvaluationRequest(run_id=who.run_id, cluster_id=who.cluster_id, evaluation=evaluation)
        await call_until_answered(
            lambda: lps.SubmitEvaluation(request, timeout=CALL_S), self._log, "SubmitEvaluation", attempts=LPS_PATIENCE
        )


def _sha256(chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
