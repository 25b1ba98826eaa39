"""The source of events for open pages. A reader always receives the newest state. A slow reader misses some states in
between, so that states never wait in a queue.
"""

import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedstrata.process.json_text import json_text

ALIVE_S = 10.0  # without news, each reader is sent a comment after this time, which shows whether it is still there
FLUSH_S = 2.0  # time that readers have to receive the last state
RETRY_MS = 1000  # pause after which a page connects again when it has lost its connection


def to_json(value: object) -> bytes:
    """Return the value as one line of JSON."""
    return json_text(value, separators=(",", ":")).encode()


class Feed:
    """Hold the newest state of a run, and send changes to each reader. The state has parts and rows, all as JSON. Each
    part has a name, and each row has a key.

    One thread publishes, and many threads read. When the last reader has left, the publisher empties the feed with
    `forget`.
    """

    def __init__(self, on_reader: Callable[[], object] = lambda: None) -> None:
        self._on_reader = on_reader
        self._changed = threading.Condition()
        self._parts: Mapping[str, bytes] = {}
        # By key, oldest first: the version with which the row came, and the row.
        self._rows: dict[Hashable, tuple[int, bytes]] = {}
        # By a reader's version: the event that brings this reader to the newest version, made once for all readers.
        self._events: dict[int, bytes] = {}
        self._version = 0
        self._readers = 0
        self._is_closed = False

    def publish(self, parts: Mapping[str, Any], rows: Iterable[tuple[Hashable, Any]] = ()) -> None:
        """Set the newest state. Readers receive the parts that have changed, and the new rows `rows`. A row replaces an
        earlier row with the same key.
        """
        encoded = {name: to_json(value) for name, value in parts.items()}
        before = self._parts
        encoded = {name: before[name] if before.get(name) == data else data for name, data in encoded.items()}
        lines = [(key, to_json(row)) for key, row in rows]
        with self._changed:
            self._version += 1
            self._parts, self._events = encoded, {}
            for key, line in lines:
                self._rows.pop(key, None)
                self._rows[key] = self._version, line
            self._changed.notify_all()

    def forget(self) -> bool:
        """If there are no readers, delete all content. Return whether the content was deleted."""
        with self._changed:
            if not self._readers:
                self._parts, self._rows, self._events, self._version = {}, {}, {}, 0
            return not self._readers

    def close(self) -> None:
        """Let all readers end after the last published state. Wait up to two seconds for them."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._readers, FLUSH_S)

    def read(self) -> Generator[bytes]:
        """Yield server-sent events for one reader. The first event has the whole document. Each later event has all
        changes since the last event. If nothing changes for some seconds, yield a comment, which shows whether the
        reader is still connected.
        """
        yield b"retry: %d\n\n" % RETRY_MS
        sent: Mapping[str, bytes] = {}
        version, is_last = 0, False
        with self._reading():
            while not is_last:
                with self._changed:
                    self._wait_after(version)
                    event, is_last = self._event_after(version, sent), self._is_closed
                    sent, version = self._parts, self._version
                yield event

    def _wait_after(self, version: int) -> None:
        self._changed.wait_for(lambda: self._is_closed or self._version > version, ALIVE_S)

    def _event_after(self, version: int, sent: Mapping[str, bytes]) -> bytes:
        """Return the event with all changes after a version. `sent` has the parts that the reader has already
        received.
        """
        if version not in self._events:
            news = [(name, data) for name, data in self._parts.items() if sent.get(name) is not data]
            rows = self._rows_since(version)
            is_new = bool(news or rows)
            self._events[version] = _event(news, rows, is_first=not version) if is_new else b": nothing new\n\n"
        return self._events[version]

    def _rows_since(self, version: int) -> list[bytes]:
        found = []
        for came, line in reversed(self._rows.values()):
            if came <= version:
                break
            found.append(line)
        return found[::-1]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._changed:
            self._readers += 1
        self._on_reader()
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()


def _event(news: Iterable[tuple[str, bytes]], rows: Iterable[bytes], *, is_first: bool) -> bytes:
    """Return a `document` event for a new reader, or a `change` event for any other."""
    name = b"document" if is_first else b"change"
    parts = b",".join(b"%s:%s" % (to_json(part), data) for part, data in news)
    return b'event: %s\ndata: {"parts":{%s},"rounds":[%s]}\n\n' % (name, parts, b",".join(rows))
