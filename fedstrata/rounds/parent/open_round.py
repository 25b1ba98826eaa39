"""The open round of a parent: its models, its children, and its stages in order."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.round_side import ParentClock
from fedstrata.errors import OffsetError
from fedstrata.experiment import Encoding, LinkSettings, TierDeadline
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.time_limits import HOLD_S
from fedstrata.process.waiting import Changes
from fedstrata.rounds.parent.children import ChildState, Refusals
from fedstrata.rounds.parent.intake import Intake
from fedstrata.rounds.parent.offer import Offer
from fedstrata.v1 import rounds_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class RoundTerms:
    """Hold the settings that all rounds of one parent have in common."""

    run_id: str  # of the attempt: see fedstrata/store/attempts.py
    link: LinkSettings
    wait: TierDeadline
    clock: ParentClock = field(default_factory=ParentClock)
    held_s: float = HOLD_S  # longest time for which a child's call is held


Message = pb.RoundAnswer | pb.UpdateHeader  # an answer of a child, or the announcement of its update


class Verdict(Enum):
    """Name the possible decisions about an update that a child begins to send."""

    TAKEN = "taken"
    LATE = "late"
    NOT_YET = "not yet"  # the round asks for the update later


class Stage:
    """Define one optional part of a round, such as a question. This base class changes nothing. A round calls its
    stages in order.

    If a feature is off, the round has no stage for it.
    """

    @property
    def kept(self) -> Collection[str]:
        """The children that keep an update until this stage asks for it. Only this stage wakes their calls."""
        return ()

    @property
    def is_over(self) -> bool:
        """Return whether this stage of the round is over, so that the next stage may take children's messages."""
        return True

    def begin(self, around: "Around") -> None:
        """Prepare this stage before any child learns that the round is open."""

    def asked(self, request: pb.FetchModelRequest) -> bool:
        """Note that a child asks for the model. Return whether this may change the replies to waiting children.

        Raises:
            PayloadError: no honest child sends this request.
        """
        return False

    def holds_back(self, request: pb.FetchModelRequest, *, is_sent: bool) -> bool:
        """Return whether a child must wait for the reply to its request. `is_sent` means that the child has sent its
        update of this round.
        """
        return False

    def first(self, request: pb.FetchModelRequest) -> pb.ModelPart | None:
        """Return a message that a child gets before all other messages. If this stage has no such message, return
        None.
        """
        return None

    async def instead_of_model(self, request: pb.FetchModelRequest, *, is_sent: bool) -> pb.ModelPart | None:
        """Return a reply instead of the model, for a child that does not need the model. If this stage has no such
        reply, return None.
        """
        return None

    async def hear(self, message: Message) -> bool:
        """Process an answer or an announcement of a child for which the round waits. Return whether this stage uses the
        message.

        Raises:
            PayloadError: no honest child sends this message.
        """
        return False

    def judge(self, header: pb.UpdateHeader) -> Verdict:
        """Return the decision about an update of this round. If it is late, leave its child out of the round."""
        return Verdict.TAKEN

    def lacking(self) -> tuple[tuple[str, ...], str] | None:
        """Return the children for which this stage waits, and the message that each of these children must send, in
        words such as "its update". If this stage waits for no child, return None.
        """
        return None

    async def gather(self) -> None:
        """Wait for the answers or announcements that children send before their updates. Leave out the children that
        send none.
        """

    def go_on(self, clusters: Mapping[str, int]) -> None:
        """Note that the round now collects updates. From now on, each child belongs to its cluster in `clusters`."""


@dataclass
class OpenRound:
    """Hold the open round: its number, the models for its children, the sum of their updates (`intake`), and its
    stages.
    """

    number: int
    global_round: int
    offers: Mapping[int, Offer]  # offers by cluster
    intake: Intake
    clusters: Mapping[str, int] = field(default_factory=dict)  # cluster by child; other children are in cluster 0
    earlier: Mapping[str, Offer] = field(default_factory=dict)  # by child that trains a model of an earlier round
    evaluate_only: bool = False
    plan_version: int = 0
    begins_ns: int = 0  # at the GPS, on the virtual clock: begin of the global round
    stages: Sequence[Stage] = ()

    def announce(self, run_id: str, encoding: Encoding) -> None:
        """Prepare the headers of the round's models. Every child receives the header before the model."""
        header = pb.ModelHeader(
            run_id=run_id,
            round=self.number,
            global_round=self.global_round,
            evaluate_only=self.evaluate_only,
            plan_version=self.plan_version,
            begins_ns=self.begins_ns,
        )
        for offer in self.offers.values():
            offer.announce(header, encoding)

    def offer_to(self, child_id: str) -> Offer:
        """Return the model that is sent to a child."""
        earlier = self.earlier.get(child_id)
        return self.offers[self.clusters.get(child_id, 0)] if earlier is None else earlier

    def number_for(self, child_id: str) -> int:
        """Return the number of the round that this child is in. If the child still trains a model of an earlier round,
        this is the number of the earlier round.
        """
        earlier = self.earlier.get(child_id)
        return self.number if earlier is None else int(earlier.header.round)

    def sent_to(self, child_id: str) -> Exchanged:
        """Return the transfer of the child's model: the bytes of the model and its header, and the number of the
        cluster that the model belongs to. The round's deadline and timeline depend on these values.
        """
        return self.offer_to(child_id).transfer

    def is_base_of(self, child_id: str, round_number: int, digest: bytes) -> bool:
        """Return whether an update belongs to the child's round (`round_number`), and was computed from the model that
        the parent sends to the child (`digest`). An empty digest matches every model.
        """
        return self.number_for(child_id) == round_number and digest in {b"", self.offer_to(child_id).header.digest}

    # --- what children ask --------------------------------------------------------------------

    def asked(self, request: pb.FetchModelRequest) -> bool:
        """Inform all stages of the round that a child asks for the model. Return whether this may change the replies to
        waiting children.

        Raises:
            PayloadError: no honest child sends this request.
        """
        are_news = [stage.asked(request) for stage in self.stages]
        return any(are_news)

    def has_news_for(self, request: pb.FetchModelRequest) -> bool:
        """Return whether the round has a reply to a child's request: a model or another message."""
        if self.intake.is_closed or not self.awaits(request.child_id):
            return False
        return not any(stage.holds_back(request, is_sent=self._is_sent(request)) for stage in self.stages)

    @property
    def kept(self) -> Collection[str]:
        """The children that keep an update until the round asks for it."""
        return {child_id for stage in self.stages for child_id in stage.kept}

    def is_kept(self, request: pb.FetchModelRequest) -> bool:
        """Return whether the child of a request keeps an update until the round asks for it."""
        return any(request.child_id in stage.kept for stage in self.stages) and self._is_sent(request)

    def first(self, request: pb.FetchModelRequest) -> list[pb.ModelPart]:
        """Return the messages that a child gets before its model."""
        return [part for stage in self.stages if (part := stage.first(request)) is not None]

    async def instead_of_model(self, request: pb.FetchModelRequest) -> pb.ModelPart | None:
        """Return the reply for a child that already has the model of this round. If the child needs the model, return
        None.
        """
        is_sent = self._is_sent(request)
        for stage in self.stages:
            if (said := await stage.instead_of_model(request, is_sent=is_sent)) is not None:
                return said
        number = self.number_for(request.child_id)
        return pb.ModelPart(send_again=pb.SendAgain(round=number)) if is_sent else None

    def resumed_at(self, request: pb.FetchModelRequest) -> int:
        """Return the position, in bytes of the payload, from which a child continues its download. Raises OffsetError
        for an impossible position.
        """
        offer = self.offer_to(request.child_id)
        is_of_it = (request.resume_round, request.resume_digest) == (offer.header.round, offer.header.digest)
        offset, codec = request.resume_offset if is_of_it and offer.small_reply is None else 0, offer.codec
        if not 0 <= offset <= codec.payload_bytes or offset % codec.element_bytes:
            raise OffsetError(f"cannot resume the download at byte {offset} of {codec.payload_bytes}")
        return offset

    def _is_sent(self, request: pb.FetchModelRequest) -> bool:
        return not self.evaluate_only and self.is_base_of(request.child_id, request.sent_round, request.sent_digest)

    # --- what children send -------------------------------------------------------------------

    def awaits(self, child_id: str) -> bool:
        """Return whether the round still waits for a child."""
        return self.intake.state_of(child_id) is ChildState.AWAITED

    async def hear(self, message: Message) -> bool:
        """Process a child's answer or announcement. Return whether a stage of the round uses the message.

        Raises:
            PayloadError: no honest child sends this message.
        """
        if message.round != self.number_for(message.child_id) or not self.awaits(message.child_id):
            return False
        for stage in self.stages:
            if await stage.hear(message):
                return True
            if not stage.is_over:
                break
        return False

    def gathers(self, header: pb.UpdateHeader) -> bool:
        """Return True if an update belongs to this round, and the round still collects updates."""
        is_ours = self.is_base_of(header.child_id, header.round, header.base_digest)
        return is_ours and not self.intake.is_closed and not self.evaluate_only

    def judge(self, header: pb.UpdateHeader) -> Verdict:
        """Return the decision about an update of this round. The first stage that does not accept the update
        decides.
        """
        verdicts = (stage.judge(header) for stage in self.stages)
        return next((each for each in verdicts if each is not Verdict.TAKEN), Verdict.TAKEN)

    def has(self, header: pb.UpdateHeader) -> bool:
        """Return whether the update with this header has arrived completely."""
        is_ours = self.number_for(header.child_id) == header.round and not self.evaluate_only
        return is_ours and self.intake.state_of(header.child_id) is ChildState.ACCEPTED

    def offset_of(self, request: pb.LocateUpdateRequest) -> int:
        """Return how many bytes of a child's upload have arrived. If the upload belongs to another round, return 0."""
        is_ours = (
            self.number_for(request.child_id) == request.round and self.intake.state_of(request.child_id) is not None
        )
        return self.intake.offset_of(request.child_id) if is_ours else 0

    @property
    def lacking(self) -> tuple[tuple[str, ...], str]:
        """Return the children for which the round waits, and the message that each of these children must send, in
        words.
        """
        said = (stage.lacking() for stage in self.stages)
        return next((each for each in said if each is not None), (self.intake.missing, "its update"))


@dataclass(frozen=True, kw_only=True)
class Around:
    """Hold the objects that a stage of a round uses: the round, the settings of all rounds, the refused children,
    metrics and the log.
    """

    opened: OpenRound
    terms: RoundTerms
    refused: Refusals
    calls: Changes  # wakes children's calls
    messages: Changes  # wakes the stages that wait for children
    metrics: ProcessMetrics
    log: EventLog
