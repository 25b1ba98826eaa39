"""A port of a pod: what a caller sees when the link to Kubernetes is cut."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from emulator.cluster.forward import _portforward


class Link:
    """The library's websocket as far as its thread looks at it: connected, readable, and then cut."""

    def __init__(self, error: Exception) -> None:
        self._near, far = socket.socketpair()
        far.close()  # readable from now on
        self.sock, self.connected, self._error = self._near, True, error

    def fileno(self) -> int:
        return self._near.fileno()

    def recv_data_frame(self, control_frame: bool) -> Any:
        raise self._error

    def close(self) -> None:
        self._near.close()


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset by peer"), RuntimeError("unexpected frame")])
def test_a_link_that_is_cut_ends_the_connection_without_a_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.stream import ws_client

    _portforward()
    raised: list[Any] = []
    notes: Callable[[Any], None] = raised.append
    monkeypatch.setattr(threading, "excepthook", notes)
    forward = ws_client.PortForward(Link(error), [50051])
    ours = forward.socket(50051)
    ours.settimeout(60)
    assert ours.recv(1) == b""  # the end, not a wait for ever
    ours.close()
    for thread in threading.enumerate():
        if thread.name.startswith("Kubernetes port forward proxy"):
            thread.join(60)
    assert raised == []
