"""A child's downloads. A model arrives part by part. If the connection is cut, the child later fetches the missing
parts.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import numpy as np

from fedstrata.clock.round_side import ChildClock
from fedstrata.errors import PayloadError
from fedstrata.process.fault_points import reach
from fedstrata.process.logs import EventLog
from fedstrata.rounds.child.models_and_updates import Identity, Offered, ReceivedModel, Shield
from fedstrata.rpc.payload import Acceptance
from fedstrata.tensors import Flat, PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb

KNOWN_KINDS = 8  # kinds of models from one parent that are kept; rounds may offer streams of different clusters


@dataclass
class Download:
    """Hold a model of which only a part may have arrived so far."""

    header: pb.ModelHeader
    codec: PayloadCodec
    flat: Flat = field(default_factory=lambda: np.empty(0, np.float32))
    offset: int = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add the next bytes. Raises PayloadError for bytes that cannot belong to this model."""
        values = self.codec.decode(data, self.offset)
        if len(values) == self.codec.layout.size and values.flags.aligned:  # the whole model, usable without a copy
            self.flat, self.offset = values, len(data)
            return
        if not len(self.flat):
            self.flat = np.empty(self.codec.layout.size, np.float32)
        start = self.offset // self.codec.element_bytes
        self.flat[start : start + len(values)] = values
        self.offset += len(data)


class Receiving:
    """Make requests for models, and read a parent's replies. After a cut, keep the part that has arrived."""

    def __init__(
        self,
        identity: Identity,
        clock: ChildClock,
        log: EventLog,
        accepts: Callable[[pb.ModelHeader], Acceptance],
        shield: Shield,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._log = log
        self._accepts = accepts
        self._shield = shield
        self._known: dict[tuple[int | str, ...], Acceptance] = {}  # by the clusters in a header, see `_begin`
        self._partial: Download | None = None
        self.answered_round: int | None = None  # round of the last answer, until the parent replies
        self.held_round: int | None = None

    @property
    def offset(self) -> int:
        """Return how many bytes of the model that is being downloaded have arrived."""
        return self._partial.offset if self._partial else 0

    def request(self, sent_round: int = -1, sent_digest: bytes = b"") -> pb.FetchModelRequest:
        """Return the request for the next model or, after a cut, for the missing bytes of a model.

        `sent_round` and `sent_digest` name the model from which the child's last update was computed. Without an
        update, `sent_round` is -1.
        """
        who, partial = self._identity, self._partial
        request = pb.FetchModelRequest(
            run_id=who.run_id,
            child_id=who.child_id,
            home_id=who.home_id,
            sent_round=sent_round,
            sent_digest=sent_digest,
            resume_round=partial.header.round if partial else -1,
            resume_offset=self.offset,
            held_round=self.held_round,
            term=who.term,
            resume_digest=partial.header.digest if partial else b"",
            answered_round=self.answered_round,
        )
        self._shield.mark(request)
        return request

    async def read(self, call: AsyncIterator[pb.ModelPart]) -> Offered | None:
        """Read the messages of a call, and return the reply. If the reply is missing or incomplete, return None."""
        async for part in call:
            match part.WhichOneof("part"):
                case "header":
                    self._begin(part.header)
                case "data" if self._partial is not None:
                    self._partial.add(part.data)
                    reach("download", self._partial.header.round)
                case "roster":
                    self._shield.take(part.roster)
                case "reply":  # the parent did not take the update of this exchange
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
        self._partial = self.answered_round = None
        return ReceivedModel.of(partial.header, partial.flat, self._clock.whole_bytes(partial.header))

    def _begin(self, header: pb.ModelHeader) -> None:
        """Begin a download, or continue a download that was cut. Raises PayloadError if this child cannot use a model
        with this header.
        """
        own = header.cluster if header.offered else -1
        kind: tuple[int | str, ...] = (header.clusters, own, *header.offered, *header.withdrawn)
        if kind not in self._known:
            if len(self._known) == KNOWN_KINDS:
                self._known.clear()
            self._known[kind] = self._accepts(header)
        codec, _ = self._known[kind].of(header.payload)
        partial = self._partial
        if partial is not None:
            is_same = (header.round, header.digest) == (partial.header.round, partial.header.digest)
            if is_same and header.offset == partial.offset:
                return
        if header.offset:
            raise PayloadError(
                f"the model of round {header.round} begins at byte {header.offset}, but earlier bytes are missing"
            )
        self._partial = Download(header, codec)
