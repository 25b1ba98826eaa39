"""A real server of MLflow for tests, as a process in an environment of its own (`make mlflow`)."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.support.programs import REPOSITORY

PROGRAM = REPOSITORY / ".venv-mlflow" / "bin" / "mlflow"
DIRECT = build_opener(ProxyHandler({}))


@contextmanager
def serving(address: str, folder: Path) -> Iterator[None]:
    """Serve the runs of `folder` at an address. At the end kill the server. Skip the test if it is not installed."""
    if not PROGRAM.exists():
        pytest.skip(f"needs a server of MLflow at {PROGRAM}; make mlflow")
    host, port = address.split(":")
    words = ["server", "--backend-store-uri", f"sqlite:///{folder / 'runs.db'}", "--host", host, "--port", port]
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [PROGRAM, *words, "--workers", "1"], cwd=folder, env={**os.environ, **settings},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for(f"http://{address}/health", process, folder / "server.log")
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with DIRECT.open(url, timeout=10):
                return
        except (URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"the server of MLflow did not come up: {log.read_text()}")
