"""Flower's deployment engine, a SuperLink and SuperNodes as processes, on echo rounds.

    .venv-peers/bin/python benchmarks/peers/flower_deployment.py --devices 10 --bytes 100000 --rounds 4 --out FILE

FILE gets the seconds of each round. Ports are free ports, and every process belongs to this program's process group.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import IO

APP = Path(__file__).parent / "flower_echo"
BIN = Path(sys.executable).parent
START_S, RUN_S, STOP_S, POLL_S = 60.0, 180.0, 10.0, 0.2


def free_ports(count: int) -> list[int]:
    """Return ports that no program uses now, because Flower's programs do not accept port 0."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class Federation:
    """Start the processes of one federation. The end of the block ends them."""

    def __init__(self, folder: Path, clients: int) -> None:
        self._folder = folder
        self._ports = free_ports(clients + 1)
        self._started: list[subprocess.Popen[bytes]] = []
        self._log: IO[bytes] = (folder / "log").open("wb")
        self._environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    @property
    def address(self) -> str:
        """Return the address of the SuperLink."""
        return f"127.0.0.1:{self._ports[0]}"

    def start(self, program: str, *words: str) -> "subprocess.Popen[bytes]":
        """Start one of Flower's programs."""
        process = subprocess.Popen(
            [str(BIN / program), *words], cwd=APP, env=self._environment, stdout=self._log, stderr=self._log
        )
        self._started.append(process)
        return process

    def __enter__(self) -> "Federation":
        own = ("--insecure", "--host", "127.0.0.1", "--port")
        self.start("flower-superlink", *own, str(self._ports[0]), "--disable-runtime-dependency-installation")
        wait_for(lambda: is_healthy(self.address), START_S, "the SuperLink did not come up")
        for number, port in enumerate(self._ports[1:]):
            node = f"partition-id={number} num-partitions={len(self._ports) - 1}"
            self.start("flower-supernode", *own, str(port), "--superlink", self.address, "--node-config", node)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self._started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._log.close()

    def run(self, settings: str, out: Path) -> None:
        """Run the app once, until it has written its times."""
        connection = (
            f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "{self.address}"\ninsecure = true\n'
        )
        (self._folder / "config.toml").write_text(connection)
        submitted = self.start("flwr", "run", str(APP), "bench", "--run-config", settings)
        if submitted.wait(START_S):
            raise RuntimeError("flwr run failed")
        wait_for(out.exists, RUN_S, "the run did not end")

    def last_words(self) -> str:
        """Return the end of the log."""
        return (self._folder / "log").read_text(errors="replace")[-3000:]


def wait_for(holds, seconds: float, otherwise: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(POLL_S)


def is_healthy(address: str) -> bool:
    """Return whether a SuperLink answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def main() -> None:
    """Run the app once in one federation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--devices", 10), ("--bytes", 100_000), ("--rounds", 4)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    out = options.out.resolve()
    settings = f'clients={options.devices} bytes={options.bytes} rounds={options.rounds} out="{out}"'
    with tempfile.TemporaryDirectory() as folder, Federation(Path(folder), options.devices) as federation:
        try:
            federation.run(settings, out)
        except (RuntimeError, TimeoutError):
            print(federation.last_words(), file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
