"""The updates of one round. The parent's rule takes them chunk by chunk as they arrive.

If a child is refused or excluded, a part of its update may have been taken before. A rule that stores each update
separately then removes this part. The part cannot be removed from a sum, so the whole sum is emptied. Then the other
children send their updates of this round again.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial

from fedstrata.errors import ExcludedError, NotReadyError, OffsetError, SupersededError
from fedstrata.experiment import TierDeadline
from fedstrata.rounds.parent.children import (
    NO_LEAST,
    Child,
    Children,
    ChildReports,
    ChildState,
    Enough,
    RoundResult,
    Upload,
)
from fedstrata.rounds.parent.report_checks import NO_LIMITS, ChildLimits
from fedstrata.rules import Gathering
from fedstrata.tensors import PayloadCodec
from fedstrata.v1 import rounds_pb2 as pb

INLINE_ELEMENTS = 256 << 10  # adding up to so many elements (0.3 ms) is faster without another thread


class Intake(Children):
    """Collect the updates of one round's children in a sum."""

    def __init__(
        self,
        *,
        children: Iterable[str],
        sums: Gathering | None = None,
        wait: TierDeadline,
        executor: Executor | None = None,
        limits: ChildLimits = NO_LIMITS,
        enough: Enough = NO_LEAST,
    ) -> None:
        """Set the round's children. `sums` is None if it is set later, or never. For `enough`, see `Children`."""
        super().__init__(children, wait, enough)
        self.sums = sums
        self._executor = executor
        self.limits = limits
        self._reports = ChildReports()
        self._folding = asyncio.Lock()
        self._is_void = False  # if true, the sum is emptied before the next value is added
        self._when_void: list[Callable[[], None]] = []
        self.is_closed = False

    def when_void(self, react: Callable[[], None]) -> None:
        """Register a function that is called, in the order of registration, whenever the sum has been emptied."""
        self._when_void.append(react)

    # --- one child's update -------------------------------------------------------------------

    async def begin(self, child_id: str, codec: PayloadCodec, weights: tuple[int, ...], offset: int) -> Upload | None:
        """Start or continue an upload, and return it. If the child's update is already complete, return None.

        Raises:
            UnknownChildError, ExcludedError, PayloadError: the upload is refused.
            OffsetError: the child must continue from the position in the error.
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
        async with self._folding:  # a chunk of the previous upload may still be added to the sum
            self._current(upload)
            if offset != child.offset:
                raise OffsetError(f"the upload of {child_id} must continue at byte {child.offset}, not at {offset}")
            if offset and child.began is not None and not child.began.is_continued_by(upload):
                self._switch(child_id, child)
            child.began = upload
        return upload

    def _switch(self, child_id: str, child: Child) -> None:
        """Take a child's part out of the sum, because it has begun one update and continues with another. A child may
        do this once per round, for instance after a restart. This method always raises one of two errors.

        Raises:
            OffsetError: this is the child's first change in the round. The child must send its update from byte 0.
            PayloadError: the child has already changed to another update in this round.
        """
        child.switch(child_id)
        self._take_out(child_id, child)
        raise OffsetError(f"{child_id} continues with another update than the one that it began; send it from byte 0")

    async def fold(self, upload: Upload, data: bytes | memoryview) -> None:
        """Add one chunk to the sum. If the caller is cancelled before the addition begins, add nothing.

        Raises:
            SupersededError: the child has begun a newer upload.
            PayloadError: the chunk is not valid.
        """
        async with self._folding:
            child = self._current(upload)
            self._empty_if_void()
            values = upload.codec.decode(data, upload.offset)
            squares = child.squares + self.limits.squares_of(values)
            self.limits.check_norm(upload.child_id, squares)
            start = upload.offset // upload.codec.element_bytes
            add = partial(self._sums.take, upload.child_id, start, values, upload.weights)
            was_cancelled = await _done(add, self._executor if len(values) > INLINE_ELEMENTS else None)
            upload.offset += len(data)
            if child.began is upload:  # otherwise the values were removed in the meantime
                child.offset, child.squares = upload.offset, squares
        if was_cancelled:
            raise asyncio.CancelledError

    @property
    def _sums(self) -> Gathering:
        if self.sums is None:
            raise NotReadyError("this round takes no updates yet; try again")
        return self.sums

    async def finish(self, upload: Upload, header: pb.UpdateHeader) -> None:
        """Mark an upload as complete. Raises OffsetError if bytes are missing."""
        async with self._folding:
            child = self._current(upload)
            self._empty_if_void()
            if upload.offset != upload.codec.payload_bytes:
                raise OffsetError(
                    f"the upload of {upload.child_id} ended at byte {upload.offset} of {upload.codec.payload_bytes}; "
                    "resume it there"
                )
            self._sums.accept(upload.child_id, upload.weights)
            child.upload = None
            self._move(child, ChildState.ACCEPTED)
            self._reports.keep(header, upload)
        self._tell()

    def accept_evaluation(self, child_id: str, evaluation: pb.Evaluation) -> None:
        """Take a child's measurement in a round without updates. If the measurement comes too late, ignore it."""
        child = self._child(child_id)
        if child.state is ChildState.AWAITED and not self.is_closed:
            self._move(child, ChildState.ACCEPTED)
            self._reports.evaluations[child_id] = [evaluation]
            self._tell()

    # --- faults and deadlines -----------------------------------------------------------------

    def exclude(self, child_id: str) -> None:
        """Continue without a child, and remove its values. If this fails or updates are masked, empty the sum."""
        child = self._children.get(child_id)
        if child is None or child.state is ChildState.EXCLUDED:
            return
        had_part = child.has_part
        child.upload = None
        self._move(child, ChildState.EXCLUDED)
        if self._enough.is_void_if_any_leaves:
            self.void()
        elif had_part:
            self._take_out(child_id, child)
        self._tell()

    def exclude_late(self) -> tuple[str, ...]:
        """Exclude the children that have not reported by a deadline, and return them.

        A child that had reported before the sum was emptied is not late. It may send its update again until the next
        deadline.
        """
        late = tuple(name for name in self.missing if not self._children[name].is_asked_again)
        for child_id in late:  # if a late child has sent a part, all children must send again
            self.exclude(child_id)
        for child in self._children.values():
            child.is_asked_again = False
        return late

    def restart(self, child_id: str) -> None:
        """Forget a child's incomplete upload. If the child's update is complete, do nothing."""
        child = self._children.get(child_id)
        if child is not None and child.state is ChildState.AWAITED and child.has_part:
            self._take_out(child_id, child)

    def _take_out(self, child_id: str, child: Child) -> None:
        """Take a child's values out of the sum. If this is not possible, empty the sum."""
        if self.sums is None or not self.sums.forget(child_id):
            self.void()
        else:
            child.begin_anew()
            self._reports.forget(child_id)

    def void(self) -> None:
        """Empty the sum, and wait again for all children that are still in the round and were not refused."""
        self._is_void = True
        self._reports = ChildReports()
        self.completed.clear()
        for child in self._children.values():
            child.begin_anew()
            if child.state is ChildState.ACCEPTED:
                child.is_asked_again = True
                self._move(child, ChildState.EXCLUDED if child.is_refused else ChildState.AWAITED)
        for react in self._when_void:
            react()
        self._tell()

    def _empty_if_void(self) -> None:
        """Set the sums to zero if `void` was called since the last addition. The caller holds the lock `_folding`."""
        if self._is_void:
            if self.sums is not None:
                self.sums.clear()
            self._is_void = False

    async def close(self) -> RoundResult:
        """Stop collecting updates, and return the round's result. The result does not contain the sum, because the
        caller already has the sum.
        """
        async with self._folding:
            self._empty_if_void()
            self.is_closed = True
            self.sums = None
        return self._reports.result(self._children)

    def _current(self, upload: Upload) -> Child:
        child = self._child(upload.child_id)
        if self.is_closed or child.upload is not upload:
            raise SupersededError(
                f"this upload of {upload.child_id} was replaced, or its round is closed; fetch the next model"
            )
        return child


async def _done(work: Callable[[], None], executor: Executor | None) -> bool:
    """Do work in a thread of the executor. Without an executor, do the work here. Return whether the caller was
    cancelled during the work.

    A cancelled caller still waits for the end of the work. Otherwise only a part of a chunk might be added to the sum.
    """
    if executor is None:
        work()
        return False
    job, was_cancelled = asyncio.get_running_loop().run_in_executor(executor, work), False
    while not job.done():
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            was_cancelled = True
    job.result()
    return was_cancelled
