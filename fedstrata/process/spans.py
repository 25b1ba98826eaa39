"""Spans: how long each part of a global round took. They are sent to a collector of traces.

A global round is one trace. Every process computes the same ids from the run and the round, so no process sends ids in
a round (docs/decisions/spans.md).
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Protocol

from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"  # the collector's address; without it there are no spans
log = EventLog("spans")
Ids = tuple[int, int, int | None]  # ids of a trace, of a span in the trace, and of the span's parent


@dataclass(frozen=True, kw_only=True)
class Span:
    """Describe one finished part of a global round. Times are in nanoseconds since 1970."""

    name: str
    trace: tuple[str, int]  # the run's id, and the global round, counted from 0
    place: str  # identifies the part in its global round, such as `LPS round:3:lps-0`
    parent: str | None
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, str | int]

    def ids(self, execution: str) -> Ids:
        """Return the ids of this span. They depend on `execution`, the id of this execution of the run."""
        trace = f"{execution} {self.trace}"
        parent = None if self.parent is None else _digest(trace + self.parent, 8)
        return _digest(trace, 16), _digest(trace + self.place, 8), parent


def _digest(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size], "big")


class Sender(Protocol):
    """Define the interface to an object that sends the spans of one tier from a process."""

    def send(self, name: str, ids: Ids, times: tuple[int, int], attributes: Mapping[str, str | int]) -> None:
        """Send a span soon, from another thread. `times` are the beginning and the end of the span."""

    def close(self) -> None:
        """Send the last spans, for a limited time."""


class Spans:
    """Send the spans of one process."""

    def __init__(self, sender_of: Callable[[str], Sender]) -> None:
        """Set `sender_of`, the function that creates the sender for a tier."""
        self._sender_of = sender_of
        self._sender: Sender | None = None
        self._execution = ""

    def belong_to(self, execution: str) -> None:
        """Set the id of this execution of the run, which the GPS has drawn at random. The ids of all further spans
        depend on it. Ignore a text that cannot be such an id.
        """
        if re.fullmatch("[0-9a-f]{32}", execution):
            self._execution = execution

    def open(self, tier: str) -> Sender:
        """Return the object that sends the spans. The first call loads OpenTelemetry, which takes a second."""
        self._sender = self._sender or self._sender_of(tier)
        return self._sender

    def add(self, tier: str, span: Span) -> None:
        """Send a span."""
        self.open(tier).send(span.name, span.ids(self._execution), (span.began_ns, span.ended_ns), span.attributes)

    def close(self) -> None:
        """Send the last spans, for a limited time."""
        if self._sender is not None:
            self._sender.close()


class _Nowhere:
    def send(self, *span: object) -> None:
        pass

    def close(self) -> None:
        pass


def _collector(tier: str) -> Sender:
    try:
        from fedstrata.process.otlp import Collector

        return Collector(f"fedstrata-{tier}")
    except ImportError as error:
        advice = f"{error}; pip install 'fedstrata[traces]'"
    except Exception as error:  # any error, because the run does not need spans
        advice = f"OpenTelemetry does not start: {error}; correct the OTEL_ variables"
    log.warning("spans_off", reason=f"{VARIABLE} is set, but no spans are sent: {brief(advice)}")
    return _Nowhere()


@cache
def process_spans() -> Spans | None:
    """Return the object that sends the spans of this process. If no collector is configured, return None."""
    return Spans(_collector) if os.environ.get(VARIABLE) else None
