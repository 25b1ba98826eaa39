"""The exact sum of one round. Updates are added chunk by chunk as they arrive.

An update that cannot be completed, because its sender is refused or excluded half-way, voids the sum. Then the children
send their last updates again, as after a restart of the parent.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any

from numpy.typing import NDArray

from fedstrata.errors import ExcludedError, NotReadyError, OffsetError, SupersededError
from fedstrata.experiment import TierDeadline
from fedstrata.rounds.children import NO_LEAST, Child, Children, ChildState, Enough, Notes, RoundResult, Upload
from fedstrata.rounds.notes import NO_LIMITS, ChildLimits
from fedstrata.tensors import PayloadCodec, Sums
from fedstrata.v1 import rounds_pb2 as pb

INLINE_ELEMENTS = 256 << 10  # arithmetic on no more, 0.3 ms, costs less than handing it to a thread and waiting


class Intake(Children):
    """Gather the updates of one round's children into a sum."""

    def __init__(
        self,
        *,
        children: Iterable[str],
        sums: Sums | None = None,
        wait: TierDeadline,
        executor: Executor | None = None,
        limits: ChildLimits = NO_LIMITS,
        enough: Enough = NO_LEAST,
    ) -> None:
        """Set the parts. `sums` is None if it comes later, or if nothing is summed. For `enough`, see `Children`."""
        super().__init__(children, wait, enough)
        self.sums = sums
        self._executor = executor
        self.limits = limits
        self._notes = Notes()
        self._folding = asyncio.Lock()
        self._is_void = False  # the sum counts no more; whoever has the lock next empties it
        self.reported = asyncio.Event()  # set while nobody is awaited
        self._when_void: list[Callable[[], None]] = []
        self.voided = 0
        self.is_closed = False

    def when_void(self, react: Callable[[], None]) -> None:
        """Call a function after each void of the sum. Several functions are called in the order of registration."""
        self._when_void.append(react)

    # --- one child's update -------------------------------------------------------------------

    async def begin(self, child_id: str, codec: PayloadCodec, weights: tuple[int, ...], offset: int) -> Upload | None:
        """Start or continue an upload; return None if the child's update is already complete.

        Raises:
            UnknownChildError, ExcludedError, PayloadError: the upload is refused. OffsetError: with the position from
                which the child has to resume.
        """
        child = self._child(child_id)
        if child.state is ChildState.EXCLUDED:
            raise ExcludedError(f"{child_id} is excluded from this round")
        if child.state is ChildState.ACCEPTED:
            return None
        self._sums.check(child_id, weights)
        superseded, child.upload = child.upload, (upload := Upload(child_id, codec, weights, offset))
        if superseded is not None:
            superseded.supersede()
        async with self._folding:  # a chunk of the upload before this one may be on its way into the sum
            self._current(upload)
            if offset != child.offset:
                raise OffsetError(f"the upload of {child_id} goes on at byte {child.offset}, not at {offset}")
            if offset and child.began is not None and not child.began.is_continued_by(upload):
                self._switch(child_id, child)
            child.began = upload
        return upload

    def _switch(self, child_id: str, child: Child) -> None:
        """Void the sum for a child that continues with another update than it began. This may happen once, as after a
        restart.

        Raises:
            OffsetError: always, so that the child begins anew.
            PayloadError: the second time in a round.
        """
        child.switch(child_id)
        self.void()
        raise OffsetError(f"{child_id} continues another update than it began; send from byte 0")

    async def fold(self, upload: Upload, data: bytes | memoryview) -> None:
        """Add one chunk to the sum. If the caller is cancelled before its turn, add nothing.

        Raises:
            SupersededError: the child has begun anew. PayloadError: the chunk is not what was declared.
        """
        async with self._folding:
            child = self._current(upload)
            self._empty_if_void()
            values = upload.codec.decode(data, upload.offset)
            squares = child.squares + self.limits.squares_of(values)
            self.limits.check_norm(upload.child_id, squares)
            start = upload.offset // upload.codec.element_bytes
            voided = self.voided
            was_cancelled = await self._add(upload, start, values)
            upload.offset += len(data)
            if voided == self.voided:
                child.offset, child.squares = upload.offset, squares
        if was_cancelled:
            raise asyncio.CancelledError

    async def _add(self, upload: Upload, start: int, values: NDArray[Any]) -> bool:
        """Add elements to the sum; return True if the caller was cancelled meanwhile."""
        fold = partial(self._sums.fold, upload.child_id, start, values, upload.weights)
        if len(values) <= INLINE_ELEMENTS or self._executor is None:
            fold()
            return False
        return await _uninterrupted(asyncio.get_running_loop().run_in_executor(self._executor, fold))

    @property
    def _sums(self) -> Sums:
        if self.sums is None:
            raise NotReadyError("this round takes no updates yet; ask what it waits for")
        return self.sums

    async def finish(self, upload: Upload, header: pb.UpdateHeader) -> None:
        """Count a complete upload. Raises OffsetError if bytes are missing."""
        async with self._folding:
            child = self._current(upload)
            self._empty_if_void()
            if upload.offset != upload.codec.payload_bytes:
                raise OffsetError(
                    f"the upload of {upload.child_id} ended at byte {upload.offset} of {upload.codec.payload_bytes}; "
                    "resume it there"
                )
            self._sums.count(upload.child_id, upload.weights)
            child.upload = None
            self._move(child, ChildState.ACCEPTED)
            self._notes.keep(header, upload)
        self._tell()

    def accept_evaluation(self, child_id: str, evaluation: pb.Evaluation) -> None:
        """Take a child's measurement in a round without updates. A late measurement changes nothing."""
        child = self._child(child_id)
        if child.state is ChildState.AWAITED and not self.is_closed:
            self._move(child, ChildState.ACCEPTED)
            self._notes.evaluations[child_id] = [evaluation]
            self._tell()

    # --- when things go wrong -----------------------------------------------------------------

    def exclude(self, child_id: str) -> None:
        """Continue without a child. If the child has sent a part of its update, void the sum."""
        child = self._children.get(child_id)
        if child is None or child.state is ChildState.EXCLUDED:
            return
        had_part = child.has_part
        child.upload = None
        self._move(child, ChildState.EXCLUDED)
        if had_part or self._enough.is_void_without_any:
            self.void()
        self._tell()

    def exclude_late(self) -> tuple[str, ...]:
        """Continue, at a deadline, without the children still awaited, and return them.

        A child that had reported before a void has missed nothing, so it gets the time of a deadline to send its update
        again.
        """
        late = tuple(name for name in self.missing if not self._children[name].is_asked_again)
        for child_id in late:  # where one had sent a part, those who had reported send again
            self.exclude(child_id)
        for child in self._children.values():
            child.is_asked_again = False
        return late

    def restart(self, child_id: str) -> None:
        """Forget a child's incomplete upload and its stream. A complete update stays."""
        child = self._children.get(child_id)
        if child is not None and child.state is ChildState.AWAITED and child.has_part:
            self.void()

    def void(self) -> None:
        """Empty the sum. All children that are not excluded are awaited again."""
        self._is_void = True
        self._notes = Notes()
        self.voided += 1
        self.reported.clear()
        for child in self._children.values():
            child.begin_anew()
            if child.state is ChildState.ACCEPTED:
                child.is_asked_again = True
                self._move(child, ChildState.AWAITED)
        for react in self._when_void:
            react()

    def _empty_if_void(self) -> None:
        """Empty the sums if they are void. Only the job that adds calls this, so no addition runs meanwhile."""
        if self._is_void:
            if self.sums is not None:
                self.sums.clear()
            self._is_void = False

    async def close(self) -> RoundResult:
        """End the intake, and hand the sum over to the caller."""
        async with self._folding:
            self._empty_if_void()
            self.is_closed = True
            self.sums = None
        return self._notes.result(self._children)

    def _tell(self) -> None:
        if self.is_complete:
            self.reported.set()

    def _current(self, upload: Upload) -> Child:
        child = self._child(upload.child_id)
        if self.is_closed or child.upload is not upload:
            raise SupersededError(f"this upload of {upload.child_id} has been given up; ask where the round stands")
        return child


async def _uninterrupted(job: "asyncio.Future[None]") -> bool:
    """Wait for a job in a thread even if the waiter is cancelled; return whether it was cancelled.

    Otherwise half a chunk could stay in the sum.
    """
    was_cancelled = False
    while not job.done():
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            was_cancelled = True
    job.result()
    return was_cancelled
