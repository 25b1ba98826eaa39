"""The messages of a child's uploads. An upload can begin at any byte of an update."""

from collections.abc import Callable, Generator

from fedstrata.clock.round_side import ChildClock
from fedstrata.process.fault_points import reach
from fedstrata.rounds.child.models_and_updates import Identity, Update
from fedstrata.rpc.chunk import serialised_chunk, serialised_whole
from fedstrata.rpc.payload import payload_header
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tensors import Layout
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1 import tensors_pb2


class Sending:
    """Create the messages with which a child sends its updates."""

    def __init__(self, identity: Identity, clock: ChildClock, link_bytes: Callable[[], list[pb.LinkBytes]]) -> None:
        """Set `link_bytes`, which returns the byte counts that each update reports."""
        self._identity = identity
        self._clock = clock
        self._link_bytes = link_bytes
        self._payload: tensors_pb2.PayloadHeader | None = None  # last announced header, for the layout below
        self._announced_layout: Layout | None = None

    def header(
        self, update: Update, offset: int = 0, *, then_fetch: pb.FetchModelRequest | None = None
    ) -> pb.UpdateHeader:
        """Return the header of an upload that begins at byte `offset`. `then_fetch` is a request for the next model in
        the same call.
        """
        who = self._identity
        header = pb.UpdateHeader(
            run_id=who.run_id,
            child_id=who.child_id,
            home_id=who.home_id,
            round=update.round,
            payload=self._announced(update),
            offset=offset,
            train_loss=update.train_loss,
            evaluations=update.evaluations,
            lps_rounds=update.lps_rounds,
            exclusions=update.exclusions,
            link_bytes=self._link_bytes(),
            lps_id=who.lps_id,
            term=who.term,
            then_fetch=then_fetch,
            base_digest=update.base_digest,
            num_examples=update.num_examples if update.payload is not None else 0,
            work=update.work,
        )
        header.MergeFrom(update.note)
        return header

    def parts(
        self, update: Update, offset: int = 0, *, then_fetch: pb.FetchModelRequest | None = None
    ) -> Generator[pb.UpdatePart | bytes, None, None]:
        """Yield the messages of an upload that begins at byte `offset`. The first message has the header that the
        method `header` returns for the same arguments.
        """
        header = self.header(update, offset, then_fetch=then_fetch)
        if header.unfit:
            yield pb.UpdatePart(header=header)
            return
        chunks = update.codec.chunks(update.read, offset)
        if update.codec.is_small:
            yield serialised_whole(pb.UpdatePart, header, next(chunks, b""))
            reach("upload", update.round)
            return
        yield pb.UpdatePart(header=header)
        for chunk in chunks:
            for start in range(0, len(chunk), self._clock.piece_bytes):
                yield serialised_chunk(pb.UpdatePart, chunk[start : start + self._clock.piece_bytes])
                reach("upload", update.round)

    def _announced(self, update: Update) -> tensors_pb2.PayloadHeader:
        """Return the header of an update's payload. Updates that differ only in the values of their tensors share one
        header.
        """
        if update.payload is not None:
            return update.payload
        known = self._payload if self._announced_layout is update.codec.layout else None
        if known is None or update.codec.scales or known.parts[0].num_examples != update.num_examples:
            known = payload_header(update.codec, name=UPDATE_PART, num_examples=update.num_examples)
            self._payload, self._announced_layout = known, update.codec.layout
        return known
