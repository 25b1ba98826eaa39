"""A child's side of the rounds: it fetches models and submits updates, and goes on where a cut left off."""

from collections.abc import Callable, Iterator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from fedstrata.errors import ParentAwayError
from fedstrata.experiment import LinkSettings
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief
from fedstrata.process.sleeping import CALL_S, Backoff, payload_timeout_s
from fedstrata.rounds.exchanged import Identity, Masker, Offered, ParentCalls, Update
from fedstrata.rounds.offer import MODEL_PART
from fedstrata.rounds.receiving import Receiving
from fedstrata.rounds.sending import Sending
from fedstrata.rpc.client import CallError, StatusCode, is_passing, refusal
from fedstrata.rpc.payload import Acceptance
from fedstrata.tensors import Flat, Layout, PayloadCodec
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


class RoundClient:
    """Speaks for one child to its parent."""

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
        masks: Masker | None = None,
    ) -> None:
        """`accepts_model` says what an announced model has to be; by default, one model of `layout`.

        `link_bytes` gives the counts that go up with each update. With `masks` updates go up masked, on the grid of
        sums, which is twice as large as they would be.
        """
        self._calls = calls
        self.identity = identity
        self.layout = layout
        self.clock = calls.clock
        self.link = link
        self._log = log
        accepts = accepts_model or (lambda header: Acceptance(layout, link.down, MODEL_PART))
        self._receiving = Receiving(identity, calls.clock, log, accepts, masks)
        self._sending = Sending(identity, calls.clock, link_bytes or list)
        self._codec: PayloadCodec | None = None  # without scales, of the layout that went up last
        largest = layout.float32_bytes if masks is None else 2 * layout.float32_bytes
        self._timeout_s = payload_timeout_s(largest, calls.held_s) + calls.clock.slowest_s

    def codec_for(self, flat: Flat, layout: Layout | None = None) -> PayloadCodec:
        """Return the codec in which a vector of this child goes up; `layout` if it is not the client's own."""
        layout = self.layout if layout is None else layout
        if self.link.up == "int8":
            return PayloadCodec.for_vector(layout, self.link.up, flat)
        if self._codec is None or self._codec.layout != layout:
            self._codec = PayloadCodec(layout, self.link.up)
        return self._codec

    def holds(self, held_round: int | None) -> None:
        """Say from now on that this child has the model of an LPS round, which it can send up when asked."""
        self._receiving.held_round = held_round

    async def fetch(self, sent_round: int, sent_digest: bytes = b"") -> Offered:
        """Wait for the next round's model, or for word that something has to be sent again or the run is over.

        `sent_round` and `sent_digest` say what the update is against that this child has sent last; -1 for none.

        Raises:
            FedstrataError: the parent refuses this child; ParentAwayError: it does not answer.
        """
        backoff = Backoff()
        while True:
            offset = self._receiving.offset
            request = self._receiving.request(sent_round, sent_digest)
            try:
                reply = await self._receiving.read(self._calls.fetch(request, **self._options))
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
        """Ask nothing more of the parent."""
        self._calls.close()

    async def _pause(self, backoff: Backoff) -> None:
        """Let a while go by before the next try, if there is to be one."""
        if self._calls.patience is not None and backoff.attempts >= self._calls.patience:
            raise ParentAwayError(f"no answer after {backoff.attempts} tries")
        await backoff.pause()

    @property
    def _waits(self) -> bool:
        """Return whether a call waits for a parent that is away, instead of coming back at once."""
        return self._calls.patience is None

    @property
    def _options(self) -> dict[str, Any]:
        """Return how long a call that carries a payload may take."""
        return {"timeout": self._timeout_s, "wait_for_ready": self._waits}

    async def answer(self, round_number: int, answer: answers_pb2.Answer) -> Offered:
        """Answer the question of a round and wait for how it goes on; raises as `fetch` does."""
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
        """Say what an update is before it is sent, and wait for what comes after that; raises as `fetch` does."""
        header = self._sending.header(update, then_fetch=self._receiving.request(update.round, update.base_digest))
        offered = await self._said(pb.UpdatePart(announced=header), "announcement_cut", update.round)
        return offered if offered is not None else await self.fetch(update.round, update.base_digest)

    async def _said(self, part: pb.UpdatePart, cut: str, round_number: int) -> Offered | None:
        """Return what the parent says to one part; None if nothing, or if the call was cut."""

        def parts() -> Iterator[pb.UpdatePart]:
            yield part
            if part.HasField("announced"):
                reach("upload", round_number)

        try:
            return await self._receiving.read(self._calls.exchange(parts(), **self._options))
        except CallError as error:
            if not is_passing(error):
                raise refusal(error) from None
            self._log.debug(cut, status=error.code().name, round=round_number)
            return None

    async def exchange(self, update: Update) -> Offered:
        """Send an update up and wait for what comes after it; raises as `submit` and `fetch` do."""
        if self._calls.exchange is None:
            await self.submit(update)
            return await self.fetch(update.round, update.base_digest)
        parts = self._sending.parts(update, then_fetch=self._receiving.request(update.round, update.base_digest))
        try:
            answer = await self._receiving.read(self._calls.exchange(parts, **self._options))
        except CallError as error:
            is_sent = getgeneratorstate(parts) == GEN_CLOSED
            is_elsewhere = error.code() is StatusCode.OUT_OF_RANGE  # the parent has a part of it already
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
        """Send an update up from one of its bytes on, resuming where a cut left it.

        Raises:
            FedstrataError: the parent refuses it; ParentAwayError: it does not answer.
        """
        backoff = Backoff()
        while True:
            try:
                reply: pb.UpdateReply = await self._calls.submit(self._sending.parts(update, offset), **self._options)
                return reply
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
