"""Send the records in a sweep's folder to `fedstrata sweep --on kubernetes`.

This program, `python -m emulator.sweep_jobs.reader FOLDER PORT`, runs in a pod that has mounted the folder. It listens
at the pod's own address 127.0.0.1. Only a port forward reaches this address. The program answers two kinds of requests:

- `/` returns a JSON object. The object maps the path of each run that has begun to the run's `is_completed` and
  `failures`.
- `/RUN` returns a tar archive with the record of the run at the path RUN.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from emulator.runs.archive import write_archive
from emulator.sweeps.claims import claimed, failures


def begun_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the runs that have begun in a sweep's folder. The result maps the path of each run to `is_completed` and
    `failures`.
    """
    return {str(run.relative_to(folder)): _state(run) for run in claimed(folder)}


def _state(run: Path) -> dict[str, Any]:
    is_completed = False
    with suppress(OSError, ValueError, AttributeError):
        is_completed = json.loads((run / "summary.json").read_text(encoding="utf-8")).get("status") == "completed"
    return {"is_completed": is_completed, "failures": [asdict(each) for each in failures(run)]}


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, folder: Path, *arguments: Any) -> None:
        self._folder = folder
        super().__init__(*arguments)

    def do_GET(self) -> None:  # the name that the standard library calls
        """Answer one request for the list of runs, or for the record of a run."""
        runs: Mapping[str, Any] = begun_runs(self._folder)
        path = unquote(self.path).removeprefix("/")
        if path and path not in runs:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        if not path:
            self.wfile.write(json.dumps(runs).encode())
            return
        write_archive(self._folder / path, self.wfile)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Log nothing."""


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server for a sweep's folder. It listens at 127.0.0.1. If `port` is 0, the system chooses the port."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, folder))


if __name__ == "__main__":
    make_server(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
