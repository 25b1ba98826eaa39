"""Ctrl-C and SIGTERM: one of them is enough, and cleaning up is not interrupted by a second."""

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own; SIGINT or SIGTERM cancels it, once.

    Raises:
        KeyboardInterrupt: a signal came; what the coroutine does when it is cancelled is done by then.
    """
    is_interrupted = False

    async def guarded() -> T:
        job, loop = asyncio.ensure_future(work), asyncio.get_running_loop()

        def cancel(_number: int, _frame: FrameType | None) -> None:
            nonlocal is_interrupted
            if not is_interrupted:
                is_interrupted = True
                loop.call_soon_threadsafe(job.cancel)

        before = {number: signal.signal(number, cancel) for number in SIGNALS}
        try:
            return await job
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    try:
        result = asyncio.run(guarded())
    except BaseException:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
    if is_interrupted:
        raise KeyboardInterrupt
    return result
