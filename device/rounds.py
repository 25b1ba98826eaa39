"""The LPS rounds of a device. If its LPS is silent and the GPS names another LPS, the device continues with that
LPS.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from device.personal import KeptInMemory, PersonalStore
from device.round_job import RoundJob
from device.work import DeviceProcess
from fedstrata.errors import ParentAwayError, PayloadError, RunStoppedError
from fedstrata.experiment import Encoding
from fedstrata.methods import Moment
from fedstrata.partitions import DeviceData
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import shown
from fedstrata.process.time_limits import PATIENCE_S, hold_s, payload_timeout_s
from fedstrata.process.waiting import Backoff
from fedstrata.rounds import Identity, ParentCalls, ParentStream, ReceivedModel, RoundClient, Update
from fedstrata.rounds.child.models_and_updates import Offered
from fedstrata.rpc.answer_messages import largest_bytes
from fedstrata.rpc.client import call_until_answered
from fedstrata.rpc.payload import Acceptance, payload_header
from fedstrata.streams.plan_checks import is_offered
from fedstrata.streams.streams import MODEL_PART
from fedstrata.tensors import SMALL_BYTES, PayloadCodec
from fedstrata.v1 import answers_pb2, rounds_pb2
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import lps_service_pb2 as pb

LPS_PATIENCE = 7  # attempts (about five seconds) before the device asks the GPS for the LPS's address
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Served:
    """Hold the LPS that serves a device, and a function that asks the GPS for the LPS that serves the device now."""

    by: gps_pb.FetchAssignmentResponse
    ask: Callable[[], Awaitable[gps_pb.FetchAssignmentResponse]]
    silence_s: float | None  # after this silence of the LPS, ask the GPS; None: never
    backoff: Backoff

    async def hear(self, exchange: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for the result of an exchange with the LPS, and return the result. Raises ParentAwayError if the LPS is
        silent and the GPS names another LPS.
        """
        hearing = asyncio.ensure_future(exchange)
        try:
            while not (await asyncio.wait({hearing}, timeout=self.silence_s))[0]:
                now = await self._asked_beside(hearing)
                if now is not None and (now.lps_id, now.lps_address) != (self.by.lps_id, self.by.lps_address):
                    raise ParentAwayError(
                        f"{self.by.lps_id} does not answer, and {now.lps_id} serves {now.home_id} now"
                    )
            answer = hearing.result()
            self.backoff.reset()
            return answer
        finally:
            hearing.cancel()

    async def _asked_beside(self, hearing: "asyncio.Future[Any]") -> gps_pb.FetchAssignmentResponse | None:
        """Ask the GPS for the assignment while the LPS is silent, and return the assignment. If the LPS answers before
        the GPS does, return None.
        """
        asking = asyncio.ensure_future(self.ask())
        try:
            await asyncio.wait({hearing, asking}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()


class DeviceRounds:
    """Run the LPS rounds of one device, and keep the messages that the LPS may ask for again."""

    def __init__(
        self,
        host: DeviceProcess,
        device_index: int,
        store: PersonalStore | KeptInMemory,
        made: dict[str, Any],
        log: EventLog,
    ) -> None:
        """Prepare the rounds of one device. `made` caches values that the device's method computes once per run."""
        self._host = host
        self._index = device_index
        self._device_id = host.experiment.device_ids()[device_index]
        self._store = store
        self._made = made
        self._log = log
        self._shield = host.shield_of(self._device_id)
        self._sent: Update | None = None
        self._answered: tuple[int, answers_pb2.Answer] | None = None  # (round, the last answer in a round)
        self._job: RoundJob | None = None  # the job of the open round
        self._received_of: set[str] = set()  # clusters whose models this device has received

    @property
    def have_begun(self) -> bool:
        """Return whether this device has received a model."""
        return self._job is not None

    def stated(self, examples: int) -> int:
        """Return the number of training examples that this device reports. `examples` is the true number."""
        return examples

    async def take_part(self, served: Served, data: DeviceData) -> None:
        """Take part in rounds until the run is over. Raises FedstrataError if the LPS refuses this device, or is
        absent.
        """
        lps = self._host.channels.lps(served.by.lps_id, served.by.lps_address)
        client = self._client(lps, served.by)
        try:
            await self._rounds(served, lps, client, data)
        finally:
            client.close()

    async def _rounds(self, served: Served, lps: Any, client: RoundClient, data: DeviceData) -> None:
        goes_up: Update | answers_pb2.Answer | None = None  # to send before the next call
        is_announced = False  # whether to announce the update before it is sent
        while True:
            held = self._held(served.by.home_id)
            client.holds(held.round if held else None)
            with self._host.compute_thread.listening(served.by.home_id):
                offer = await served.hear(self._exchange(client, goes_up, is_announced=is_announced))
            self._host.channels.lps_reached(served.by.lps_id, served.by.lps_address)
            goes_up, is_announced = None, self._host.clock.announces
            if isinstance(offer, ReceivedModel):
                self._host.held[served.by.home_id] = offer
                self._received_of.add(served.by.home_id)
                self._job = self._round_job(client, offer, data, self._made)
            match offer:
                case rounds_pb2.Finished():
                    if offer.reason:
                        raise RunStoppedError(f"the run has stopped: {offer.reason}")
                    return self._log.info("finished")
                case rounds_pb2.SendAgain():
                    goes_up, is_announced = self._sent_for(offer.round), offer.announce
                case rounds_pb2.SendModel() if held is not None:
                    self._log.info("model_sent", round=held.round)
                    await served.hear(self._send_held(lps, client, held))
                case ReceivedModel() if offer.evaluate_only:
                    await served.hear(self._measure(lps, client))
                case ReceivedModel() if self._job is not None:
                    goes_up = await self._job.begin()
                case rounds_pb2.GoOn() if self._job is not None and self._job.received.round == offer.round:
                    goes_up = await self._job.go_on(offer.cluster)
                case _:
                    raise PayloadError("the LPS refers to a round in which this device has sent or received nothing")
            self._note(goes_up)

    def _held(self, home_id: str) -> ReceivedModel | None:
        """Return the newest model of a cluster, no matter which device of this process has received it.

        If this device itself has never received a model of the cluster, return None. So the messages of a device do not
        depend on the order in which the devices of the process make their calls.
        """
        return self._host.held.get(home_id) if home_id in self._received_of else None

    async def _exchange(
        self, client: RoundClient, goes_up: Update | answers_pb2.Answer | None, *, is_announced: bool
    ) -> Offered:
        """If this device has a message for the LPS, send the message. Wait for the LPS's reply, and return the
        reply.
        """
        if isinstance(goes_up, Update):
            goes_up = await self._shield.hidden(goes_up, self._host.compute_thread.compute)
            return await (client.announce(goes_up) if is_announced else client.exchange(goes_up))
        if goes_up is not None and self._job is not None:
            return await client.answer(self._job.received.round, goes_up)
        if self._sent is None:
            return await client.fetch(-1)
        return await client.fetch(self._sent.round, self._sent.base_digest)

    def _note(self, goes_up: Update | answers_pb2.Answer | None) -> None:
        """Keep the message that is sent next, because the LPS may ask for this message again."""
        if isinstance(goes_up, Update):
            self._sent = goes_up
        elif goes_up is not None and self._job is not None:
            self._answered = self._job.received.round, goes_up

    def _sent_for(self, lps_round: int) -> Update | answers_pb2.Answer:
        """Return the message that this device has sent in a round. Raises PayloadError if this device has sent no
        message in that round.
        """
        self._log.info("sent_again", round=lps_round)
        if self._sent is not None and self._sent.round == lps_round:
            return self._sent
        if self._answered is not None and self._answered[0] == lps_round:
            return self._answered[1]
        raise PayloadError("the LPS asks again for an update or answer that this device has never sent")

    def _round_job(
        self, client: RoundClient, received: ReceivedModel, data: DeviceData, made: dict[str, Any]
    ) -> RoundJob:
        """Return the job of a round. `made` has the values that the method computes once from `data`."""
        return RoundJob(
            self._host,
            data,
            received,
            device_index=self._index,
            device_id=self._device_id,
            client=client,
            store=self._store,
            made=made,
        )

    async def _send_held(self, lps: Any, client: RoundClient, held: ReceivedModel) -> None:
        """Send the last received model of the cluster to an LPS that has adopted the cluster, or that has lost its
        state.
        """
        codec = PayloadCodec(client.layout, "float32")
        chunks = partial(codec.chunks, lambda start, stop: held.flat[start:stop])
        digest = await self._host.compute_thread.compute(lambda: _sha256(chunks()))
        header = pb.HeldModelHeader(
            run_id=client.identity.run_id,
            device_id=self._device_id,
            home_id=client.identity.home_id,
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

    def _client(self, lps: Any, by: gps_pb.FetchAssignmentResponse) -> RoundClient:
        host = self._host
        identity = Identity(run_id=by.run_id, child_id=self._device_id, home_id=by.home_id)
        link = host.experiment.links.device_lps
        layout = host.streams.travelling
        largest = self._shield.growth * layout.float32_bytes
        asked = [question for question in host.method.questions() if question.moment is not Moment.BEFORE]
        if host.method.fetches_all or asked:  # a small message may have several models, or an answer
            largest = max(largest, SMALL_BYTES, *map(largest_bytes, asked))
        calls = ParentCalls(
            stream=ParentStream(lps.Attend),
            submit=lps.SubmitUpdate,
            locate=lps.LocateUpdate,
            held_s=hold_s(host.experiment.device_count),
            patience=LPS_PATIENCE,
            clock=host.clock.to_lps(self._device_id, largest),
        )
        return RoundClient(
            calls,
            identity,
            layout,
            link=link,
            log=self._log,
            accepts_model=partial(_acceptance, host, link.down),
            shield=self._shield,
        )

    async def _measure(self, lps: Any, client: RoundClient) -> None:
        """Measure the final model, and send the measurement."""
        if self._job is None:
            raise PayloadError("the LPS asks to measure a model that this device has never received")
        who, evaluation = client.identity, await self._job.measured()
        request = pb.SubmitEvaluationRequest(run_id=who.run_id, home_id=who.home_id, evaluation=evaluation)
        await call_until_answered(
            lambda: lps.SubmitEvaluation(request, timeout=PATIENCE_S),
            self._log,
            "SubmitEvaluation",
            attempts=LPS_PATIENCE,
        )


def _acceptance(host: DeviceProcess, encoding: Encoding, header: rounds_pb2.ModelHeader) -> Acceptance:
    """Return which tensors a model message from an LPS must contain, and in which encoding. The message has one model,
    or the models of all clusters, or the models of the clusters that its header lists.

    Raises:
        PayloadError: the header names clusters that do not exist.
    """
    streams, clusters = host.streams.without(header.withdrawn), min(header.clusters, host.experiment.device_count)
    if not clusters:
        return Acceptance(streams.travelling, encoding, MODEL_PART)
    offered = tuple(header.offered)
    if offered and not is_offered(header.cluster, offered, clusters):
        raise PayloadError(
            f"the LPS offers models of clusters {shown(offered)} of {clusters}, not fit for cluster {header.cluster}"
        )
    vector = streams.vector(offered or clusters)
    return Acceptance(vector.tensors, encoding, vector.parts)


def _sha256(chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
