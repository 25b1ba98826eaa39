"""A parent's answers to the calls of its children."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedstrata.errors import NotReadyError, NotServedError, PayloadError, RunStoppedError
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.quoting import quoted
from fedstrata.process.waiting import Changes
from fedstrata.rounds.parent.children import Refusals
from fedstrata.rounds.parent.open_round import Message, OpenRound, RoundTerms
from fedstrata.rounds.parent.report_checks import check_evaluation, check_run
from fedstrata.rounds.parent.uploads import Uploads
from fedstrata.rpc.payload import Acceptance
from fedstrata.rpc.stream import Turns
from fedstrata.rpc.upload_limit import UPLOAD_WAIT, Awaited, UploadWait, sender_of
from fedstrata.v1 import rounds_pb2 as pb


class ChildCalls:
    """Answer the calls of a parent's children in the open round."""

    def __init__(
        self,
        terms: RoundTerms,
        metrics: ProcessMetrics,
        log: EventLog,
        *,
        accepts_updates: Callable[[int], Acceptance],
        serves: Callable[[str], bool] | None = None,
        refused: Refusals | None = None,
        hear: Callable[[pb.FetchModelRequest], None] | None = None,
    ) -> None:
        """Set the settings of all rounds (`terms`), and the objects that answer calls. `accepts_updates` returns the
        form that the updates of a round must have.

        `serves` returns False for a child that another parent now serves. `refused` holds the refused children, and
        other objects may use it too. `hear` is called with each child's request for a model. It raises PayloadError for
        a request that no honest child makes.
        """
        self.terms = terms
        self._metrics = metrics
        self._log = log
        self._round: OpenRound | None = None
        self._finished: str | None = None
        self.refused = refused if refused is not None else Refusals(log)
        self._know_end: set[str] = set()
        self._is_released = False
        self._calls = Changes()  # wakes children's calls, by the names of the children with a kept update
        self._messages = Changes()  # wakes the stages of the round
        self._turns = Turns()
        self._uploads = Uploads(terms, metrics, self.refused, self._turns, accepts_updates)
        self._serves = serves or (lambda child_id: True)
        self._hear = hear or (lambda request: None)

    @property
    def awaited(self) -> tuple[int, tuple[str, ...], str]:
        """Return the number of the open round, the children for which it waits, and the message that each of these
        children must send, in words such as "its update". If no round is open, the number is -1.
        """
        return (-1, (), "") if self._round is None else (self._round.number, *self._round.lacking)

    def opened(self) -> OpenRound:
        """Return the open round. Raises RunStoppedError if no round is open."""
        if self._round is None:
            raise RunStoppedError("no round is open")
        return self._round

    async def fetch(self, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        """Wait until there is a reply for this child, then stream the reply."""
        check_run(self.terms.run_id, request.run_id)
        child_id = request.child_id
        self.refused.check(child_id)
        held_until = time.monotonic() + self.terms.held_s
        await self._calls.wait_until(
            lambda: self._is_released or self._round is not None or self._is_over_for(request), self.terms.held_s
        )
        self._hear_of(request)
        is_kept = self._round is not None and self._round.is_kept(request)
        await self._calls.wait_until(
            lambda: self._is_released or self._has_news(request),
            held_until - time.monotonic(),
            name=child_id if is_kept else "",
        )
        if self._finished is None and not self._serves(child_id):
            raise NotServedError(
                f"{quoted(child_id)} now belongs to another parent; call FetchAssignment to learn which"
            )
        if self._finished is not None:
            yield pb.ModelPart(finished=pb.Finished(reason=self._finished))
            if self._round is not None and self._round.intake.state_of(child_id) is not None:
                self._know_end.add(child_id)
            self._messages.tell()
        elif not self._has_news(request):
            yield pb.ModelPart(waiting=pb.Waiting(current_round=self._round.number if self._round else -1))
        else:
            async for part in self._parts_for(self.opened(), request):
                yield part
                del part  # releases the memory of this chunk while the next one is awaited

    async def _parts_for(self, opened: OpenRound, request: pb.FetchModelRequest) -> AsyncIterator[pb.ModelPart | bytes]:
        """Yield the open round's messages for a child: its model, or another reply."""
        for first in opened.first(request):
            yield first
        if (said := await opened.instead_of_model(request)) is not None:
            yield said
            return
        child_id, offset = request.child_id, opened.resumed_at(request)
        model = self.terms.clock.model(self._turns.one, opened.offer_to(child_id), child_id, opened.number, offset)
        async for part in model:
            yield part
            del part  # releases the memory of this chunk while the next one is awaited

    def _has_news(self, request: pb.FetchModelRequest) -> bool:
        return self._is_over_for(request) or (self._round is not None and self._round.has_news_for(request))

    def _is_over_for(self, request: pb.FetchModelRequest) -> bool:
        """Return whether the child gets no further model from this parent. The reason is that the run is over, or that
        another parent serves the child.
        """
        return self._finished is not None or not self._serves(request.child_id)

    def _hear_of(self, request: pb.FetchModelRequest) -> None:
        """Inform the open round's stages of a child's request.

        Raises:
            PayloadError: no honest child sends this request. The child is refused.
        """
        with self._refusing(request.child_id):
            self._hear(request)
            if self._round is not None and self._round.asked(request):
                self._tell()

    async def hear(self, message: Message) -> None:
        """Take a child's answer to a question, or its announcement of an update. Ignore a message that the round does
        not need.

        Raises:
            PayloadError: no honest child sends this message. The child is refused.
            SupersededError: the child has begun another call.
        """
        check_run(self.terms.run_id, message.run_id)
        with self._refusing(message.child_id):
            if isinstance(message, pb.UpdateHeader):
                self._uploads.check(self._round, message)
                await self.terms.clock.announced(message)
            if self._round is not None and await self._round.hear(message):
                self._messages.tell()

    async def submit(self, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]) -> pb.UpdateReply:
        """Take one child's update for the open round. If the update misses the round, the reply says so. This is not an
        error.
        """
        check_run(self.terms.run_id, header.run_id)
        try:
            accepted = await self._uploads.take(self._round, header, parts)
        except PayloadError as error:
            self.ban(header.child_id, str(error))
            self._metrics.update("rejected")
            raise
        number = self._round.number if self._round else -1
        return pb.UpdateReply(run_id=self.terms.run_id, accepted=accepted, current_round=number)

    def check_payload(self, header: pb.UpdateHeader) -> None:
        """Raise PayloadError if the encoding, the parts or the tensors of an update are not as this parent expects."""
        self._uploads.check_payload(self._round, header)

    def locate(self, request: pb.LocateUpdateRequest) -> pb.LocateUpdateResponse:
        """Return how many bytes of a child's upload have arrived."""
        check_run(self.terms.run_id, request.run_id)
        opened = self._round
        offset, number = (opened.offset_of(request), opened.number) if opened else (0, -1)
        return pb.LocateUpdateResponse(run_id=self.terms.run_id, offset=offset, current_round=number)

    def evaluate(self, run_id: str, evaluation: pb.Evaluation) -> None:
        """Take a child's measurement of a model that all children measure. If the measurement was taken before, or
        comes too late, ignore it.

        Raises:
            PayloadError: the measurement is impossible. The child is refused.
            NotReadyError: the parent does not offer this model yet, for instance after a restart. The child has to
                fetch the model of the open round.
        """
        check_run(self.terms.run_id, run_id)
        with self._refusing(evaluation.device_id):
            check_evaluation(evaluation)
            if self._finished is not None:
                return  # the measurement has been taken already, or the run is over
            opened = self._round
            if opened is None or opened.number < evaluation.round:
                raise NotReadyError("this model is not offered yet; try again, or fetch the open round's model")
            if not opened.evaluate_only or opened.number > evaluation.round:
                return  # the measurement has been taken already, or its deadline has passed
            opened.intake.limits.check_measured([evaluation])
            opened.intake.accept_evaluation(evaluation.device_id, evaluation)

    @contextmanager
    def _refusing(self, child_id: str) -> Iterator[None]:
        """Refuse a child if the block raises PayloadError. No honest child causes this error."""
        try:
            yield
        except PayloadError as error:
            self.ban(child_id, str(error))
            raise

    def ban(self, child_id: str, reason: str) -> None:
        """Refuse a child until the end of the run. An accepted update of the open round stays in the sum."""
        opened = self._round
        if self.refused.refuse(-1 if opened is None else opened.number, child_id, reason) and opened is not None:
            if not opened.intake.keeps(child_id):
                opened.intake.exclude(child_id)
            self._tell()

    def _tell(self) -> None:
        """Let all children's calls and the stages of the round look for changes."""
        self._calls.tell()
        self._messages.tell()


@dataclass(frozen=True)
class ChildStream:
    """Answer one child's messages on its stream. Each message on the stream takes the place of a call."""

    fetch: Callable[[pb.FetchModelRequest, Any], Awaitable[None]]  # writes the parts of a reply to the context
    submit: Callable[[AsyncIterator[pb.UpdatePart], Any], Awaitable[pb.UpdateReply]]
    hear: Callable[[Message], Awaitable[None]]
    wait: UploadWait = UPLOAD_WAIT  # limit for the payload of an update; the time between updates has no limit

    async def answer(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> None:
        """Answer all messages of the stream."""
        parts = aiter(requests)
        async for part in parts:
            asked: pb.FetchModelRequest | None
            if part.HasField("fetch"):
                asked = part.fetch
            elif part.HasField("answer") or part.HasField("announced"):
                said = getattr(part, part.WhichOneof("part"))
                await self.hear(said)
                asked = said.then_fetch
            else:
                asked = await self._take(part, parts, context)
            del part  # releases the memory of the update while the child waits for the next model
            if asked is not None:
                await self.fetch(asked, context)

    async def _take(self, first: Any, parts: AsyncIterator[Any], context: Any) -> pb.FetchModelRequest | None:
        """Take an update from a stream. Return the child's request for the next model. If the child makes no such
        request, return None.
        """
        update = _UpdateParts(first, Awaited(parts, self.wait, sender_of(first)))
        reply = await self.submit(update, context)
        async for part in update:
            del part  # reads the rest of an update that is late or complete already
        then = pb.FetchModelRequest()
        then.CopyFrom(first.header.then_fetch)
        is_asked = first.header.HasField("then_fetch")
        if not (is_asked and reply.accepted):
            await context.write(pb.ModelPart(reply=reply))
        return then if is_asked else None


class _UpdateParts:
    """Yield the parts of one update from a stream of updates. This object keeps no part that it has yielded."""

    def __init__(self, first: pb.UpdatePart, parts: AsyncIterator[pb.UpdatePart]) -> None:
        self._first: pb.UpdatePart | None = first
        self._parts = parts
        self._left = 0

    def __aiter__(self) -> "_UpdateParts":
        return self

    async def __anext__(self) -> pb.UpdatePart:
        if self._first is not None:
            first, self._first = self._first, None
            if first.HasField("header"):  # otherwise `submit` refuses the part
                self._left = first.header.payload.payload_bytes - first.header.offset
            return first
        if self._left <= 0:
            raise StopAsyncIteration
        part = await anext(self._parts)
        self._left -= len(part.data)
        return part
