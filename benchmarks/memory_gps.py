"""Memory of the GPS by its number of clusters, as memory.py measures an LPS by its number of devices.

    python -m benchmarks.memory_gps --model-mb 100 --clusters 2 8 32 128

Starts `python -m gps` for each number, and LPSs that run here: each fetches the shared layers and sends an aggregate
that is made chunk by chunk, all at once, for two global rounds. Prints the peak resident size of the GPS (VmHWM), its
size before the first device came, and the growth as a number of models. Fails if the growth is above 2.5 models plus
30 MB.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.memory import CONSTANT_MB, EXAMPLES, LIMIT_MODELS, Child, enrol, service
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


async def measure(experiment: Experiment, layout: Layout, folder: Path) -> tuple[float, float]:
    """Return the GPS's memory before the first device, and its peak memory, in MB of 10⁶ bytes."""
    names = [f"lps-{index}" for index in range(experiment.device_count)]
    with service("gps", experiment, folder, "--lps-backend", "local") as (number, address):
        before = resident_mb(number, "VmRSS")
        async with Connection(address, OPEN) as calls:
            gps = GpsServiceStub(calls)
            attempt_id = await enrol(gps, experiment)
            for name in names:
                request = pb.RegisterLpsRequest(lps_id=name, address="127.0.0.1:9", experiment_sha256=experiment.digest)
                await gps.RegisterLps(request)
        async with Connection(address, OPEN) as channel:
            stub, gate = GpsServiceStub(channel), asyncio.Semaphore(len(names))
            clusters = [
                Child(
                    ids={"run_id": attempt_id, "child_id": name, "home_id": name},
                    layout=layout, fetch=stub.FetchShared, submit=stub.SubmitAggregate,
                )
                for name in names
            ]  # fmt: skip
            await asyncio.gather(*(cluster.run(gate) for cluster in clusters))
            peak = resident_mb(number)
    return before, peak


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model-mb", type=float, default=100.0)
    arguments.add_argument("--clusters", type=int, nargs="+", default=[2, 8, 32, 128])
    options = arguments.parse_args()
    print("clusters  shared MB  before MB  peak MB  growth in models")
    exceeded = False
    for clusters in options.clusters:
        experiment = experiment_of(clusters, options.model_mb)
        layout = shared_layout(experiment)
        size = layout.float32_bytes / 1e6
        with tempfile.TemporaryDirectory() as folder:
            before, peak = asyncio.run(measure(experiment, layout, Path(folder)))
        exceeded |= peak - before > LIMIT_MODELS * size + CONSTANT_MB
        print(f"{clusters:8d}  {size:9.1f}  {before:9.1f}  {peak:7.1f}  {(peak - before) / size:16.2f}", flush=True)
    return 1 if exceeded else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main())
