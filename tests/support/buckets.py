"""A store of buckets for tests: the server of moto, as a process in an environment of its own (`make buckets`)."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.support.programs import REPOSITORY

BUCKET = "lab"
PYTHON = REPOSITORY / ".venv-moto" / "bin" / "python"
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address=sys.argv[1], port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
server.stop()
"""
DIRECT = build_opener(ProxyHandler({}))


@contextmanager
def served_bucket(host: str = "127.0.0.1") -> Iterator[str]:
    """Yield the address of a server that has the bucket `lab`. Skip the test if the server is not installed."""
    if not PYTHON.exists():
        pytest.skip(f"needs a server of buckets at {PYTHON}; make buckets")
    command = [PYTHON, "-c", SERVER, host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            with DIRECT.open(Request(f"{address}/{BUCKET}", method="PUT"), timeout=10):
                pass
            yield address
        finally:
            process.stdin.close()  # this ends it


def check_credentials(address: str, *, after: str = "0") -> None:
    """Let the server refuse unknown credentials, from the next call on; with `inf` never."""
    plain = {"Content-Type": "text/plain"}
    with DIRECT.open(Request(f"{address}/moto-api/reset-auth", after.encode(), plain, method="POST"), timeout=10):
        pass


def settings_of(address: str) -> Mapping[str, str]:
    """The variables with which a process uses the server."""
    return {"AWS_ENDPOINT_URL_S3": address, "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
