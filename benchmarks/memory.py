"""Memory of one LPS by its number of children, the size of its model and the number of its streams.

    python -m benchmarks.memory --model-mb 100 --children 2 8 32 128
    python -m benchmarks.memory --model-mb 20 --children 32 --streams 2 4 8

Starts `python -m lps` for each number, under a GPS in another process, and children that run here. Each child fetches
the model and sends a float32 update that is made chunk by chunk, for one global round of two LPS rounds. At most
`--at-once` children do this at the same time. Prints the peak resident size of the LPS (VmHWM), and its size before the
first child came. The growth has to stay within 2.5 models, as `fedstrata check` says. With `--streams` the children
belong to this many clusters, and the limit is 5.5 times the streams. Fails if the growth is over the limit by more than
30 MB plus 0.3 MB per child.
"""

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from benchmarks.suite.observed import resident_mb
from benchmarks.suite.programs import python
from emulator.estimates.sizing import lps_memory
from fedstrata.datasets import dataset_info
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import build_model
from fedstrata.rpc.client import Connection
from fedstrata.rpc.payload import payload_header
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tensors import CHUNK_BYTES, Layout, PayloadCodec
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2, lps_service_pb2, rounds_pb2
from fedstrata.v1.gps_service_pb2_grpc import GpsServiceStub
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub

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


@dataclass(frozen=True, kw_only=True)
class Child:
    """Take part as a child that does not train. Each value of its update is the same number."""

    ids: Mapping[str, Any]  # run_id, child_id and home_id, which a caller states in every call
    layout: Layout  # of models and updates
    fetch: Any  # the call that streams a model down
    submit: Any  # the call that streams an update up
    evaluate: Any = None  # the call with a measurement of the final model; None: the child ends before it

    async def run(self, gate: asyncio.Semaphore) -> None:
        """Take part until the run is over."""
        sent = -1
        while True:
            async with gate:
                header = await self._fetched(sent)
                if header is None or (header.evaluate_only and self.evaluate is None):
                    return
                if header.evaluate_only:
                    await self.evaluate(self._evaluation(header.round))
                elif header.round > sent:
                    await self.submit(self._parts(header.round))
                    sent = header.round

    async def _fetched(self, sent: int) -> rounds_pb2.ModelHeader | None:
        """Read and drop the next model. Return its header; None if the run is over."""
        while True:
            header: rounds_pb2.ModelHeader | None = None
            async for part in self.fetch(rounds_pb2.FetchModelRequest(**self.ids, sent_round=sent, resume_round=-1)):
                if part.HasField("finished"):
                    if part.finished.reason:
                        raise RuntimeError(f"the run ended: {part.finished.reason}")
                    return None
                if part.HasField("header"):
                    header = part.header
            if header is not None:
                return header

    async def _parts(self, number: int) -> AsyncIterator[rounds_pb2.UpdatePart]:
        codec = PayloadCodec(self.layout, "float32")
        payload = payload_header(codec, name=UPDATE_PART, num_examples=EXAMPLES)
        yield rounds_pb2.UpdatePart(header=rounds_pb2.UpdateHeader(**self.ids, round=number, payload=payload))
        chunk = np.full(CHUNK_BYTES // 4, 0.001, "<f4").tobytes()
        left = codec.payload_bytes
        while left:
            yield rounds_pb2.UpdatePart(data=chunk[:left])
            left -= min(left, len(chunk))

    def _evaluation(self, number: int) -> lps_service_pb2.SubmitEvaluationRequest:
        evaluation = rounds_pb2.Evaluation(
            device_id=self.ids["child_id"], round=number, loss_sum=1.0, sums=[1.0], num_examples=1
        )
        run = {name: self.ids[name] for name in ("run_id", "home_id")}
        return lps_service_pb2.SubmitEvaluationRequest(**run, evaluation=evaluation)


@contextmanager
def service(name: str, experiment: Experiment, folder: Path, *words: str) -> Iterator[tuple[int, str]]:
    """Run a service during the block. Yield its process id and its address."""
    path = folder / "experiment.yaml"
    path.write_text(experiment.to_yaml(), encoding="utf-8")
    files = ("--experiment", str(path), "--state", str(folder / name), "--exit-with-parent")
    with (folder / f"{name}.log").open("wb") as log, subprocess.Popen(
        python("-m", name, *files, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process.pid, str(json.loads(process.stdout.readline())["grpc"])
        finally:
            process.terminate()


async def measure(experiment: Experiment, layout: Layout, at_once: int, folder: Path) -> tuple[float, float]:
    """Return the memory of the LPS before the first child, and its peak memory, in MB of 10⁶ bytes."""
    with (
        service("gps", experiment, folder, "--lps-backend", "local") as (_, gps),
        service("lps", experiment, folder, "--gps", gps, "--lps-id", "lps-0") as (number, lps),
    ):
        async with Connection(lps, OPEN) as channel:
            await until_registered(channel)
            before = resident_mb(number, "VmRSS")
            async with Connection(gps, OPEN) as calls:
                attempt_id = await enrol(GpsServiceStub(calls), experiment)
            stub, gate = LpsServiceStub(channel), asyncio.Semaphore(at_once)
            children = [
                Child(
                    ids={"run_id": attempt_id, "child_id": name, "home_id": "lps-0"},
                    layout=layout, fetch=stub.FetchModel, submit=stub.SubmitUpdate, evaluate=stub.SubmitEvaluation,
                )
                for name in experiment.device_ids()
            ]  # fmt: skip
            async with asyncio.timeout(600):
                await asyncio.gather(*(child.run(gate) for child in children))
            peak = resident_mb(number)
    return before, peak


async def enrol(gps: Any, experiment: Experiment) -> str:
    """Make all devices of an experiment known to a GPS. Return the id of the attempt, which all other calls state."""
    for index, device_id in enumerate(experiment.device_ids()):
        reply = await gps.Enroll(
            gps_service_pb2.EnrollRequest(
                device_id=device_id, device_index=index, experiment_sha256=experiment.digest,
                num_examples=EXAMPLES, num_held_out=1, process_id="benchmark",
            )
        )  # fmt: skip
    return str(reply.run_id)


async def until_registered(channel: Any) -> None:
    """Wait until the LPS at the other end has registered. Raises an error of gRPC if this takes a minute."""
    async for now in HealthStub(channel).Watch(HealthCheckRequest(service="fedstrata.v1.LpsService"), timeout=60):
        if now.status == HealthCheckResponse.SERVING:
            return


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
            before, peak = asyncio.run(measure(experiment, layout, options.at_once, Path(folder)))
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
