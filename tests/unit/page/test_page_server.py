"""The page over HTTP: its files under a strict policy, and events that no reader can hold up."""

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256

import pytest

from fedstrata.page import Feed, PageApp
from fedstrata.page.document import static_file
from fedstrata.process.http import StatusServer
from fedstrata.process.metrics import ProcessMetrics

EVENTS = b"GET /page/events HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """A status server with a page beside it."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.http = StatusServer("127.0.0.1:0", ProcessMetrics("gps").registry, lambda: True, PageApp(self.feed))
        host, _, port = self.http.address.rpartition(":")
        self.address = host, int(port)

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()
        finally:
            connection.close()

    def listen(self) -> socket.socket:
        """A connection that has asked for events."""
        connection = socket.create_connection(self.address, timeout=60)
        connection.sendall(EVENTS)
        return connection


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with server.http:
        yield server


def until(connection: socket.socket, word: bytes) -> bytes:
    """What comes, up to a word."""
    found = b""
    while word not in found:
        data = connection.recv(1 << 16)
        assert data, f"the connection ended before {word!r}"
        found += data
    return found


def test_the_page_and_its_files_are_there_and_ask_for_nothing_else(server: Server) -> None:
    status, headers, page = server.get("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', page.replace('href="data:,"', ""))
    assert len(named) > 3
    for name in named:
        assert name.startswith("page/")
        assert server.get(f"/{name}")[0] == 200


def test_what_others_have_made_is_as_they_have_published_it() -> None:
    said = static_file("LICENSES.txt").decode()
    for name in ("d3.min.js", "plot.umd.min.js"):
        assert f"{name}, SHA-256 {sha256(static_file(name)).hexdigest()}" in said


def test_metrics_and_health_stay_where_they_were(server: Server) -> None:
    assert server.get("/metrics")[0] == server.get("/healthz")[0] == server.get("/readyz")[0] == 200


@pytest.mark.parametrize("path", ["/page/", "/page/page.html", "/page/../http.py", "/page/%2e%2e/feed.py", "/other"])
def test_no_other_file_is_served(server: Server, path: str) -> None:
    assert server.get(path)[0] == 404


def test_only_reading_is_answered(server: Server) -> None:
    assert server.get("/", "POST")[0] == 405


def test_events_come_as_they_are_published(server: Server) -> None:
    server.feed.publish({"a": 1})
    with server.listen() as page:
        assert b'{"parts":{"a":1}' in until(page, b'"rounds":[]}\n\n')
        server.feed.publish({"a": 2})
        assert b'{"parts":{"a":2}' in until(page, b'"rounds":[]}\n\n')


def test_a_reader_that_stops_holds_up_neither_the_run_nor_other_readers(server: Server) -> None:
    server.feed.publish({"a": 0})
    with server.listen() as stopped, server.listen() as other:
        until(stopped, b"\n\n")
        for number in range(40):  # 40 MB, more than all that sockets hold
            server.feed.publish({"a": number, "long": f"{number}" * 500_000})
        server.feed.publish({"a": "last"})
        assert b'"a":"last"' in until(other, b'"a":"last"')


def test_a_reader_that_stops_is_hung_up_on_in_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.process.http.LONGEST_WRITE_S", 0.2)
    server.feed.publish({"long": "x" * 30_000_000})
    with server.listen() as stopped:
        until(stopped, b"\n\n")
        with server.feed._changed:
            assert server.feed._changed.wait_for(lambda: not server.feed._readers, timeout=60)
    assert server.get("/healthz")[0] == 200


def test_open_pages_leave_room_for_probes_and_scrapers_and_are_bounded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.process.http.MOST_REQUESTS", 2)
    monkeypatch.setattr("fedstrata.process.http.MOST_STAYING", 5)
    server.feed.publish({"a": 1})
    with ExitStack() as stack:
        pages = []
        for _ in range(5):  # one after the other, since two may be asking at once
            pages.append(stack.enter_context(server.listen()))
            until(pages[-1], b'"a":1')
        assert server.get("/page/events")[0] == 503
        assert server.get("/metrics")[0] == 200
