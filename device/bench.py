"""The one place where a device process does arithmetic: one thread, jobs in the order they come.

Jobs that wait together are handed to the trainer together, which may do them at once where the bits stay the
same.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from device.evaluation import Evaluation, EvaluationJob
from device.training import LocalResult, Trainer, TrainingJob

Job = TypeVar("Job")
Result = TypeVar("Result")


class Bench:
    """Queues before one arithmetic thread."""

    def __init__(self, trainer: Trainer) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arithmetic")
        self._training = _Queue[TrainingJob, LocalResult](trainer.train, self._thread)
        self._evaluating = _Queue[EvaluationJob, Evaluation](trainer.evaluate, self._thread)

    async def compute(self, work: Callable[[], Result]) -> Result:
        """The result of some arithmetic."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def train(self, job: TrainingJob) -> LocalResult:
        """The result of one device's local training."""
        return await self._training.add(job)

    async def evaluate(self, job: EvaluationJob) -> Evaluation:
        """What one device measures of a model."""
        return await self._evaluating.add(job)


class _Queue(Generic[Job, Result]):
    """Jobs of one kind; those that come while the thread is busy, or in one wave of the event loop, go together."""

    def __init__(self, work: Callable[[Sequence[Job]], list[Result]], thread: ThreadPoolExecutor) -> None:
        self._work = work
        self._thread = thread
        self._waiting: list[tuple[Job, asyncio.Future[Result]]] = []
        self._emptying: asyncio.Task[None] | None = None

    def add(self, job: Job) -> "asyncio.Future[Result]":
        """The job's result, some time."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, result))
        if self._emptying is None or self._emptying.done():
            self._emptying = asyncio.create_task(self._empty())
        return result

    async def _empty(self) -> None:
        while self._waiting:
            await self._wave()
            batch, self._waiting = self._waiting, []
            await self._do(batch)

    async def _wave(self) -> None:
        """Let the event loop go round for as long as each turn brings further jobs."""
        known = 0
        while known < len(self._waiting):
            known = len(self._waiting)
            await asyncio.sleep(0)

    async def _do(self, batch: "list[tuple[Job, asyncio.Future[Result]]]") -> None:
        jobs = [job for job, _ in batch]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._work, jobs)
        except Exception as error:  # it belongs to those who wait, not to the queue
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
