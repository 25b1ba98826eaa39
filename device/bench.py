"""The one place where a device process does arithmetic: one thread, jobs in the order they come.

Jobs that wait together are handed to the trainer together, which may train them at once where the bits stay the
same.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from device.training import LocalResult, Trainer, TrainingJob

Result = TypeVar("Result")


class Bench:
    """A queue before one arithmetic thread."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arithmetic")
        self._waiting: list[tuple[TrainingJob, asyncio.Future[LocalResult]]] = []
        self._is_training = False
        self._training: asyncio.Task[None] | None = None

    async def compute(self, work: Callable[[], Result]) -> Result:
        """The result of some arithmetic."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def train(self, job: TrainingJob) -> LocalResult:
        """The result of one device's local training."""
        result: asyncio.Future[LocalResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, result))
        if not self._is_training:
            self._is_training = True
            self._training = asyncio.create_task(self._train_waiting())
        return await result

    async def _train_waiting(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._train_batch(batch)
        finally:
            self._is_training = False

    async def _train_batch(self, batch: "list[tuple[TrainingJob, asyncio.Future[LocalResult]]]") -> None:
        jobs = [job for job, _ in batch]
        try:
            results = await self.compute(lambda: self._trainer.train(jobs))
        except Exception as error:  # it belongs to those who wait, not to the queue
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
