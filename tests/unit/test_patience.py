"""A benchmark that hangs ends, and says at what."""

import subprocess
import sys

BEGINS = """
import threading
from benchmarks.patience import Patience
patience = Patience({seconds}, lambda: "alive until now: gps 1")
"""
WAITS = """
with patience.over():
    patience.waits_for("the clear run has not come to its round 5")
    threading.Event().wait()
"""


def run(seconds: float, program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", BEGINS.format(seconds=seconds) + program]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_one_that_waits_for_ever_ends_with_what_it_waited_for_and_where_each_thread_is() -> None:
    ended = run(0.1, WAITS)
    assert ended.returncode == 3
    assert ended.stderr.startswith("hung: the clear run has not come to its round 5, for 0.1 s\n")
    assert "in wait" in ended.stderr
    assert ended.stderr.endswith("alive until now: gps 1\n")


def test_one_whose_last_words_fail_ends_all_the_same() -> None:
    ended = run(0.1, WAITS.replace("with", "patience._last_words = lambda: 1 / 0\nwith", 1))
    assert ended.returncode == 3
