"""Echo rounds: devices return the received model, so a round has only Fedstrata's own cost, compared with the floor.

    python -m benchmarks.echo --devices 20 --mb 0.1 1 10

Every device is a process with a `RoundClient` on a stream of its own; the server is a process with the LPS's
servicer, rounds, exact sum and state. `benchmarks/floor.py` runs in turn with it.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from benchmarks.floor import parse as parse_end
from benchmarks.suite.observed import resident_mb
from benchmarks.suite.programs import environment, python
from fedstrata.experiment import LinkSettings, TierDeadline, TrainingSettings
from fedstrata.experiment.sections import RuleSettings
from fedstrata.optimisers.server_optimisers import server_optimiser
from fedstrata.process.heap import keep_for_training
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter, ProcessMetrics
from fedstrata.process.process import run_loop
from fedstrata.rounds import (
    Identity,
    Intake,
    Offer,
    OpenRound,
    ParentCalls,
    ParentStream,
    ReceivedModel,
    RoundClient,
    RoundServer,
    RoundTerms,
    Update,
)
from fedstrata.rpc.client import Connection
from fedstrata.rpc.payload import Acceptance
from fedstrata.rpc.server import RpcServer
from fedstrata.rules import of_updates
from fedstrata.rules.mean import Mean
from fedstrata.store.model_file import pieces_of
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tensors import Layout
from fedstrata.trust.names import Name
from fedstrata.trust.security import OPEN
from fedstrata.v1.gps_service_pb2 import ReportHeader
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub, add_LpsServiceServicer_to_server
from lps.kept.state import ClusterState, Writing
from lps.servicer import LpsServicer

EXAMPLES, CLUSTER, RUN = 10, "lps-0", "echo"


def layout_of(options: argparse.Namespace) -> Layout:
    """Return the layout of a model of `options.bytes` bytes in two tensors."""
    size = options.bytes // 4
    return Layout.of({"fc1.weight": (size - size // 10,), "fc1.bias": (size // 10,)})


async def serve(options: argparse.Namespace) -> None:
    """Serve all rounds; print the address first and the times last."""
    layout, log, metrics = layout_of(options), EventLog("echo"), ProcessMetrics("lps")
    executor = ThreadPoolExecutor(1)
    terms = RoundTerms(run_id=RUN, link=LinkSettings(), wait=TierDeadline())
    accepted = Acceptance(layout, "float32", UPDATE_PART)
    rounds = RoundServer(terms, metrics, log, accepts_updates=lambda number: accepted)
    known = asyncio.Event()
    known.set()
    server = RpcServer(metrics.links, security=OPEN, payload_bytes=options.bytes)
    server.add(add_LpsServiceServicer_to_server, LpsServicer({CLUSTER: rounds}, known), "fedstrata.v1.LpsService")
    await server.start("127.0.0.1:0")
    print(server.address, flush=True)
    children = {f"device-{index:03d}": EXAMPLES for index in range(options.devices)}
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        state = ClusterState(
            Path(folder), run_id=RUN, home_id=CLUSTER, layout=layout,
            optimiser=server_optimiser(TrainingSettings().lps_optimiser), rounds_per_global=5,  # their start is flushed
        )  # fmt: skip
        writing, report = Writing(state), ReportHeader(run_id=RUN, home_id=CLUSTER)
        draws = np.random.default_rng(0)
        initial = (draws.normal(0, 0.1, stop - start).astype(np.float32) for start, stop in pieces_of(layout.size))
        standing = state.save(0, initial, report)
        for number in range(options.rounds):
            started = time.perf_counter()
            sums = of_updates(Mean(RuleSettings()), layout.size, children, Path())
            intake = Intake(children=children, sums=sums, wait=TierDeadline(), executor=executor)
            rounds.open(OpenRound(offers={0: Offer(standing.model)}, number=number, global_round=number, intake=intake))
            await writing.done()
            await rounds.gather()
            pieces = (sums.totals[0].mean(start, stop) for start, stop in pieces_of(layout.size))
            standing.close()
            standing = await writing.save(number + 1, pieces, report)
            seconds.append(time.perf_counter() - started)
        await writing.done()
    rounds.finish()
    await rounds.wait_all_told(set(children), 10)
    print(json.dumps({"seconds": seconds, "peak_mb": resident_mb(os.getpid())}), flush=True)
    await server.stop()


async def attend(options: argparse.Namespace) -> None:
    """Run one device, which sends each received model back as its update."""
    keep_for_training()  # a device process does the same
    connection = Connection(options.address, OPEN, Name("lps", CLUSTER))
    stub = LpsServiceStub(connection.counted(LinkMeter()))
    identity = Identity(run_id=RUN, child_id=f"device-{options.index:03d}", home_id=CLUSTER)
    calls = ParentCalls(stream=ParentStream(stub.Attend), submit=stub.SubmitUpdate, locate=stub.LocateUpdate)
    client = RoundClient(calls, identity, layout_of(options), link=LinkSettings(), log=EventLog("echo"))
    offer = await client.fetch(-1)
    while isinstance(offer, ReceivedModel):
        offer = await client.exchange(returned(offer, client))
    client.close()
    await connection.close()


def returned(offer: ReceivedModel, client: RoundClient) -> Update:
    """Return the received model as an update."""
    flat = offer.flat
    return Update(round=offer.round, num_examples=EXAMPLES, codec=client.codec_for(flat), read=lambda a, b: flat[a:b])


def wait_for(clients: "list[subprocess.Popen[str]]", server: "subprocess.Popen[str]") -> None:
    """Wait until all devices have ended. If one fails, end all others and the server, which would wait for it."""
    with ThreadPoolExecutor(len(clients)) as waiting:
        ends = [waiting.submit(client.wait) for client in clients]
        if all(end.result() == 0 for end in as_completed(ends)):
            return
        for process in [*clients, server]:
            process.kill()
    raise SystemExit("a device failed: its error is printed above")


def measure(program: str, devices: int, size: int, rounds: int) -> tuple[float, float]:
    """Return the median seconds of a round, and the server's peak memory in MB."""
    warm_up = max(2, rounds // 10)  # rounds that are not measured
    common = ["--devices", str(devices), "--bytes", str(size), "--rounds", str(rounds + warm_up)]

    def start(*words: str) -> "subprocess.Popen[str]":
        command = python("-m", f"benchmarks.{program}", *words, *common)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())

    with start("server") as server:
        if server.stdout is None:
            raise RuntimeError("the server process was started without a pipe")
        address = server.stdout.readline().strip()
        clients = [start("device", "--address", address, "--index", str(index)) for index in range(devices)]
        wait_for(clients, server)
        told = json.loads(server.stdout.readline())
    return statistics.median(told["seconds"][warm_up:]), told["peak_mb"]


def main() -> None:
    """Print a table of medians. For each size, Fedstrata and the floor are measured in turn, `--repeats` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--devices", 20), ("--rounds", 10), ("--repeats", 3)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--mb", type=float, nargs="+", default=[0.1, 1, 10])
    parser.add_argument("--json", action="store_true", help="print one JSON line per size, with every repeat")
    options = parser.parse_args()
    names = f"{'devices':>8} {'MB':>6} {'fedstrata s':>12} {'floor s':>9} {'ratio':>6} {'peak MB':>8} {'floor MB':>9}"
    if not options.json:
        print(names)
    for mb in options.mb:
        size = int(mb * 1e6) // 40 * 40
        work = (options.devices, size, options.rounds)
        pairs = [(measure("echo", *work), measure("floor", *work)) for _ in range(options.repeats)]
        if options.json:
            sides = [[pair[side] for pair in pairs] for side in (0, 1)]
            print(json.dumps({"mb": mb, "fedstrata": sides[0], "floor": sides[1]}), flush=True)  # (seconds, peak MB)
            continue
        ours, floor = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
        ratio = statistics.median(one[0] / other[0] for one, other in pairs)
        peaks = [max(pair[side][1] for pair in pairs) for side in (0, 1)]
        row = f"{work[0]:>8} {mb:>6g} {ours:>12.4f} {floor:>9.4f} {ratio:>6.2f} {peaks[0]:>8.0f} {peaks[1]:>9.0f}"
        print(row, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in {"server", "device"}:
        end = parse_end()
        run_loop(serve(end) if end.end == "server" else attend(end))
    else:
        main()
