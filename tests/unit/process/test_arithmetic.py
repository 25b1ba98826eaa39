"""What a shell says about arithmetic reaches no service, and the kernel in use is known."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedstrata.process.openblas import openblas_kernel, scrub_environment

SHELL = {
    "OPENBLAS_CORETYPE": "Prescott", "OMP_NUM_THREADS": "7", "MKL_CBWR": "COMPATIBLE", "GOTO_NUM_THREADS": "3",
    "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_MAX_CPU_ISA": "SSE41",
    "MKLDNN_MAX_CPU_ISA": "SSE41", "NPY_DISABLE_CPU_FEATURES": "X86_V3",
}  # fmt: skip
KERNEL = "from fedstrata.process.openblas import openblas_kernel"
ASKED = "import {service}, os; " + KERNEL + "; print(openblas_kernel(), *os.environ)"


def test_variables_of_arithmetic_are_taken_away_and_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SHELL, "OPENBLASTER": "x", "FEDSTRATA_GPS": "host:1"}.items():
        monkeypatch.setenv(name, value)
    scrub_environment()
    assert not set(SHELL) & set(os.environ)
    assert {"OPENBLASTER", "FEDSTRATA_GPS"} <= set(os.environ)


@pytest.mark.parametrize("service", ["gps", "lps", "device"])
def test_a_service_started_from_such_a_shell_computes_with_the_processors_own_kernel(service: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(service=service)], cwd=Path(__file__).parents[3], text=True, check=True,
        capture_output=True, env={**os.environ, **SHELL}, timeout=60,
    )  # fmt: skip
    kernel, *names = done.stdout.split()
    assert kernel == openblas_kernel() != "Prescott"
    assert not set(SHELL) & set(names)


def test_the_gps_computes_on_one_thread_so_that_no_bit_depends_on_the_number_of_cores() -> None:
    threads = "[each['num_threads'] for each in threadpool_info() if each['internal_api'] == 'openblas']"
    asked = f"import gps, scipy.linalg; from threadpoolctl import threadpool_info; print({threads})"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=Path(__file__).parents[3], text=True, check=True, capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert set(json.loads(done.stdout)) == {1}
