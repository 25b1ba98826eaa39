"""The HTTP server of every process: metrics, liveness and readiness."""

import http.client
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from fedstrata.errors import AddressError
from fedstrata.process.http import StatusServer
from fedstrata.process.metrics import ProcessMetrics


class Process:
    """A status server with a readiness that a test can turn."""

    def __init__(self) -> None:
        self.is_ready = False
        self.metrics = ProcessMetrics("lps")
        names = ["GPS.lab.example", " other.example"]
        self.server = StatusServer("127.0.0.1:0", self.metrics.registry, lambda: self.is_ready, names=names)

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port at which it is served."""
        host, _, port = self.server.address.rpartition(":")
        return host, int(port)

    def get(self, path: str, name: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(*self.place, timeout=60)
        try:
            connection.request("GET", path, headers={} if name is None else {"Host": name})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    with process.server:
        yield process


def test_a_process_is_alive_before_it_is_ready(process: Process) -> None:
    assert process.get("/healthz") == (200, "200 OK\n")
    assert process.get("/readyz") == (503, "503 Service Unavailable\n")


def test_readiness_is_asked_at_every_request(process: Process) -> None:
    process.is_ready = True
    assert process.get("/readyz")[0] == 200
    process.is_ready = False
    assert process.get("/readyz")[0] == 503


def test_metrics_are_those_of_the_process(process: Process) -> None:
    process.metrics.update("accepted")
    status, page = process.get("/metrics")
    assert status == 200
    assert 'fedstrata_updates_total{outcome="accepted",tier="lps"} 1.0' in page


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/other"])
def test_no_browser_takes_an_answer_for_a_page(process: Process, path: str) -> None:
    connection = http.client.HTTPConnection(*process.place, timeout=60)
    with closing(connection):
        connection.request("GET", path)
        assert connection.getresponse().headers.get_all("X-Content-Type-Options") == ["nosniff"]


def test_any_other_path_is_not_found(process: Process) -> None:
    assert process.get("/")[0] == 404
    assert process.get("/metrics/../etc/passwd")[0] == 404


def test_port_0_takes_one_that_is_free(process: Process) -> None:
    host, port = process.place
    assert host == "127.0.0.1"
    assert port > 0


@pytest.mark.parametrize(
    "address", ["8080", "localhost:", ":8080", "localhost:http", "localhost:65536", "localhost:²", ""]
)
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(AddressError, match="is not an address; write host:port"):
        StatusServer(address, ProcessMetrics("lps").registry, lambda: True)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_address_is_served_and_written_in_brackets() -> None:
    metrics = ProcessMetrics("lps")
    try:
        server = StatusServer("[::1]:0", metrics.registry, lambda: True)
    except AddressError:
        pytest.skip("no IPv6 loopback here")
    with server:
        assert server.address.startswith("[::1]:")


@pytest.mark.parametrize("has_ipv6", [True, False])
def test_everywhere_is_every_address_of_both_families_or_of_the_one_there_is(
    process: Process, monkeypatch: pytest.MonkeyPatch, has_ipv6: bool
) -> None:
    monkeypatch.setattr("fedstrata.process.http.has_ipv6", lambda: has_ipv6)
    with StatusServer("[::]:0", process.metrics.registry, lambda: True) as server:
        port = server.address.rpartition(":")[2]
        for host, is_heard in (("127.0.0.1", True), ("::1", has_ipv6)):
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            with ExitStack() as stack:
                stack.callback(connection.close)
                if not is_heard:
                    stack.enter_context(pytest.raises(OSError, match="refused"))
                connection.request("GET", "/readyz")
                assert connection.getresponse().status == 200


def test_a_port_that_another_server_holds_is_refused_and_one_it_has_left_is_free() -> None:
    registry = ProcessMetrics("lps").registry
    with StatusServer("127.0.0.1:0", registry, lambda: True) as first:
        connection = http.client.HTTPConnection(first.address, timeout=60)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        with pytest.raises(AddressError, match=r"cannot serve HTTP on .*choose another --http"):
            StatusServer(first.address, registry, lambda: True)
    with StatusServer(first.address, registry, lambda: True) as again:
        assert again.address == first.address


def test_who_speaks_slowly_is_hung_up_on_and_few_are_heard_at_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.process.http.LONGEST_REQUEST_S", 0.5)
    monkeypatch.setattr("fedstrata.process.http.MOST_REQUESTS", 3)
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(process.place, timeout=60)) for _ in range(8)]
        for connection in slow:
            with suppress(ConnectionError):  # one too many was hung up on before
                while True:  # a letter at a time, each well before any time-out of a read
                    connection.sendall(b"G")
                    if select.select([connection], [], [], 0.05)[0]:
                        assert connection.recv(99) == b""
                        break
    assert process.get("/healthz")[0] == 200


def test_a_probe_is_answered_while_others_hold_as_many_connections_as_there_may_be(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.process.http.MOST_REQUESTS", 3)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(process.place, timeout=60)) for _ in range(3)]
        assert process.get("/healthz")[0] == 200
        assert silent[0].recv(1) == b""  # the oldest has made room


def test_of_too_many_connections_one_is_given_up_of_the_address_that_has_most(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstrata.process.http.MOST_REQUESTS", 3)

    def opened(by: str) -> socket.socket:
        return stack.enter_context(socket.create_connection(process.place, 60, (by, 0)))

    with ExitStack() as stack:
        one, *many = (opened(by) for by in ("127.0.0.2", "127.0.0.3", "127.0.0.3"))
        assert process.get("/healthz")[0] == 200
        assert many[0].recv(1) == b""
        one.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert one.recv(12) == b"HTTP/1.0 200"


def test_of_connections_that_break_nothing_is_said(process: Process, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection(process.place, timeout=60) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by a reset
            connection.sendall(b"GET /met")
        assert process.get("/healthz")[0] == 200
    process.server.__exit__(None, None, None)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/"])
@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "gps.svc.evil.example",
        "lab.example",
    ],
)
def test_a_name_that_a_stranger_may_have_pointed_here_is_refused(process: Process, path: str, name: str) -> None:
    status, said = process.get(path, name)
    assert (status, "fedstrata_" in said) == (421, False)
    assert said.endswith("use its address, or start it with --http-names\n")


@pytest.mark.parametrize(
    "name",
    [
        None, "", "localhost", "LOCALHOST:8080", "app.localhost", "127.0.0.1", "10.42.0.7:8080", "[::1]:8080",
        "[fd00::7]",
        "fedstrata-gps-0", "fedstrata-gps.lab.svc", "fedstrata-gps.lab.svc.cluster.local.", "gps.lab.example:80",
        "other.example",
    ],
)  # fmt: skip
def test_addresses_and_names_of_its_own_are_answered(process: Process, name: str | None) -> None:
    status, said = process.get("/metrics", name)
    assert (status, "fedstrata_" in said) == (200, True)
