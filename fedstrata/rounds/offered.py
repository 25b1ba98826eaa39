"""What a child gets of the open round: its model, or what is said instead to one that has been in it before."""

from collections.abc import AsyncIterator

from fedstrata.clock.round_side import ParentClock
from fedstrata.rounds.one_at_a_time import Turns
from fedstrata.rounds.open_round import OpenRound, instead_of_model, resumed_at
from fedstrata.v1 import rounds_pb2 as pb


async def offered(
    clock: ParentClock, turns: Turns, opened: OpenRound, request: pb.FetchModelRequest
) -> AsyncIterator[pb.ModelPart | bytes]:
    """The parts of a reply; before all else, under secure aggregation, the roster that the child does not know."""
    if opened.masking is not None and opened.masking.digest != request.roster_digest:
        yield opened.masking.part
    if (said := instead_of_model(opened, request)) is not None:
        if opened.asking is not None and said.HasField("go_on"):
            await clock.heard(request.child_id, opened.number, opened.asking.went_on_ns)
        yield said
        return
    offer = opened.offer_to(request.child_id)
    offset = resumed_at(request, offer) if offer.small_reply is None else 0
    async for part in clock.model(turns.one, offer, request.child_id, opened.number, offset):
        yield part
        del part  # a chunk; the next may be long in coming
