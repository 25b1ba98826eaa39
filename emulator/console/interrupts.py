"""Handle signals that end a command. The first signal ends the work. Further signals do not interrupt the clean-up."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Generic, TypeVar

from emulator.console.discarded_output import discard_blocked

T = TypeVar("T")


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a command. SIGHUP is not one of them if `nohup` has started the command."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_kept else [signal.SIGHUP])]


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop, and return its result. The first SIGINT, SIGTERM or SIGHUP cancels it.

    If an event loop is already running, as in a notebook, the coroutine runs in a second thread. Signals reach only the
    main thread. A call from any other thread is therefore not cancelled by signals.

    Raises:
        KeyboardInterrupt: a signal cancelled the coroutine. Its clean-up is complete.
    """
    job = _Job(work)
    try:
        with job.cancelled_by_signals():
            result = _outside_of_loops(job.run())
    except BaseException:
        if job.is_interrupted:
            raise KeyboardInterrupt from None
        raise
    if job.is_interrupted:
        raise KeyboardInterrupt
    return result


class _Job(Generic[T]):
    """Run a coroutine that a signal can cancel."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Future[T]] | None = None
        self.is_interrupted = False

    async def run(self) -> T:
        """Run the coroutine to its end, and return its result."""
        future = asyncio.ensure_future(self._work)
        self._running = asyncio.get_running_loop(), future
        if self.is_interrupted:  # an interrupt arrived before the coroutine began
            future.cancel()
        return await future

    @contextmanager
    def cancelled_by_signals(self) -> Iterator[None]:
        """Let signals cancel the coroutine while the block runs. Outside the main thread, only run the block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._cancel) for number in ending_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _cancel(self, _number: int, _frame: FrameType | None) -> None:
        discard_blocked()
        if not self.is_interrupted:
            self.is_interrupted = True
            if self._running is not None:
                loop, future = self._running
                with suppress(RuntimeError):  # the loop is closed, so the coroutine has ended
                    loop.call_soon_threadsafe(future.cancel)


def _outside_of_loops(work: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
