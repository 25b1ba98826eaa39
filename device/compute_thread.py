"""The single thread for arithmetic in a device process. Jobs run in the order in which they come.

Jobs that wait at the same time go to the trainer together. The trainer may compute these jobs together if this changes
no bit of the results. An LPS opens a round for all its devices at once. So after the first job of a round, the jobs of
the other devices soon follow. The thread waits a little for these jobs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from device.evaluation import Evaluation, EvaluationJob
from device.training import LocalResult, Trainer, TrainingJob
from fedstrata.process.waiting import wait_until

Job = TypeVar("Job")
Result = TypeVar("Result")
LULL_S = 0.005  # if no job has come for so long, the waiting jobs begin
SHORT_LULL_S = 0.001  # for asynchronous rounds: with a buffer of one update, each round waits for one lull


class ComputeThread:
    """Run the arithmetic of all devices of a process on one thread. Training jobs and measurements wait in queues."""

    def __init__(self, trainer: Trainer, lull_s: float = LULL_S) -> None:
        """Set `lull_s`: if no job has come for so long, the waiting jobs begin."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arithmetic")
        self._listening: Counter[str] = Counter()  # by group: devices waiting for their next message
        self._training = _Queue[TrainingJob, LocalResult](trainer.train, self._thread, self._listening, lull_s)
        self._evaluating = _Queue[EvaluationJob, Evaluation](trainer.evaluate, self._thread, self._listening, lull_s)

    @contextmanager
    def listening(self, group: str) -> Iterator[None]:
        """Run a block in which a device waits for a message that the other devices of its group receive at about the
        same time.

        During the block, queued jobs of the group wait a little for this device's next job, so that they can run
        together.
        """
        self._listening[group] += 1
        try:
            yield
        finally:
            self._listening[group] -= 1

    async def compute(self, work: Callable[[], Result]) -> Result:
        """Run a computation on the thread, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def train(self, job: TrainingJob, group: str) -> LocalResult:
        """Train one device on the thread, and return the result. Devices of the same `group` are likely to send jobs at
        about the same time.
        """
        return await self._training.add(job, group)

    async def evaluate(self, job: EvaluationJob, group: str) -> Evaluation:
        """Measure a model for one device on the thread, and return the measurement."""
        return await self._evaluating.add(job, group)


class _Queue(Generic[Job, Result]):
    """Hold jobs of one kind until the thread runs them. Jobs that come while the thread is busy, or shortly after each
    other, run together.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Job]], list[Result]],
        thread: ThreadPoolExecutor,
        listening: Counter[str],
        lull_s: float,
    ) -> None:
        self._work = work
        self._thread = thread
        self._listening = listening
        self._lull_s = lull_s
        self._waiting: list[tuple[Job, asyncio.Future[Result]]] = []
        self._groups: set[str] = set()  # the groups of the waiting jobs
        self._came = asyncio.Event()
        self._emptying: asyncio.Task[None] | None = None

    def add(self, job: Job, group: str) -> "asyncio.Future[Result]":
        """Add a job to the queue. Return a future for the job's result."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, result))
        self._groups.add(group)
        self._came.set()
        if self._emptying is None or self._emptying.done():
            self._emptying = asyncio.create_task(self._empty())
        return result

    async def _empty(self) -> None:
        while self._waiting:
            await self._wave()
            batch, self._waiting = self._waiting, []
            self._groups.clear()
            await self._do(batch)

    async def _wave(self) -> None:
        """Wait for jobs of other devices in the queued jobs' groups, so that all these jobs run together. The wait ends
        when none of these devices is still waiting for a message (see `listening`). It also ends when no job has come
        for `lull_s` seconds.
        """
        while any(self._listening[group] for group in self._groups):
            self._came.clear()
            if not await wait_until(self._came, self._came.is_set, self._lull_s):
                return

    async def _do(self, batch: "list[tuple[Job, asyncio.Future[Result]]]") -> None:
        jobs = [job for job, _ in batch]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._work, jobs)
        except Exception as error:  # passed on to the waiting callers; the queue goes on
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
