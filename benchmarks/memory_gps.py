"""Memory of the GPS by its number of clusters, as memory.py measures an LPS by its number of devices.

    python -m benchmarks.memory_gps --model-mb 100 --clusters 2 8 32 128

Starts `python -m gps` for each number, and LPSs that run here: each fetches the shared layers and sends an aggregate
that is made chunk by chunk, all at once, for two global rounds. Prints the peak resident size of the GPS (VmHWM), its
size before the first device came, and the growth as a number of models. Fails if the growth is above 2.5 models and 30
MB.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc

from benchmarks.memory import CONSTANT_MB, EXAMPLES, LIMIT_MODELS, Child, Who, enrol
from benchmarks.suite.observed import resident_mb
from fedstrata.datasets import dataset_info
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import build_model
from fedstrata.rpc.client import Connection
from fedstrata.tensors import Layout
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub


def experiment_of(clusters: int, model_mb: float) -> Experiment:
    """Return an experiment with this many clusters of one device, and shared layers of about this size."""
    hidden = round(model_mb * 1e6 / 4 / (64 + 1))
    return parse_experiment(f"""
name: memory-gps
partition: {{kind: iid, devices: {clusters}, examples_per_device: {EXAMPLES}}}
model: {{name: mlp, hidden: [{hidden}]}}
method: {{name: random, clusters: {clusters}}}
training: {{global_rounds: 2, lps_rounds_per_global_round: 1, local_steps: 1}}
""")


def shared_layout(experiment: Experiment) -> Layout:
    """Return the layout of the payloads between LPSs and the GPS."""
    model = build_model(experiment.model, dataset_info(experiment.data))
    return model.layout.select(model.shared)


class Cluster(Child):
    """Take part as the LPS of a cluster. Each value of its aggregate is the same number."""

    def who(self, experiment: Experiment, index: int) -> Who:
        """Return the ids of an LPS, which calls for its cluster."""
        name = f"lps-{index}"
        return Who(experiment.run_id, name, name)

    def layout(self, experiment: Experiment) -> Layout:
        """Return the layout of the shared layers."""
        return shared_layout(experiment)

    def fetch(self, request: Any) -> Any:
        """Call the GPS so that it streams the shared layers down."""
        return self.stub.FetchShared(request)

    def submit(self, parts: Any) -> Any:
        """Call the GPS so that it streams the aggregate up."""
        return self.stub.SubmitAggregate(parts)

    async def evaluate(self, number: int) -> bool:
        """Return True: after the last global round the GPS waits for reports, which this benchmark does not send."""
        return True


async def measure(clusters: int, model_mb: float, folder: Path) -> tuple[float, float, float]:
    """Return the size of the shared layers, the GPS's memory before the first device, and its peak memory, in MB of
    10⁶ bytes.
    """
    experiment = experiment_of(clusters, model_mb)
    (folder / "experiment.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    gps = subprocess.Popen(  # noqa: ASYNC220  # it starts while nothing else is to be done
        [sys.executable, "-m", "gps", "--experiment", str(folder / "experiment.yaml"), "--state", str(folder / "gps"),
         "--lps-backend", "local", "--exit-with-parent"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / "gps.log").open("wb"), text=True,
    )  # fmt: skip
    try:
        assert gps.stdout is not None
        address = str(json.loads(gps.stdout.readline())["grpc"])
        before = resident_mb(gps.pid, "VmRSS")
        await enrol(address, experiment)
        connection = Connection(address, OPEN)
        async with grpc.aio.insecure_channel(address) as calls:
            for index in range(clusters):
                request = pb.RegisterLpsRequest(
                    lps_id=f"lps-{index}", address="127.0.0.1:9", experiment_sha256=experiment.digest
                )
                await GpsServiceStub(calls).RegisterLps(request)
        gate = asyncio.Semaphore(clusters)
        stub = GpsServiceStub(connection.channel)
        await asyncio.gather(*(Cluster(stub, experiment, index, gate).run() for index in range(clusters)))
        peak = resident_mb(gps.pid)
        await connection.close()
    finally:
        gps.terminate()
        gps.wait()
    return 4 * shared_layout(experiment).size / 1e6, before, peak


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model-mb", type=float, default=100.0)
    arguments.add_argument("--clusters", type=int, nargs="+", default=[2, 8, 32, 128])
    options = arguments.parse_args()
    print("clusters  shared MB  before MB  peak MB  growth in models")
    exceeded = False
    for clusters in options.clusters:
        with tempfile.TemporaryDirectory() as folder:
            size, before, peak = asyncio.run(measure(clusters, options.model_mb, Path(folder)))
        exceeded |= peak - before > LIMIT_MODELS * size + CONSTANT_MB
        print(f"{clusters:8d}  {size:9.1f}  {before:9.1f}  {peak:7.1f}  {(peak - before) / size:16.2f}", flush=True)
    return 1 if exceeded else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main())
