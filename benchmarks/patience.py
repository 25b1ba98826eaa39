"""How long a benchmark waits for its next step: one that hangs ends with a line that says what did not come."""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HUNG = 3  # the exit code


class Patience:
    """Ends the program, whatever each of its threads waits for, when no step is heard of for so many seconds."""

    def __init__(self, seconds: float, last_words: Callable[[], str] = str) -> None:
        """`last_words` says, in that case, what else is known, and ends what was started."""
        self._seconds = seconds
        self._last_words = last_words
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    @contextmanager
    def over(self) -> Iterator[None]:
        """A block that is watched from its first step on."""
        try:
            yield
        finally:
            self._begin(None)

    def waits_for(self, what: str, beside_s: float = 0.0) -> None:
        """Note the next step, which takes so long by itself; the one before has come to its end."""
        seconds = self._seconds + beside_s
        timer = threading.Timer(seconds, self._give_up, (what, seconds))
        timer.daemon = True
        self._begin(timer)

    def _begin(self, timer: threading.Timer | None) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = timer
            if timer is not None:
                timer.start()

    def _give_up(self, what: str, seconds: float) -> None:
        """No exception would reach a thread that waits, so the program ends from here."""
        print(f"hung: {what}, for {seconds:g} s", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        try:
            print(self._last_words(), file=sys.stderr, flush=True)
        finally:
            os._exit(HUNG)
