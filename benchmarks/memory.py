"""Memory of one LPS by its number of children, the size of its model and the number of its streams.

    python -m benchmarks.memory --model-mb 100 --children 2 8 32 128
    python -m benchmarks.memory --model-mb 20 --children 32 --streams 2 4 8

Starts `python -m lps` for each number, under a GPS that runs here, and children that also run here. Each child fetches
the model and sends a float32 update that is made chunk by chunk, `--at-once` of them at a time, for one global round of
two LPS rounds. Prints the peak resident size of the LPS (VmHWM), and its size before the first child came. The growth
has to stay within 2.5 models, as `fedstrata check` says. With `--streams` the children belong to this many clusters,
and the limit is 5.5 times the streams. Fails if the growth is over the limit by more than 30 MB, and 0.3 MB per child.
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.suite.observed import resident_mb
from emulator.estimates.sizing import lps_memory
from fedstrata.datasets import dataset_info
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import build_model
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rpc.client import Connection
from fedstrata.rpc.payload import payload_header
from fedstrata.rpc.server import RpcServer
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tensors import CHUNK_BYTES, Layout, PayloadCodec
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2, lps_service_pb2, rounds_pb2
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub, add_GpsServiceServicer_to_server
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub
from gps.kubernetes.backend import Backend
from gps.phases import Phases
from gps.run import Run
from gps.servicer import GpsServicer

EXAMPLES = 10
LIMIT_MODELS = 2.5  # limit of a server's memory, in models, if it keeps one model
CONSTANT_MB, CHILD_MB = 30.0, 0.3  # in addition, for any model: once, and per child


def experiment_of(children: int, model_mb: float, streams: int | None) -> Experiment:
    """Return an experiment with one LPS, this many devices, and a dense model of about this size."""
    hidden = round(model_mb * 1e6 / 4 / (64 + 1 + 10))
    topology = "" if streams is None else "topology: {lps: 1}"
    return parse_experiment(f"""
name: memory
partition: {{kind: iid, devices: {children}, examples_per_device: {EXAMPLES}}}
model: {{name: mlp, hidden: [{hidden}]}}
method: {{name: random, clusters: {streams or 1}}}
{topology}
training: {{global_rounds: 1, lps_rounds_per_global_round: 2, local_steps: 1}}
""")


@dataclass(frozen=True)
class Who:
    """Hold the ids that a caller states in every call."""

    run_id: str
    child_id: str
    home_id: str


class Child:
    """Take part as a device that does not train. Each value of its update is the same number."""

    def __init__(self, stub: Any, experiment: Experiment, index: int, gate: asyncio.Semaphore) -> None:
        self.stub = stub
        self._who = self.who(experiment, index)
        self._codec = PayloadCodec(self.layout(experiment), "float32")
        self._gate = gate

    def who(self, experiment: Experiment, index: int) -> Who:
        """Return the ids of a device, which calls for itself."""
        return Who(experiment.run_id, experiment.device_ids()[index], "lps-0")

    def layout(self, experiment: Experiment) -> Layout:
        """Return the layout of models and updates."""
        return build_model(experiment.model, dataset_info(experiment.data)).layout

    async def run(self) -> None:
        """Take part until the run is over."""
        sent = -1
        while True:
            async with self._gate:
                header = await self._fetch(sent)
                if header is None:
                    return
                if header.evaluate_only:
                    if await self.evaluate(header.round):
                        return
                elif header.round > sent:
                    await self.submit(self._parts(header.round))
                    sent = header.round

    def fetch(self, request: rounds_pb2.FetchModelRequest) -> Any:
        """Call the stub so that it streams a model down."""
        return self.stub.FetchModel(request)

    def submit(self, parts: AsyncIterator[rounds_pb2.UpdatePart]) -> Any:
        """Call the stub so that it streams an update up."""
        return self.stub.SubmitUpdate(parts)

    async def _fetch(self, sent: int) -> rounds_pb2.ModelHeader | None:
        """Read and drop the next model. Return its header; None if the run is over."""
        while True:
            request = rounds_pb2.FetchModelRequest(
                run_id=self._who.run_id, child_id=self._who.child_id, home_id=self._who.home_id,
                sent_round=sent, resume_round=-1,
            )  # fmt: skip
            header: rounds_pb2.ModelHeader | None = None
            async for part in self.fetch(request):
                if part.HasField("finished"):
                    return None
                if part.HasField("header"):
                    header = part.header
            if header is not None:
                return header

    async def _parts(self, number: int) -> AsyncIterator[rounds_pb2.UpdatePart]:
        payload = payload_header(self._codec, name=UPDATE_PART, num_examples=EXAMPLES)
        header = rounds_pb2.UpdateHeader(
            run_id=self._who.run_id, child_id=self._who.child_id, home_id=self._who.home_id,
            round=number, payload=payload,
        )  # fmt: skip
        yield rounds_pb2.UpdatePart(header=header)
        chunk = np.full(CHUNK_BYTES // 4, 0.001, "<f4").tobytes()
        left = self._codec.payload_bytes
        while left:
            yield rounds_pb2.UpdatePart(data=chunk[:left])
            left -= min(left, len(chunk))

    async def evaluate(self, number: int) -> bool:
        """Send a measurement of the final model. Return whether this child is then done."""
        evaluation = rounds_pb2.Evaluation(
            device_id=self._who.child_id, round=number, loss_sum=1.0, sums=[1.0], num_examples=1
        )
        await self.stub.SubmitEvaluation(
            lps_service_pb2.SubmitEvaluationRequest(run_id=self._who.run_id, home_id="lps-0", evaluation=evaluation)
        )
        return False


async def measure(experiment: Experiment, at_once: int, folder: Path) -> tuple[float, float]:
    """Return the memory of the LPS before the first child, and its peak memory, in MB of 10⁶ bytes."""
    (folder / "experiment.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    metrics = ProcessMetrics("gps")
    (folder / "gps").mkdir()
    run = Run(experiment, state=folder / "gps", metrics=metrics, backend=Backend(), log=EventLog("gps"), security=OPEN)
    server = RpcServer(metrics.links, security=OPEN)
    server.add(add_GpsServiceServicer_to_server, GpsServicer(run), "fedstrata.v1.GpsService")
    await server.start("127.0.0.1:0")
    conducting = asyncio.create_task(Phases(run).conduct())
    lps = subprocess.Popen(  # noqa: ASYNC220  # it starts while nothing else is to be done
        [sys.executable, "-m", "lps", "--experiment", str(folder / "experiment.yaml"), "--gps", server.address,
         "--lps-id", "lps-0", "--state", str(folder / "lps"), "--exit-with-parent"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=(folder / "lps.log").open("wb"),
    )  # fmt: skip
    try:
        await run.changes.wait_until(lambda: bool(run.journal.hosting.addresses()), 60)
        before = resident_mb(lps.pid, "VmRSS")
        await enrol(server.address, experiment)
        await run.changes.wait_until(lambda: run.phase == "training", 60)
        connection = Connection(run.journal.hosting.addresses()["lps-0"], OPEN)
        gate, stub = asyncio.Semaphore(at_once), LpsServiceStub(connection.channel)
        await asyncio.gather(*(Child(stub, experiment, index, gate).run() for index in range(experiment.device_count)))
        peak = resident_mb(lps.pid)
        await conducting
        await connection.close()
    finally:
        lps.terminate()
        lps.wait()
        await server.stop(0)
    return before, peak


async def enrol(address: str, experiment: Experiment) -> None:
    """Make all devices of an experiment known to a GPS."""
    async with grpc.aio.insecure_channel(address) as channel:
        for index, device_id in enumerate(experiment.device_ids()):
            await GpsServiceStub(channel).Enroll(
                gps_service_pb2.EnrollRequest(
                    device_id=device_id, device_index=index, experiment_sha256=experiment.digest,
                    num_examples=EXAMPLES, num_held_out=1, process_id="benchmark",
                )
            )  # fmt: skip


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model-mb", type=float, default=100.0)
    arguments.add_argument("--children", type=int, nargs="+", default=[2, 8, 32, 128])
    arguments.add_argument(
        "--streams", type=int, nargs="+", default=[None], help="numbers of clusters, all at this LPS"
    )
    arguments.add_argument("--at-once", type=int, default=1000, help="children that send at the same time")
    arguments.add_argument("--folder", type=Path, help="write state to this folder; default: a temporary folder")
    options = arguments.parse_args()
    print("children  streams  model MB  before MB  peak MB  growth in models  by `check`")
    exceeded = False
    for children, streams in itertools.product(options.children, options.streams):
        experiment = experiment_of(children, options.model_mb, streams)
        layout = build_model(experiment.model, dataset_info(experiment.data)).layout
        model, expected = layout.float32_bytes / 1e6, lps_memory(experiment) / 1e6
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            before, peak = asyncio.run(measure(experiment, options.at_once, Path(folder)))
        growth = peak - before
        exceeded |= growth > expected + CONSTANT_MB + CHILD_MB * children
        print(
            f"{children:8d}  {streams or 1:7d}  {model:8.1f}  {before:9.1f}  {peak:7.1f}  {growth / model:16.2f}  "
            f"{expected / model:10.2f}",
            flush=True,
        )
    return 1 if exceeded else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main())
