"""The calls of a child in rounds. The child fetches models and submits updates, and continues after a cut
connection.
"""

from collections.abc import Callable, Iterable, Iterator
from inspect import GEN_CLOSED, getgeneratorstate

from fedstrata.errors import ParentAwayError
from fedstrata.experiment import LinkSettings
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief
from fedstrata.process.time_limits import CALL_S, payload_timeout_s
from fedstrata.process.waiting import Backoff
from fedstrata.rounds.child.models_and_updates import PLAIN, Identity, Offered, ParentCalls, Shield, Update
from fedstrata.rounds.child.receiving import Receiving
from fedstrata.rounds.child.upload_messages import Sending
from fedstrata.rpc.client import CallError, StatusCode, is_passing, refusal
from fedstrata.rpc.payload import Acceptance
from fedstrata.streams.streams import MODEL_PART
from fedstrata.tensors import Flat, Layout, PayloadCodec
from fedstrata.tensors.codec import SCALED
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


class RoundClient:
    """Make the calls of one child to its parent."""

    def __init__(
        self,
        calls: ParentCalls,
        identity: Identity,
        layout: Layout,
        *,
        link: LinkSettings,
        log: EventLog,
        accepts_model: Callable[[pb.ModelHeader], Acceptance] | None = None,
        link_bytes: Callable[[], list[pb.LinkBytes]] | None = None,
        shield: Shield = PLAIN,
    ) -> None:
        """Set the calls and the identity that the client uses, and the layout of its models. `accepts_model` returns
        the form that an announced model must have. By default, this is one model with the layout `layout`.

        `link_bytes` returns the byte counts that each update reports. `shield` is the object that prepares the updates
        of this child.
        """
        self._calls = calls
        self.identity = identity
        self.layout = layout
        self.clock = calls.clock
        self.link = link
        self.shield = shield
        self._log = log
        accepts = accepts_model or (lambda header: Acceptance(layout, link.down, MODEL_PART))
        self._receiving = Receiving(identity, calls.clock, log, accepts, shield)
        self._sending = Sending(identity, calls.clock, link_bytes or list)
        self._codec: PayloadCodec | None = None  # codec without scales, for the layout that was sent last
        self._timeout_s = payload_timeout_s(shield.growth * layout.float32_bytes, calls.held_s) + calls.clock.slowest_s

    def codec_for(self, flat: Flat, layout: Layout | None = None) -> PayloadCodec:
        """Return the codec of a vector that this child sends. If `layout` is None, the vector has the client's own
        layout.
        """
        layout = self.layout if layout is None else layout
        if self.link.up in SCALED:
            return PayloadCodec.for_vector(layout, self.link.up, flat)
        if self._codec is None or self._codec.layout != layout:
            self._codec = PayloadCodec(layout, self.link.up)
        return self._codec

    def holds(self, held_round: int | None) -> None:
        """Report in later calls that this child has the model of this LPS round. An LPS that lacks the model can then
        ask this child for the model.
        """
        self._receiving.held_round = held_round

    async def fetch(self, sent_round: int, sent_digest: bytes = b"") -> Offered:
        """Wait for the next round's model, or for another reply. Another reply may say that the child has to send its
        update again, or that the run is over.

        `sent_round` and `sent_digest` name the model from which this child's last update was computed. Without an
        update, `sent_round` is -1.

        Raises:
            FedstrataError: the parent refuses this child.
            ParentAwayError: the parent does not answer.
        """
        backoff = Backoff()
        while True:
            offset = self._receiving.offset
            request = self._receiving.request(sent_round, sent_digest)
            try:
                reply = await self._reply_to([pb.UpdatePart(fetch=request)])
            except CallError as error:
                if not is_passing(error):
                    raise refusal(error) from None
                status, reason = error.code().name, brief(error.details() or "")
                self._log.debug("fetch_cut", status=status, reason=reason, round=sent_round, offset=offset)
                if self._receiving.offset > offset:
                    backoff.reset()
                await self._pause(backoff)
                continue
            if reply is not None:
                return reply
            backoff.reset()

    def close(self) -> None:
        """Close the stream. The client makes no further calls."""
        self._calls.stream.close()

    async def _pause(self, backoff: Backoff) -> None:
        """Wait before the next attempt. Raises ParentAwayError if no further attempt is allowed."""
        if self._calls.patience is not None and backoff.attempts >= self._calls.patience:
            raise ParentAwayError(f"the parent did not answer {backoff.attempts} tries")
        await backoff.pause()

    @property
    def _waits(self) -> bool:
        """Return whether calls wait for an absent parent. Otherwise they fail at once."""
        return self._calls.patience is None

    async def _reply_to(self, parts: Iterable[pb.UpdatePart | bytes]) -> Offered | None:
        """Send messages on the stream, and return the reply. If it is not there or not complete yet, return None."""
        return await self._receiving.read(
            self._calls.stream.exchange(parts, self._timeout_s, wait_for_ready=self._waits)
        )

    async def answer(self, round_number: int, answer: answers_pb2.Answer) -> Offered:
        """Answer the question of a round, and wait for the next reply. Raises the errors of `fetch`."""
        who, self._receiving.answered_round = self.identity, round_number
        message = pb.RoundAnswer(
            run_id=who.run_id,
            child_id=who.child_id,
            home_id=who.home_id,
            round=round_number,
            answer=answer,
            then_fetch=self._receiving.request(),
        )
        offered = await self._said(pb.UpdatePart(answer=message), "answer_cut", round_number)
        return offered if offered is not None else await self.fetch(-1)

    async def announce(self, update: Update) -> Offered:
        """Announce an update before it is sent, and wait for the next reply. Raises the errors of `fetch`."""
        header = self._sending.header(update, then_fetch=self._receiving.request(update.round, update.base_digest))
        offered = await self._said(pb.UpdatePart(announced=header), "announcement_cut", update.round)
        return offered if offered is not None else await self.fetch(update.round, update.base_digest)

    async def _said(self, part: pb.UpdatePart, cut: str, round_number: int) -> Offered | None:
        """Send one message, and return the parent's reply. If the parent does not reply, or if the call is cut, return
        None.

        `cut` is the name of the event that is logged for a cut call.
        """

        def parts() -> Iterator[pb.UpdatePart]:
            yield part
            if part.HasField("announced"):
                reach("upload", round_number)

        try:
            return await self._reply_to(parts())
        except CallError as error:
            if not is_passing(error):
                raise refusal(error) from None
            self._log.debug(cut, status=error.code().name, round=round_number)
            return None

    async def exchange(self, update: Update) -> Offered:
        """Send an update, and wait for the next reply. Raises the errors of `submit` and `fetch`."""
        parts = self._sending.parts(update, then_fetch=self._receiving.request(update.round, update.base_digest))
        try:
            answer = await self._reply_to(parts)
        except CallError as error:
            is_sent = getgeneratorstate(parts) == GEN_CLOSED
            is_elsewhere = error.code() is StatusCode.OUT_OF_RANGE  # the parent already has a part of the update
            if not is_elsewhere and not is_passing(error):
                raise refusal(error) from None
            self._log.debug("exchange_cut", status=error.code().name, round=update.round)
            if is_elsewhere or not is_sent:
                await self.submit(update, await self._locate(update.round))
        else:
            if answer is not None:
                return answer
        return await self.fetch(update.round, update.base_digest)

    async def submit(self, update: Update, offset: int = 0) -> pb.UpdateReply:
        """Send an update from byte `offset` on, and continue after cuts.

        Raises:
            FedstrataError: the parent refuses the update.
            ParentAwayError: the parent does not answer.
        """
        backoff = Backoff()
        while True:
            try:
                parts = self._sending.parts(update, offset)
                return await self._calls.submit(parts, timeout=self._timeout_s, wait_for_ready=self._waits)
            except CallError as error:
                if error.code() is not StatusCode.OUT_OF_RANGE and not is_passing(error):
                    raise refusal(error) from None
                self._log.debug("submit_cut", status=error.code().name, round=update.round)
            await self._pause(backoff)
            offset = await self._locate(update.round)

    async def _locate(self, round_number: int) -> int:
        who = self.identity
        request = pb.LocateUpdateRequest(
            run_id=who.run_id, child_id=who.child_id, home_id=who.home_id, round=round_number
        )
        backoff = Backoff()
        while True:
            try:
                reply = await self._calls.locate(request, timeout=CALL_S, wait_for_ready=self._waits)
                return int(reply.offset) if reply.current_round == round_number else 0
            except CallError as error:
                if error.code() is StatusCode.NOT_FOUND:
                    return 0
                if not is_passing(error):
                    raise refusal(error) from None
            await self._pause(backoff)
