"""One large update that is sent, checked and added exactly, compared with a raw client stream without checks.

    python -m benchmarks.fold --mb 100

The raw stream sends protobuf chunks of 1 MiB and adds them as float32, to a server in a process of its own with gRPC's
default options, without any option of Fedstrata. Both are measured in turn in one run.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.suite.programs import environment, python
from fedstrata.experiment import LinkSettings, TierDeadline
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter, ProcessMetrics
from fedstrata.rounds import (
    Identity,
    Intake,
    OpenRound,
    ParentCalls,
    ParentStream,
    RoundClient,
    RoundServer,
    RoundTerms,
)
from fedstrata.rounds import Update as RoundUpdate
from fedstrata.rpc.client import Connection
from fedstrata.rpc.server import RpcServer
from fedstrata.store import ModelFile, write_model
from fedstrata.tensors import Layout, OneSum
from fedstrata.trust.security import OPEN
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub, add_LpsServiceServicer_to_server
from lps.servicer import LpsServicer

RUN, CLUSTER = "fold", "lps-0"
CHUNK = 1 << 20
RAW_OPTIONS = (("grpc.max_receive_message_length", 2 << 20),)


def layout_of(size: int) -> Layout:
    """Return a layout with one tensor of this size."""
    return Layout.of({"fc1.weight": (size,)})


async def serve(size: int, rounds: int) -> None:
    """Serve the rounds of an LPS with one device."""
    layout, metrics, executor = layout_of(size), ProcessMetrics("lps"), ThreadPoolExecutor(1)
    exchange = RoundTerms(run_id=RUN, layout=layout, link=LinkSettings(), wait=TierDeadline())
    served, known = RoundServer(exchange, metrics, EventLog("fold"), executor), asyncio.Event()
    known.set()
    server = RpcServer(metrics.links, security=OPEN)
    server.add(add_LpsServiceServicer_to_server, LpsServicer({CLUSTER: served}, known), "fedstrata.v1.LpsService")
    await server.start("127.0.0.1:0")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_model(path, layout, [np.zeros(size, np.float32)], {}, durable=False)
        model = ModelFile(path, layout)
        print(server.address, flush=True)
        for number in range(rounds):
            sums = OneSum(size, {"device-0": 10})
            intake = Intake(children={"device-0": 10}, sums=sums, wait=TierDeadline(), executor=executor)
            served.open(OpenRound.of_one(model, number=number, global_round=number, intake=intake))
            await served.gather()
    served.finish()
    await served.wait_all_told({"device-0"}, 60)
    await server.stop()


async def serve_raw(size: int) -> None:
    """Serve the raw stream until this process is ended."""

    async def fold(requests: AsyncIterator[pb.UpdatePart], context: Any) -> pb.UpdateReply:
        total, at = np.zeros(size, np.float32), 0
        async for part in requests:
            values = np.frombuffer(part.data, np.float32)
            total[at : at + len(values)] += values
            at += len(values)
        return pb.UpdateReply(accepted=True)

    server = grpc.aio.server(options=RAW_OPTIONS)
    handler = grpc.stream_unary_rpc_method_handler(
        fold, pb.UpdatePart.FromString, pb.UpdateReply.SerializeToString
    )  # fmt: skip
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw.Raw", {"Fold": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def measure(addresses: list[str], size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each upload: through Fedstrata, and through the raw stream right after it."""
    connection = Connection(addresses[0], OPEN)
    counting = connection.counted(LinkMeter())
    stub = LpsServiceStub(counting)
    session = ParentStream(stub.Attend)
    calls = ParentCalls(fetch=session.fetch, submit=stub.SubmitUpdate, locate=stub.LocateUpdate)
    identity = Identity(run_id=RUN, child_id="device-0", home_id=CLUSTER)
    client = RoundClient(calls, identity, layout_of(size), link=LinkSettings(), log=EventLog("fold"))
    flat = np.random.default_rng(0).normal(0, 0.1, size).astype(np.float32)
    ours, raw = [], []
    async with grpc.aio.insecure_channel(addresses[1]) as plain:
        call = plain.stream_unary("/raw.Raw/Fold", pb.UpdatePart.SerializeToString, pb.UpdateReply.FromString)
        for number in range(rounds):
            await client.fetch(number - 1)
            update = RoundUpdate(
                round=number, num_examples=10, codec=client.codec_for(flat), read=lambda a, b: flat[a:b]
            )
            started = time.perf_counter()
            await client.submit(update)
            ours.append(time.perf_counter() - started)
            started = time.perf_counter()
            await call(_chunks(flat))
            raw.append(time.perf_counter() - started)
        await client.fetch(rounds - 1)
    await connection.close()
    return ours, raw


async def _chunks(flat: Any) -> AsyncIterator[pb.UpdatePart]:
    data = memoryview(flat).cast("B")
    for start in range(0, len(data), CHUNK):
        yield pb.UpdatePart(data=bytes(data[start : start + CHUNK]))


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON line with the seconds of every upload")
    parser.add_argument("--serve", choices=("fedstrata", "raw"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    size, rounds = int(options.mb * 1e6) // 4, options.rounds
    if options.serve:
        asyncio.run(serve(size, rounds) if options.serve == "fedstrata" else serve_raw(size))
        return

    def start(which: str) -> "subprocess.Popen[str]":
        words = ["--serve", which, "--mb", str(options.mb), "--rounds", str(rounds)]
        command = python("-m", "benchmarks.fold", *words)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())

    with start("fedstrata") as server, start("raw") as plain:
        if server.stdout is None or plain.stdout is None:
            raise RuntimeError("a server process was started without a pipe")
        try:
            ours, raw = asyncio.run(
                measure([out.readline().strip() for out in (server.stdout, plain.stdout)], size, rounds)
            )
        finally:
            plain.terminate()
    if options.json:
        print(json.dumps({"mb": options.mb, "fedstrata": ours[1:], "raw": raw[1:]}))
        return
    rates = [options.mb / 1e3 / statistics.median(times[1:]) for times in (ours, raw)]
    ratio = statistics.median(b / a for a, b in zip(ours[1:], raw[1:], strict=True))
    print(f"{options.mb:g} MB: fedstrata {rates[0]:.2f} GB/s, raw stream {rates[1]:.2f} GB/s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
