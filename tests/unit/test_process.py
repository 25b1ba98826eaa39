"""How a service process starts: an error in its options takes one line, and its log has its own events."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata.errors import OutputError
from fedstrata.process.process import folder


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_one_is_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="give another"):
        folder(str(tmp_path / name))


def test_at_debug_a_process_logs_its_own_events_and_no_line_of_grpc_for_each_call() -> None:
    program = (
        "import logging; from fedstrata.process.logs import EventLog, configure_logs; configure_logs('DEBUG');"
        "grpc = logging.getLogger('grpc._cython.cygrpc'); grpc.debug('running loop'); grpc.warning('went wrong');"
        "EventLog('device').debug('fetch_cut')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["went wrong", "fetch_cut"]
