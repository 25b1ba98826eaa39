"""A child's side of the rounds: it fetches models and submits updates, and goes on where a cut left off."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from inspect import GEN_CLOSED, getgeneratorstate

from fedstrata.clock.round_side import ChildClock
from fedstrata.errors import ParentAwayError, PayloadError
from fedstrata.experiment import LinkSettings
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.process.sleeping import CALL_S, Backoff, payload_timeout_s
from fedstrata.rounds.download import Download, are_of_one_model
from fedstrata.rounds.exchanged import Identity, Masker, Offered, ParentCalls, ReceivedModel, Update
from fedstrata.rounds.offer import MODEL_PART
from fedstrata.rpc.chunk import serialised_chunk, serialised_whole
from fedstrata.rpc.client import CallError, StatusCode, is_passing, refusal
from fedstrata.rpc.payload import Acceptance, payload_header
from fedstrata.tensors import Flat, Layout, PayloadCodec
from fedstrata.v1 import answers_pb2, tensors_pb2
from fedstrata.v1 import rounds_pb2 as pb

KNOWN_KINDS = 8  # of models from one parent; what is offered may differ from round to round


class RoundClient:
    """Speaks for one child to its parent."""

    def __init__(
        self, calls: ParentCalls, identity: Identity, layout: Layout, *, link: LinkSettings, part: str, log: EventLog,
        clock: ChildClock | None = None,
    ) -> None:  # fmt: skip
        self._calls = calls
        self.identity = identity
        self.layout = layout
        self.link = link
        self._part = part
        self.accepts_model: Callable[[pb.ModelHeader], Acceptance] = lambda header: Acceptance(
            layout, link.down, MODEL_PART
        )
        self._models: dict[tuple[int | str, ...], Acceptance] = {}  # by how many clusters, and what of them is in it
        self._codec: PayloadCodec | None = None  # without scales, of the layout that went up last
        self._log = log
        self.clock = clock or ChildClock()
        self._timeout_s = payload_timeout_s(layout.float32_bytes, calls.held_s) + self.clock.slowest_s
        self._partial: Download | None = None
        self._payload: tensors_pb2.PayloadHeader | None = None  # announced last, and of which layout
        self._announced_layout: Layout | None = None
        self.link_bytes: Callable[[], list[pb.LinkBytes]] = list
        self.answered_round: int | None = None  # in which a question was answered and nothing has been heard since
        self.masks: Masker | None = None  # under secure aggregation
        self.held_round: int | None = None  # of a device: the round whose model it can send up when asked

    def codec_for(self, flat: Flat, layout: Layout | None = None) -> PayloadCodec:
        """The codec in which a vector of this child goes up, of another layout than its own where one is given."""
        layout = self.layout if layout is None else layout
        if self.link.up == "int8":
            return PayloadCodec.for_vector(layout, self.link.up, flat)
        if self._codec is None or self._codec.layout != layout:
            self._codec = PayloadCodec(layout, self.link.up)
        return self._codec

    async def fetch(self, sent_round: int, sent_digest: bytes = b"") -> Offered:
        """Wait for the next round's model, or for word that something has to be sent again or the run is over.

        `sent_round` and `sent_digest` say what the update is against that this child has sent last; -1 for none.

        Raises:
            FedstrataError: the parent refuses this child; ParentAwayError: it does not answer.
        """
        backoff = Backoff()
        while True:
            offset = self._partial.offset if self._partial else 0
            try:
                reply = await self._fetch_once(sent_round, sent_digest)
            except CallError as error:
                if not is_passing(error):
                    raise refusal(error) from None
                self._log.debug("fetch_cut", status=error.code().name, offset=offset)
                if self._partial and self._partial.offset > offset:
                    backoff.reset()
                await self._pause(backoff)
                continue
            if reply is not None:
                return reply
            backoff.reset()

    def mask_by(self, masks: Masker) -> None:
        """Have updates go up masked, on the grid of sums: twice as large as they would be."""
        self.masks = masks
        self._timeout_s = payload_timeout_s(2 * self.layout.float32_bytes, self._calls.held_s) + self.clock.slowest_s

    def close(self) -> None:
        """Nothing more is asked of the parent."""
        self._calls.close()

    async def _pause(self, backoff: Backoff) -> None:
        """Let a while go by before the next try, if there is to be one."""
        if self._calls.patience is not None and backoff.attempts >= self._calls.patience:
            raise ParentAwayError(f"no answer after {backoff.attempts} tries")
        await backoff.pause()

    async def _fetch_once(self, sent_round: int, sent_digest: bytes) -> Offered | None:
        """One call; None when there is nothing yet. What has arrived of a model that was cut stays in `_partial`."""
        request = self._request(sent_round, sent_digest)
        call = self._calls.fetch(request, timeout=self._timeout_s, wait_for_ready=self._waits)
        return await self._read(call)

    async def _read(self, call: AsyncIterator[pb.ModelPart]) -> Offered | None:
        """What a call answers."""
        async for part in call:
            match part.WhichOneof("part"):
                case "header":
                    self._begin(part.header)
                case "data" if self._partial is not None:
                    self._partial.add(part.data)
                    reach("download", self._partial.header.round)
                case "roster" if self.masks is not None:
                    self.masks.take(part.roster)
                case "reply":  # in an exchange, where the update was not taken
                    self._log.info("update_late", current_round=part.reply.current_round)
                case "send_again" | "send_model" | "go_on" | "finished" as kind:
                    self._partial = None
                    said: Offered = getattr(part, kind)
                    return said
                case _:
                    return None
        partial = self._partial
        if partial is None or partial.offset != partial.codec.payload_bytes:
            return None
        self._partial, header, self.answered_round = None, partial.header, None
        return ReceivedModel(
            round=header.round,
            global_round=header.global_round,
            evaluate_only=header.evaluate_only,
            plan_version=header.plan_version,
            flat=partial.flat,
            digest=header.digest,
            cluster=header.cluster,
            clusters=header.clusters,
            offered=tuple(header.offered),
            offers=tuple(tuple(offered.clusters) for offered in header.offers),
            withdrawn=tuple(header.withdrawn),
            told=header.told if header.HasField("told") else None,
            begins_ns=header.begins_ns,
            whole_bytes=self.clock.whole_bytes(header),
        )

    @property
    def _waits(self) -> bool:
        """Whether a call waits for a parent that is away, instead of coming back at once."""
        return self._calls.patience is None

    def _request(self, sent_round: int, sent_digest: bytes) -> pb.FetchModelRequest:
        who, partial = self.identity, self._partial
        return pb.FetchModelRequest(
            run_id=who.run_id,
            child_id=who.child_id,
            cluster_id=who.cluster_id,
            sent_round=sent_round,
            sent_digest=sent_digest,
            resume_round=partial.header.round if partial else -1,
            resume_offset=partial.offset if partial else 0,
            held_round=self.held_round,
            term=who.term,
            resume_digest=partial.header.digest if partial else b"",
            answered_round=self.answered_round,
            mask_key=self.masks.key if self.masks else None,
            roster_digest=self.masks.digest if self.masks else b"",
        )

    def _begin(self, header: pb.ModelHeader) -> None:
        """Begin a download, or go on with the one that was cut."""
        own = header.cluster if header.offered else -1
        kind: tuple[int | str, ...] = (header.clusters, own, *header.offered, *header.withdrawn)
        if kind not in self._models:
            if len(self._models) == KNOWN_KINDS:
                self._models.clear()
            self._models[kind] = self.accepts_model(header)
        codec, _ = self._models[kind].of(header.payload)
        partial = self._partial
        if partial is not None and header.offset == partial.offset and are_of_one_model(header, partial.header):
            return
        if header.offset:
            raise PayloadError(f"the model of round {header.round} begins at byte {header.offset}, which is not here")
        self._partial = Download(header, codec)

    async def answer(self, round_number: int, answer: answers_pb2.Answer) -> Offered:
        """Answer the question of a round and wait for how it goes on; raises as `fetch` does."""
        who, self.answered_round = self.identity, round_number
        message = pb.RoundAnswer(
            run_id=who.run_id,
            child_id=who.child_id,
            cluster_id=who.cluster_id,
            round=round_number,
            answer=answer,
            then_fetch=self._request(-1, b""),
        )
        offered = await self._said(pb.UpdatePart(answer=message), "answer_cut", round_number)
        return offered if offered is not None else await self.fetch(-1)

    async def announce(self, update: Update) -> Offered:
        """Say what an update is before it is sent, and wait for what comes after that; raises as `fetch` does."""
        header = self._header(update, 0, then_fetch=self._request(update.round, update.base_digest))
        offered = await self._said(pb.UpdatePart(announced=header), "announcement_cut", update.round)
        return offered if offered is not None else await self.fetch(update.round, update.base_digest)

    async def _said(self, part: pb.UpdatePart, cut: str, round_number: int) -> Offered | None:
        """What is said to one part; None where nothing is, or the call was cut."""

        def parts() -> Iterator[pb.UpdatePart]:
            yield part
            if part.HasField("announced"):
                reach("upload", round_number)

        try:
            return await self._read(self._calls.exchange(parts(), timeout=self._timeout_s, wait_for_ready=self._waits))
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
        parts = self._parts(update, 0, then_fetch=self._request(update.round, update.base_digest))
        try:
            answer = await self._read(self._calls.exchange(parts, timeout=self._timeout_s, wait_for_ready=self._waits))
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
                reply: pb.UpdateReply = await self._calls.submit(
                    self._parts(update, offset), timeout=self._timeout_s, wait_for_ready=self._waits
                )
                return reply
            except CallError as error:
                if error.code() is not StatusCode.OUT_OF_RANGE and not is_passing(error):
                    raise refusal(error) from None
                self._log.debug("submit_cut", status=error.code().name, round=update.round)
            await self._pause(backoff)
            offset = await self._locate(update.round)

    def _header(self, update: Update, offset: int, then_fetch: pb.FetchModelRequest | None = None) -> pb.UpdateHeader:
        who = self.identity
        return pb.UpdateHeader(
            run_id=who.run_id,
            child_id=who.child_id,
            cluster_id=who.cluster_id,
            round=update.round,
            payload=self._announced(update),
            offset=offset,
            train_loss=update.train_loss,
            evaluations=update.evaluations,
            lps_rounds=update.lps_rounds,
            exclusions=update.exclusions,
            link_bytes=self.link_bytes(),
            lps_id=who.lps_id,
            term=who.term,
            then_fetch=then_fetch,
            base_digest=update.base_digest,
            num_examples=update.num_examples if update.payload is not None else 0,
            work=update.work,
            roster_digest=update.roster_digest,
            unfit=update.unfit,
        )

    def _parts(
        self, update: Update, offset: int, then_fetch: pb.FetchModelRequest | None = None
    ) -> Generator[pb.UpdatePart | bytes, None, None]:
        header = self._header(update, offset, then_fetch)
        if update.unfit:
            yield pb.UpdatePart(header=header)
            return
        chunks = update.codec.chunks(update.read, offset)
        if update.codec.is_small:
            yield serialised_whole(pb.UpdatePart, header, next(chunks, b""))
            reach("upload", update.round)
            return
        yield pb.UpdatePart(header=header)
        for chunk in chunks:
            for start in range(0, len(chunk), self.clock.piece_bytes):
                yield serialised_chunk(pb.UpdatePart, chunk[start : start + self.clock.piece_bytes])
                reach("upload", update.round)

    def _announced(self, update: Update) -> tensors_pb2.PayloadHeader:
        """The header of an update's payload; the same again as long as updates differ in nothing but their values."""
        if update.payload is not None:
            return update.payload
        known = self._payload if self._announced_layout is update.codec.layout else None
        if known is None or update.codec.scales or known.parts[0].num_examples != update.num_examples:
            known = payload_header(update.codec, name=self._part, num_examples=update.num_examples)
            self._payload, self._announced_layout = known, update.codec.layout
        return known

    async def _locate(self, round_number: int) -> int:
        who = self.identity
        request = pb.LocateUpdateRequest(
            run_id=who.run_id, child_id=who.child_id, cluster_id=who.cluster_id, round=round_number
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
