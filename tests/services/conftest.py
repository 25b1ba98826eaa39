"""Runs that several test files look at: made once."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.programs import BigRun, Program, wait_for_record, wait_for_serving

# 64 × 40,000 + 40,000 + 40,000 × 10 + 10 weights of 4 bytes: 12 MB, 10.4 MB of them in the shared layer.
BIG = """
name: big
partition: {kind: iid, devices: 2, examples_per_device: 16}
model: {name: mlp, hidden: [40000]}
method: {name: random, clusters: 1}
training: {global_rounds: 2, lps_rounds_per_global_round: 1, local_steps: 1, batch_size: 16}
"""


@pytest.fixture(scope="session")
def big_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    """A run with a model of 12 MB by three programs, which stay until the tests have ended."""
    folder = tmp_path_factory.mktemp("big_run")
    file, servers = folder / "big.yaml", {"without": ["torch"]}
    file.write_text(BIG)
    common = ("--experiment", str(file))
    with ExitStack() as stack:
        gps = stack.enter_context(
            Program("gps", *common, "--state", str(folder / "gps"), log=folder / "gps.log", **servers)
        )
        at_gps = gps.addresses()
        to_gps = (*common, "--gps", at_gps["grpc"])
        words = (*to_gps, "--lps-id", "lps-0", "--state", str(folder / "lps"))
        lps = stack.enter_context(Program("lps", *words, log=folder / "lps.log", **servers))
        at_lps = lps.addresses()
        wait_for_serving(at_lps["grpc"])
        idle_status = Path(f"/proc/{lps.process.pid}/status").read_text()
        words = (*to_gps, "--devices", "0-1", "--stay")
        device = stack.enter_context(Program("device", *words, log=folder / "device.log"))
        at_device = device.addresses()
        run_id = wait_for_record(at_gps["grpc"])
        yield BigRun(
            programs={"gps": gps, "lps": lps, "device": device},
            http={"gps": at_gps["http"], "lps": at_lps["http"], "device": at_device["http"]},
            grpc={"gps": at_gps["grpc"], "lps": at_lps["grpc"]},
            idle_status=idle_status,
            summary=json.loads((folder / "gps" / run_id / "record" / "summary.json").read_text()),
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the tests of a file share."""
    return tmp_path_factory.mktemp("shared")
