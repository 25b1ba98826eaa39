"""The data of an update on its way into the sum of a round."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fedstrata.errors import PayloadError
from fedstrata.process.fault_points import reach
from fedstrata.rounds.one_at_a_time import Turns
from fedstrata.rounds.open_round import OpenRound
from fedstrata.rounds.upload import Upload
from fedstrata.v1 import rounds_pb2 as pb


async def fold_parts(
    opened: OpenRound, upload: Upload, parts: AsyncIterator[pb.UpdatePart], turns: Turns | None
) -> None:
    """Add what follows an update's header to the sum; of what is not small each chunk in a turn of its own.

    `turns` is None where pieces are small and wait for their links instead, as on the real clock.
    """
    if upload.codec.is_small or turns is None:
        async for part in parts:
            await _fold(opened, upload, part)
        return
    async with aclosing(turns.of(upload.child_id, parts)) as taken:
        async for part in taken:
            await _fold(opened, upload, part)
            del part  # the next has to wait for its turn


async def _fold(opened: OpenRound, upload: Upload, part: Any) -> None:
    if part.WhichOneof("part") != "data":
        raise PayloadError("after its header an update has data only")
    await opened.intake.fold(upload, part.data)
    reach("upload", opened.number)
