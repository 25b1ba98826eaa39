"""The programs of pods that ask the GPS about its run: bad addresses end in one line."""

import subprocess
import sys

import pytest

from fedstrata.errors import EXIT_NETWORK


@pytest.mark.parametrize("program", ["gps.probe", "gps.kubernetes.job"])
def test_an_address_that_is_none_is_refused_in_one_line(program: str) -> None:
    command = [sys.executable, "-m", program, "--gps", "gps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (EXIT_NETWORK, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
