"""HAProxy with the example's configuration, between callers and servers of a test."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.charts import CHART

BINARY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
REASON = "no haproxy here (Debian's package haproxy)"
DOMAIN = "digits.fl.example.org"  # of the servers in the example


def configuration(bind: str, servers: Mapping[str, str]) -> str:
    """The example, listening elsewhere and with the addresses of servers by their names: gps, lps-0, lps-1."""
    text = (CHART / "examples" / "haproxy.cfg").read_text().replace("bind :443", f"bind {bind}")
    found = re.findall(r"^backend (\S+)\n  server (\S+) \S+$", text, re.MULTILINE)
    assert found == [(f"{name}.{DOMAIN}", name) for name in servers]
    return re.sub(
        r"^  server (\S+) \S+$", lambda line: f"  server {line[1]} {servers[line[1]]}", text, flags=re.MULTILINE
    )


@contextmanager
def proxied(
    door: socket.socket, servers: Mapping[str, str], folder: Path, prefix: Sequence[str] = ()
) -> Iterator[None]:
    """Let HAProxy accept the connections of a listening socket, which has its port before anybody is started."""
    assert BINARY is not None, REASON
    file = folder / "haproxy.cfg"
    file.write_text(configuration(f"fd@{door.fileno()}", servers))
    with subprocess.Popen([*prefix, BINARY, "-db", "-f", str(file)], pass_fds=[door.fileno()]) as process:
        try:
            yield
        finally:
            process.terminate()
