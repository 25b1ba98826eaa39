"""What open pages are told: the newest state, to a reader that is as slow as it likes."""

import json
import tracemalloc
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from fedstrata.page import Feed


def told(event: bytes) -> tuple[str, dict[str, Any]]:
    """The name and the data of a server-sent event."""
    name, data = event.decode().removesuffix("\n\n").split("\ndata: ")
    return name.removeprefix("event: "), json.loads(data)


def reading(feed: Feed) -> Iterator[bytes]:
    """A reader that has been told how soon to come back."""
    events = feed.read()
    assert next(events) == b"retry: 1000\n\n"
    return events


def test_a_reader_is_told_everything_first_and_then_what_has_changed() -> None:
    feed = Feed()
    feed.publish({"a": 1, "b": {"c": 2}}, [("x", [1])])
    events = reading(feed)
    assert told(next(events)) == ("document", {"parts": {"a": 1, "b": {"c": 2}}, "rounds": [[1]]})
    feed.publish({"a": 3, "b": {"c": 2}}, [("y", [2])])
    assert told(next(events)) == ("change", {"parts": {"a": 3}, "rounds": [[2]]})


def test_a_slow_reader_is_told_the_newest_state_and_each_row_once() -> None:
    feed = Feed()
    feed.publish({"a": 0}, [("x", ["old"])])
    slow = reading(feed)
    next(slow)
    for number in range(1, 100):
        feed.publish({"a": number}, [("x", [number]), (number, [f"row {number}"])])
    name, data = told(next(slow))
    assert (name, data["parts"]) == ("change", {"a": 99})
    assert data["rounds"] == [*([f"row {number}"] for number in range(1, 99)), [99], ["row 99"]]


def test_a_reader_that_comes_late_is_told_rows_as_they_are_now_in_the_order_they_came() -> None:
    feed = Feed()
    feed.publish({}, [("x", [1]), ("y", [2])])
    feed.publish({}, [("x", [3])])
    assert told(next(reading(feed)))[1]["rounds"] == [[2], [3]]


def test_readers_wait_for_news_and_end_with_the_last_state() -> None:
    feed, got = Feed(), []
    reader = Thread(target=lambda: got.extend(feed.read()))
    feed.publish({"a": 1})
    reader.start()
    feed.publish({"a": 2})
    feed.close()
    reader.join(timeout=30)
    assert not reader.is_alive()
    states = [told(event)[1]["parts"] for event in got if event.startswith(b"event")]
    assert {name: value for state in states for name, value in state.items()} == {"a": 2}
    assert not feed._readers


def test_a_reader_for_whom_nothing_happens_is_written_to_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.page.feed.ALIVE_S", 0.01)
    feed = Feed()
    feed.publish({"a": 1})
    events = reading(feed)
    next(events)
    assert next(events).startswith(b":")  # a comment, which a page does not see


def test_nothing_is_kept_once_nobody_reads() -> None:
    called = []
    feed = Feed(lambda: called.append(feed._readers))
    feed.publish({"a": 1}, [("x", [1])])
    events = feed.read()
    next(events), next(events)
    assert called == [1]
    assert not feed.forget()
    events.close()
    assert feed.forget()
    feed.publish({"b": 2})
    assert told(next(reading(feed)))[1] == {"parts": {"b": 2}, "rounds": []}


def test_what_a_reader_that_stops_keeps_is_bounded_by_one_state() -> None:
    feed, million = Feed(), 1_000_000
    feed.publish({"long": "x" * million})
    stopped = reading(feed)
    next(stopped)
    tracemalloc.start()
    try:
        for number in range(30):
            feed.publish({"long": f"{number}" * million, "same": 1}, [("row", [number])])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3 * million
    assert told(next(stopped))[1]["rounds"] == [[29]]
