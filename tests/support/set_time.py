"""Transfers on the real clock, by a clock that a test sets."""

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast

from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.tier_links import UP, device_links
from fedstrata.links.transfers import Transfers
from fedstrata.process.waiting import RealTime

MS, S = 10**6, 10**9
TEXT = "name: paced\nclock: real\npartition: {kind: iid, devices: 9, examples_per_device: 10}\n"


class SetTime(RealTime):
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now, self._numbers = 0, count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def now_ns(self) -> int:
        return self.now

    async def until(self, at_ns: int, early_ns: int = 0) -> None:
        come = asyncio.get_running_loop().create_future()
        self.call_at(at_ns, lambda: come.done() or come.set_result(None))
        await come

    def call_at(self, at_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        entry = (max(at_ns, self.now), next(self._numbers), call)
        heappush(self._due, entry)

        class Handle:
            def cancel(this) -> None:  # noqa: N805
                if entry in self._due:
                    self._due.remove(entry)
                    self._due.sort()

        return cast(asyncio.TimerHandle, Handle())

    async def run(self, *work: Any) -> None:
        """Let time go from one thing that is due to the next until all work is done."""
        jobs = [asyncio.ensure_future(each) for each in work]
        while not all(job.done() for job in jobs):
            for _ in range(8):
                await asyncio.sleep(0)
            if self._due:
                self.now, _, call = heappop(self._due)
                call()
        for job in jobs:
            job.result()


def paced(*links: str) -> Experiment:
    return parse_experiment(TEXT, overrides=[f"links={{{', '.join(links)}}}"])


def transfers(clock: SetTime, *links: str) -> Transfers:
    return Transfers(device_links(paced(*links)), clock)


async def carry(
    held: Transfers, clock: SetTime, child: int, size: int, *, at: Sequence[int] = (), way: int = UP, start: int = 0,
    model: int | None = None,
) -> list[int]:  # fmt: skip
    """When so many bits, and then all of a transfer, have arrived."""
    await clock.until(start)
    times = []
    with held.under_way(f"device-00{child}", way, 0, size, model=model) as transfer:
        for bits in at:
            await transfer.arrived(bits)
            times.append(clock.now)
        await transfer.all_arrived()
        times.append(clock.now)
        await transfer.over()
    return times


async def arrivals(clock: SetTime, *work: Any) -> list[list[int]]:
    """What `carry` gives, of each of some transfers."""
    jobs = [asyncio.ensure_future(each) for each in work]
    await clock.run(*jobs)
    return [job.result() for job in jobs]
