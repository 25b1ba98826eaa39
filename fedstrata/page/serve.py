"""The page over HTTP: its files, and events for each reader until the reader leaves."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from http import HTTPStatus
from typing import TYPE_CHECKING

from fedstrata.page.document import SCRIPTS, STYLES, TYPES, live_page, live_policy, static_file
from fedstrata.page.feed import Feed
from fedstrata.process.http import NO_SNIFFING, STAY

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

HEADERS = [
    ("Cache-Control", "no-store"),
    NO_SNIFFING,
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


class PageApp:
    """Serve `/`, the page's files, and `/page/events` as a WSGI application."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if environ.get("REQUEST_METHOD") != "GET":
            return _plain(start_response, HTTPStatus.METHOD_NOT_ALLOWED)
        if path == "/page/events":
            return self._events(environ[STAY], start_response)
        name = path.removeprefix("/page/")
        if path != "/" and not (path.startswith("/page/") and name in {*SCRIPTS, *STYLES}):
            return _plain(start_response, HTTPStatus.NOT_FOUND)
        body = live_page().encode() if path == "/" else static_file(name)
        kind = TYPES["html" if path == "/" else name.rpartition(".")[2]]
        policy = ("Content-Security-Policy", f"{live_policy()}; frame-ancestors 'none'")
        start_response("200 OK", [("Content-Type", f"{kind}; charset=utf-8"), policy, *HEADERS])
        return [body]

    def _events(self, stay: Callable[[], bool], start_response: "StartResponse") -> Iterable[bytes]:
        if not stay():
            return _plain(start_response, HTTPStatus.SERVICE_UNAVAILABLE)
        start_response("200 OK", [("Content-Type", "text/event-stream"), *HEADERS])
        return _staying(self._feed.read(), stay)


def _staying(events: Generator[bytes], stay: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the events. Before each event, call `stay`, which allows the connection to stay open for some further time.

    The server asks for an event only after it has sent the previous event. If a reader does not receive an event,
    `stay` is not called again, and the server closes the connection at the end of the allowed time.
    """
    with closing(events):
        for event in events:
            stay()
            yield event


def _plain(start_response: "StartResponse", status: HTTPStatus) -> Iterable[bytes]:
    line = f"{status.value} {status.phrase}"
    start_response(line, [("Content-Type", "text/plain; charset=utf-8"), *HEADERS])
    return [line.encode() + b"\n"]
