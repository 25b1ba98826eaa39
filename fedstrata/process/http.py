"""The small HTTP server of every process: `/metrics`, `/healthz`, `/readyz`, and further paths of the process."""

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from fedstrata.errors import AddressError
from fedstrata.process.address import EVERYWHERE, has_ipv6, split_address
from fedstrata.process.quoting import quoted

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


LONGEST_REQUEST_S = 10.0  # longest time of a request, from its connection to the end of its response
MOST_REQUESTS = 32  # requests at once, each in a thread; up to twice as many while closed connections still end
MOST_STAYING = 128  # lasting connections at once, such as of open pages, each with a waiting thread
LONGEST_WRITE_S = 60.0  # longest time for which the peer of a lasting connection may read nothing
NOBODY_ELSES = (".localhost", ".svc", ".cluster.local")  # ends of names that an attacker cannot own
NO_SNIFFING = ("X-Content-Type-Options", "nosniff")  # a browser must not take text for a page with scripts
STAY = "fedstrata.stay"  # key of the function that keeps a request's connection open until its next call


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # Connections that wait to be accepted. With the default of five, a few could delay a health probe.
    request_queue_size = 128

    def __init__(self, *arguments: Any, **named_arguments: Any) -> None:
        self._open: dict[socket.socket, float] = {}  # connections, with the time at which each is closed
        self._from: dict[socket.socket, str] = {}  # connections, the oldest first, with the peer's address
        self._staying: set[socket.socket] = set()  # connections that may last
        super().__init__(*arguments, **named_arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a separate thread.

        If there are too many connections, close the oldest connection of the address with the most connections. This
        keeps the server free for health probes. The thread of a closed connection may continue for a while. If too many
        threads run, drop the new connection.
        """
        if len(self._open) - len(self._staying) >= 2 * MOST_REQUESTS:
            self.shutdown_request(request)
            return
        opened = {one: who for one, who in list(self._from.items()) if one not in self._staying}
        if len(opened) >= MOST_REQUESTS:
            ((most, _),) = Counter(opened.values()).most_common(1)
            self._hang_up(next(one for one, who in opened.items() if who == most))
        self._open[request] = time.monotonic() + LONGEST_REQUEST_S
        self._from[request] = client_address[0]
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a request, but ignore broken connections. Otherwise a peer that opens and resets connections
        could fill the log with tracebacks.
        """
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _hang_up(self, request: socket.socket) -> None:
        """Close a connection, so that its thread stops reading."""
        self._from.pop(request, None)
        with suppress(OSError):  # the connection may have ended already
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and forget it."""
        self._open.pop(request, None)
        self._from.pop(request, None)
        self._staying.discard(request)
        super().shutdown_request(request)

    def stay(self, request: socket.socket) -> bool:
        """Let a connection stay open for as long as its peer reads, and return True. If too many such connections are
        open already, return False.
        """
        if request not in self._staying and len(self._staying) >= MOST_STAYING:
            return False
        if request in self._open:  # otherwise the server has closed it
            self._staying.add(request)
            self._open[request] = time.monotonic() + LONGEST_WRITE_S
        return True

    def service_actions(self) -> None:
        """Close connections that have reached their time limit. Their threads then stop reading. The server calls this
        function a few times per second.
        """
        now = time.monotonic()
        for request in [request for request, ends_at in list(self._open.items()) if now > ends_at]:
            with suppress(OSError):  # the connection may have ended already
                request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind the address. Unlike the standard server, do not look up the host name."""
        # Without this option, closed connections of an earlier process in the pod would block the port.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    server: _Server

    def get_environ(self) -> "WSGIEnvironment":
        """Return the environment of a request, with a function that keeps the request's connection open."""
        return super().get_environ() | {STAY: partial(self.server.stay, self.connection)}

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing, because requests of probes and scrapers are not events."""


class StatusServer:
    """Serve metrics and health in a separate thread, so that requests are answered even if the event loop is busy."""

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        beside: "WSGIApplication | None" = None,
        names: Iterable[str] = (),
    ) -> None:
        """Bind `address` (host:port; with port 0 the kernel chooses one). The application `beside` answers requests for
        all paths except `/metrics`, `/healthz` and `/readyz`.

        The Host header of a request must have this machine's name, an address, a name of Kubernetes or one of `names`.
        Requests with other names are refused. Otherwise an attacker could point a name to this machine, and a page of
        that name could read from this server (DNS rebinding).

        Raises:
            AddressError: the address cannot be bound.
        """
        host, port = split_address(address)
        if host == EVERYWHERE and not has_ipv6():
            host = "0.0.0.0"  # noqa: S104
        metrics = _not_sniffed(make_wsgi_app(registry))
        own = {name.strip().lower() for name in (host, socket.gethostname(), *names)}

        def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "/")
            asked = _name_in(environ.get("HTTP_HOST", ""))
            if asked not in own and not _is_nobody_elses(asked):
                return _misdirected(asked, start_response)
            if path == "/metrics":
                page: Iterable[bytes] = metrics(environ, start_response)
                return page
            if beside is not None and path not in {"/healthz", "/readyz"}:
                return beside(environ, start_response)
            known = {"/healthz": True, "/readyz": is_ready()}
            status = ("200 OK" if known[path] else "503 Service Unavailable") if path in known else "404 Not Found"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8"), NO_SNIFFING])
            return [status.encode() + b"\n"]

        try:
            server = _Server6 if ":" in host else _Server
            self._server = make_server(host, port, app, server_class=server, handler_class=_Quiet)
        except OSError as error:
            raise AddressError(f"cannot serve HTTP on {address}: {error.strerror}; choose another --http") from None
        self.address = f"{host if ':' not in host else f'[{host}]'}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, without its port; an empty text without a header."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.removesuffix(".").lower()


def _is_nobody_elses(name: str) -> bool:
    """Return whether no attacker can own this host name: it is an address, a name without a dot, or a name of
    Kubernetes or of this machine.
    """
    if "." not in name or name.endswith(NOBODY_ELSES):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _not_sniffed(app: "WSGIApplication") -> "WSGIApplication":
    """Return the application with the header `NO_SNIFFING` in its answers."""

    def wrapped(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        return app(environ, lambda status, headers, *rest: start_response(status, [*headers, NO_SNIFFING], *rest))

    return wrapped


def _misdirected(name: str, start_response: "StartResponse") -> Iterable[bytes]:
    status = HTTPStatus.MISDIRECTED_REQUEST
    headers = [("Content-Type", "text/plain; charset=utf-8"), NO_SNIFFING]
    start_response(f"{status.value} {status.phrase}", headers)
    return [f"{quoted(name)} is not a name of this server; use its address, or start it with --http-names\n".encode()]
