"""Forward a port of a pod to this machine, through the Kubernetes API."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from fedstrata.errors import AccountError, AddressError

if TYPE_CHECKING:
    from kubernetes.client import Configuration


@dataclass(frozen=True)
class PodPort:
    """Describe a port of a pod in a namespace."""

    configuration: "Configuration"
    namespace: str
    pod: str
    port: int

    @contextmanager
    def forwarded(self) -> Iterator[str]:
        """Forward a port of this machine to the pod's port while the block runs. Yield the address on this machine.

        Raises:
            AddressError: the pod cannot be reached.
            AccountError: this account may not forward ports.
        """
        self._check()
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            try:
                yield f"127.0.0.1:{server.getsockname()[1]}"
            finally:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)  # ends the thread, which a close alone leaves in `accept`

    def _check(self) -> None:
        from kubernetes import client

        try:
            self._open().close()
        except (client.ApiException, OSError, ValueError) as error:
            said = " ".join(str(getattr(error, "reason", None) or error).split())[:300]
            if "403" in said:
                raise AccountError(
                    f"this account may not forward ports to pods in namespace {self.namespace}; ask your administrator "
                    "for the verbs get and create on pods/portforward"
                ) from None
            raise AddressError(f"cannot forward a port to pod {self.pod}: {said}") from None

    def _open(self) -> Any:
        from kubernetes import client

        # A separate client, because the stream replaces its client's way to make requests.
        core = client.CoreV1Api(client.ApiClient(self.configuration))
        return _portforward()(
            core.connect_get_namespaced_pod_portforward, self.pod, self.namespace, ports=str(self.port)
        )

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                local, _ = server.accept()
            except OSError:  # the socket is closed, because the block has ended
                return
            threading.Thread(target=self._carry, args=(local,), daemon=True).start()

    def _carry(self, local: socket.socket) -> None:
        """Forward the data of one connection to the pod and back."""
        from kubernetes import client

        with closing(local):
            try:
                forward = self._open()
            except (client.ApiException, OSError, ValueError):
                return  # the caller's connection is closed, so the caller tries again
            remote = forward.socket(self.port)
            remote.setblocking(True)
            threading.Thread(target=_pump, args=(local, remote), daemon=True).start()
            _pump(remote, local)
            forward.close()


@cache
def _portforward() -> Callable[..., Any]:
    """Return the port-forwarding function of the Kubernetes client, with a fix. If the link to the pod breaks, the
    fixed function also closes the forwarded connections.

    Without the fix, the thread of the Kubernetes client prints a traceback, and programs that read from the pod wait
    for ever.
    """
    from kubernetes.stream import portforward, ws_client
    from websocket import WebSocketException

    class Forward(ws_client.PortForward):  # type: ignore[misc]  # untyped there
        def _proxy(self) -> None:
            with suppress(OSError, RuntimeError, ValueError, WebSocketException):
                super()._proxy()
            for port in self.local_ports.values():
                port.python.close()

    ws_client.PortForward = Forward
    return cast("Callable[..., Any]", portforward)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes from `source` to `sink` until one of them is closed."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
