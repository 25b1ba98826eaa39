"""The parent's side of uploads. The parent checks the header of an update, receives its parts, and adds them to the sum
of the open round.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, nullcontext
from typing import Any

from fedstrata.errors import PayloadError, SupersededError, UnknownChildError
from fedstrata.process.fault_points import reach
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.quoting import quoted
from fedstrata.rounds.parent.children import ChildState, Refusals, Upload
from fedstrata.rounds.parent.open_round import OpenRound, RoundTerms, Verdict
from fedstrata.rounds.parent.report_checks import check_notes
from fedstrata.rpc.payload import Acceptance
from fedstrata.rpc.stream import Turns
from fedstrata.tensors import PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb

Announced = tuple[PayloadCodec, tuple[int, ...]]  # codec and weights of an update


class Uploads:
    """Receive the updates of the open round."""

    def __init__(
        self,
        terms: RoundTerms,
        metrics: ProcessMetrics,
        refused: Refusals,
        turns: Turns,
        accepts_updates: Callable[[int], Acceptance],
    ) -> None:
        self._accepts = accepts_updates  # form of updates of a round up to the open round
        self._terms = terms
        self._metrics = metrics
        self._refused = refused
        self._turns = turns

    def check(self, opened: OpenRound | None, header: pb.UpdateHeader) -> Announced:
        """Check an update's header, and return the codec and the weights that it announces. Raises PayloadError if this
        parent refuses such updates.
        """
        announced = self.check_payload(opened, header)
        check_notes(header, has_work=self._terms.clock.wants_work)
        return announced

    def check_payload(self, opened: OpenRound | None, header: pb.UpdateHeader) -> Announced:
        """Check the form of an update's payload, and return the announced codec and weights. Raises PayloadError if
        this parent does not accept the form.

        A late update is checked too. On the stream `Attend`, the parent must read the payload of a late update to its
        end, and needs its length from the header.
        """
        newest = opened.number if opened is not None else 0
        return self._accepts(min(max(header.round, 0), newest)).of(header.payload)

    async def take(
        self, opened: OpenRound | None, header: pb.UpdateHeader, parts: AsyncIterator[pb.UpdatePart]
    ) -> bool:
        """Receive one child's update. Return whether the update is in the sum. An update that comes too late or too
        early for its round is not added.

        Raises:
            PayloadError: no honest child sends this update.
        """
        announced = self.check(opened, header)
        is_awaited = opened is not None and opened.number_for(header.child_id) == header.round
        async with self._terms.clock.arriving(header, parts) if is_awaited else nullcontext(parts) as come:
            if opened is not None and opened.has(header):
                return True  # the child sends the update again, because it did not receive the reply
            verdict = Verdict.LATE if opened is None else self._judge(opened, header)
            if verdict is Verdict.LATE or opened is None:
                self._metrics.update("late")
            return verdict is Verdict.TAKEN and opened is not None and await self._fold(opened, header, announced, come)

    def _judge(self, opened: OpenRound, header: pb.UpdateHeader) -> Verdict:
        """Return the decision about an update. Raises ExcludedError if its sender was refused."""
        if not opened.gathers(header):
            return Verdict.LATE
        verdict = opened.judge(header)
        if verdict is Verdict.LATE:
            return verdict
        state = opened.intake.state_of(header.child_id)
        if state is None:
            raise UnknownChildError(f"{quoted(header.child_id)} does not belong to round {opened.number}")
        if state is ChildState.EXCLUDED:
            self._refused.check(header.child_id)
            return Verdict.LATE
        if state is ChildState.LATER:
            return Verdict.NOT_YET
        return verdict

    async def _fold(
        self, opened: OpenRound, header: pb.UpdateHeader, announced: Announced, parts: AsyncIterator[Any]
    ) -> bool:
        """Add an update to the sum. Return False if the round was closed in the meantime."""
        intake = opened.intake
        intake.limits.check_measured(header.evaluations)
        try:
            upload = await intake.begin(header.child_id, *announced, header.offset)
            if upload is None:
                return True
            async with upload.until_superseded(upload.child_id):
                await self._add(opened, upload, parts)
                await intake.finish(upload, header)
        except SupersededError:
            if not intake.is_closed:
                raise
            self._metrics.update("late")
            return False
        self._metrics.update("accepted")
        return True

    async def _add(self, opened: OpenRound, upload: Upload, parts: AsyncIterator[Any]) -> None:
        """Add the parts after the header to the sum. Turns limit how many chunks are processed at the same time (see
        `Turns`): each chunk of a large update waits for its turn.

        Small updates need no turns. Updates on the real clock need none either, because their chunks are small and
        arrive at the pace of the links.
        """
        if upload.codec.is_small or not self._terms.clock.takes_turns:
            async for part in parts:
                await _add_part(opened, upload, part)
            return
        async with aclosing(self._turns.of(upload.child_id, parts)) as taken:
            async for part in taken:
                await _add_part(opened, upload, part)
                del part  # releases the memory of this chunk while the next one waits for its turn


async def _add_part(opened: OpenRound, upload: Upload, part: Any) -> None:
    if part.WhichOneof("part") != "data":
        raise PayloadError("an update must have only data after its header")
    await opened.intake.fold(upload, part.data)
    reach("upload", opened.number)
