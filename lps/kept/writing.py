"""When the start of an LPS round is written: before the round is opened, or, of a small model, while devices train.

What is opened before it is on disk is only ever one round ahead of it, and that round is neither closed nor told of
before the files are there: an LPS that is killed in between goes on one round earlier, with the same bits.
"""

import asyncio
from collections.abc import Iterator

from fedstrata.tensors import Flat
from fedstrata.v1 import gps_service_pb2 as pb
from lps.kept.state import ClusterState, RoundStart


class Writing:
    """Saves one cluster's state; at most one write is under way."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._under_way: asyncio.Future[None] | None = None

    async def save(self, lps_round: int, pieces: Iterator[Flat], report: pb.ReportHeader) -> RoundStart:
        """The start of an LPS round, to be opened at once; on disk when `done` comes back."""
        await self.done()
        if not self._state.layout.is_small:
            return await asyncio.to_thread(self._state.save, lps_round, pieces, report)
        standing = self._state.begun(lps_round, pieces, report)
        model = standing.model
        self._under_way = asyncio.get_running_loop().run_in_executor(
            None, self._state.keep, lps_round, model.pieces(), report, model.digest
        )
        return standing

    async def done(self) -> None:
        """Wait until all that was saved is on disk.

        Raises:
            StateError: the disk is full or refuses.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            await under_way
