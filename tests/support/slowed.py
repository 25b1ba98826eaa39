"""A run of `fedstrata run` that lasts long enough to be disturbed, and is the same as one that does not last."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.programs import events

# Links whose latency alone makes the rounds last longer than all that a test does in them: 160 × 2 × 2 × 10 ms.
ROUNDS = ("training.global_rounds=40", "training.lps_rounds_per_global_round=4")
SLOWED = (*ROUNDS, "clock=real", "links={device-lps: {latency: 20ms}}")
WHO = ("gps", "lps-0", "lps-1", "devices-0-2", "devices-3-4")  # with two device processes


def has_begun(run: Path, who: str) -> bool:
    """Whether a process has calls of the training under way, by the certificate that it has started with."""
    log, first = run / "logs" / f"{who}.log", "assigned" if who.startswith("devices") else "cluster_served"
    return who == "gps" or (log.exists() and first in {event["event"] for event in events(log)})


def wait_for(lines: Iterator[object], is_so: Callable[[], bool]) -> None:
    """Wait until something is so; the program prints a line for each round, and is looked at then."""
    assert any(is_so() for _ in lines), "the run was over before"
