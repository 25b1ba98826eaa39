"""The round now open at a parent: what its children start from, and what one is told that has been in it before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedstrata.clock.deadline import Deadline
from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import OffsetError
from fedstrata.experiment import Encoding
from fedstrata.rounds.asking import Asking
from fedstrata.rounds.child import ChildState
from fedstrata.rounds.intake import Intake
from fedstrata.rounds.mask_keys import Masking
from fedstrata.rounds.offer import Offer
from fedstrata.store import AnyModel
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb


@dataclass
class OpenRound:
    """The round now open: its numbers, what children start from, and what they have sent."""

    number: int
    global_round: int
    offers: Mapping[int, Offer]  # by cluster
    intake: Intake
    clusters: Mapping[str, int] = field(default_factory=dict)  # by child; who is not named is in the first
    evaluate_only: bool = False
    plan_version: int = 0
    begins_ns: int = 0  # at the GPS, on the virtual clock
    asking: Asking | None = None
    deadline: Deadline = field(default_factory=Deadline)
    masking: Masking | None = None  # under secure aggregation

    @classmethod
    def of_one(cls, model: AnyModel, *, told: answers_pb2.Answer | None = None, **rest: Any) -> Self:
        """A round in which all children start from one model, and what they are told with it."""
        return cls(offers={0: Offer(model, told=told)}, **rest)

    def announce(self, run_id: str, encoding: Encoding) -> None:
        """Prepare what every child is told first."""
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
        """What a child starts from."""
        return self.offers[self.clusters.get(child_id, 0)]

    def sent_to(self, child_id: str) -> Exchanged:
        """What a child has been sent, for the round's deadline and timeline."""
        offer = self.offer_to(child_id)
        return Exchanged(down_bytes=offer.whole_bytes, stream=offer.cluster)

    def is_base_of(self, child_id: str, round_number: int, digest: bytes) -> bool:
        """Whether a child's update of a round, against the model of a digest if it says one, is one of this round."""
        return self.number == round_number and digest in {b"", self.offer_to(child_id).header.digest}

    @property
    def awaited(self) -> tuple[int, tuple[str, ...], str]:
        """The round's number, for whom it waits, and for what of theirs."""
        if self.masking is not None and not self.masking.is_formed:
            return self.number, self.masking.lacking, "its key for masks"
        return self.number, self.deadline.lacking(self.intake.missing), "its update"

    @property
    def knows_masks(self) -> bool:
        """Whether children can be told whom to mask for, or need not be."""
        return self.masking is None or self.masking.is_formed

    def has_news_for(self, request: pb.FetchModelRequest) -> bool:
        """Whether there is something for a child that asks: a model, or what is said instead."""
        child_id = request.child_id
        if self.intake.is_closed or self.intake.state_of(child_id) is not ChildState.AWAITED or not self.knows_masks:
            return False
        if self.asking is not None and self.asking.holds_back(child_id, answered_round(request), self.number):
            return False
        is_sent = self.is_base_of(child_id, request.sent_round, request.sent_digest)
        return not (is_sent and self.deadline.holds_back(child_id))

    def gathers(self, header: pb.UpdateHeader) -> bool:
        """Whether an update is of this round, and the round gathers updates."""
        is_ours = self.is_base_of(header.child_id, header.round, header.base_digest)
        return is_ours and not self.intake.is_closed and not self.evaluate_only

    def note_announced(self, header: pb.UpdateHeader) -> bool:
        """Keep what a child that the round waits for announces; whether it was wanted.

        Raises:
            PayloadError: it can be no update of that child.
        """
        is_awaited = self.intake.state_of(header.child_id) is ChildState.AWAITED
        if not self.deadline.are_announced or self.is_asking or not is_awaited or not self.gathers(header):
            return False
        self.intake.limits.check_measured(header.evaluations)
        self.deadline.note(header)
        return True

    def is_masked_for(self, header: pb.UpdateHeader) -> bool:
        """Whether an update is masked for those who are in the round now, or is not to be."""
        return self.masking is None or (self.masking.is_formed and header.roster_digest == self.masking.digest)

    def is_in_time(self, header: pb.UpdateHeader) -> bool:
        """Whether an update meets a deadline on the virtual clock; a child that misses it is left out of the round."""
        if self.intake.state_of(header.child_id) is ChildState.AWAITED and self.deadline.is_late(header):
            self.intake.exclude(header.child_id)
            return False
        return True

    def keep_answer(self, child_id: str, answer: answers_pb2.Answer) -> None:
        """Keep a checked answer; one that misses a deadline on the virtual clock leaves its child out of the round.

        Raises:
            PayloadError: it would be late by more than the clock holds.
        """
        if self.asking is not None:
            self.asking.keep(child_id, answer)
            if self.deadline.is_answer_late(child_id, self.asking.answers[child_id]):
                self.intake.exclude(child_id)

    def offset_of(self, request: pb.LocateUpdateRequest) -> int:
        """How many bytes of a child's upload are in, where it is one of this round."""
        is_ours = self.number == request.round and self.intake.state_of(request.child_id) is not None
        return self.intake.offset_of(request.child_id) if is_ours else 0

    def has(self, header: pb.UpdateHeader) -> bool:
        """Whether the update that a header announces is in."""
        is_ours = self.number == header.round and not self.evaluate_only
        return is_ours and self.intake.state_of(header.child_id) is ChildState.ACCEPTED

    def asked_by(self, message: pb.RoundAnswer) -> Asking | None:
        """The question that an answer answers; None where it is not waited for, or not any more."""
        is_awaited = self.intake.state_of(message.child_id) is ChildState.AWAITED
        return self.asking if self.is_asking and self.number == message.round and is_awaited else None

    @property
    def is_asking(self) -> bool:
        """Whether the round waits for its children's answers, or for what follows from them."""
        return self.asking is not None and not self.asking.is_decided


def is_of(request: pb.FetchModelRequest, header: pb.ModelHeader) -> bool:
    """Whether a download that was cut is of the model that the round has now."""
    return request.resume_round == header.round and request.resume_digest == header.digest


def resumed_at(request: pb.FetchModelRequest, offer: Offer) -> int:
    """The byte of the payload from which on a child wants the model. Raises OffsetError."""
    offset, codec = request.resume_offset if is_of(request, offer.header) else 0, offer.codec
    if not 0 <= offset <= codec.payload_bytes or offset % codec.element_bytes:
        raise OffsetError(f"cannot resume at byte {offset} of {codec.payload_bytes}")
    return offset


def answered_round(request: pb.FetchModelRequest) -> int:
    """The round whose question a child has answered; -1 for none."""
    return request.answered_round if request.HasField("answered_round") else -1


def instead_of_model(opened: OpenRound, request: pb.FetchModelRequest) -> pb.ModelPart | None:
    """What a child is told that has been in the open round before; None where it needs the model."""
    child_id, number = request.child_id, opened.number
    if opened.is_base_of(child_id, request.sent_round, request.sent_digest):
        return pb.ModelPart(send_again=pb.SendAgain(round=number, announce=opened.deadline.wants_word_of(child_id)))
    if opened.asking is None or answered_round(request) != number:
        return None
    if opened.asking.clusters is None:  # the answer was given to an earlier life of this parent
        return pb.ModelPart(send_again=pb.SendAgain(round=number))
    cluster = opened.asking.clusters.get(child_id, 0)
    return pb.ModelPart(go_on=pb.GoOn(round=number, cluster=cluster))
