"""What a child gets of the open round: its model, or what is said instead to one that has been in it before."""

from collections.abc import AsyncIterator

from fedstrata.clock.transfers import Transfers
from fedstrata.process.fault_points import reach
from fedstrata.rounds.one_at_a_time import Turns
from fedstrata.rounds.open_round import OpenRound, instead_of_model, resumed_at
from fedstrata.rounds.paced import paced_model
from fedstrata.v1 import rounds_pb2 as pb


async def offered(
    transfers: Transfers | None, turns: Turns, opened: OpenRound, request: pb.FetchModelRequest
) -> AsyncIterator[pb.ModelPart | bytes]:
    """The parts of a reply; before all else, under secure aggregation, the roster that the child does not know."""
    if opened.masking is not None and opened.masking.digest != request.roster_digest:
        yield opened.masking.part
    if (said := instead_of_model(opened, request)) is not None:
        if transfers is not None and opened.asking is not None and said.HasField("go_on"):
            await transfers.heard(request.child_id, opened.number, opened.asking.went_on_ns)
        yield said
        return
    small_reply = opened.offer_to(request.child_id).small_reply
    if transfers is None and small_reply is not None:
        yield small_reply
        reach("download", opened.number)
        return
    parts = _streamed(turns, opened, request) if transfers is None else paced_model(transfers, turns, opened, request)
    async for part in parts:
        yield part
        del part  # a chunk; the next may be long in coming


async def _streamed(
    turns: Turns, opened: OpenRound, request: pb.FetchModelRequest
) -> AsyncIterator[pb.ModelPart | bytes]:
    """A header, then chunks, each in a turn of its own."""
    offer = opened.offer_to(request.child_id)
    yield offer.header_part(offset := resumed_at(request, offer))
    while offset < offer.codec.payload_bytes:
        async with turns.one(request.child_id):
            yield await offer.chunks.at(offset)
        offset = offer.chunks.end_of(offset)
        reach("download", opened.number)
