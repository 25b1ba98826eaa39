"""The floor of an echo round: plain grpcio, one stream per client, and protobuf chunks of 1 MiB.

The floor adds each chunk when it arrives. It has no checks, no rounds that can be resumed, and no state, so it is the
least cost of any Python program on gRPC. `benchmarks/echo.py` starts it in turn with Fedstrata's own rounds.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.suite.observed import resident_mb
from fedstrata.v1 import rounds_pb2 as pb

CHUNK = 1 << 20  # bytes
METHOD = "/floor.Floor/Echo"
OPTIONS = (("grpc.max_receive_message_length", 2 << 20),)


class Floor:
    """Serve echo rounds: send each client the model, and add up the models that clients send back."""

    def __init__(self, clients: int, model_bytes: int, rounds: int) -> None:
        self._clients, self._rounds = clients, rounds
        self._model: NDArray[np.float32] = np.random.default_rng(0).normal(0, 0.1, model_bytes // 4).astype(np.float32)
        self._sum = np.zeros(model_bytes // 4, np.float32)
        self._parts: list[bytes] = []
        self._arrived = 0
        self._open = [asyncio.Event() for _ in range(rounds + 1)]
        self.seconds: list[float] = []
        self.done = asyncio.Event()
        self._started = 0.0

    def _arrive(self, number: int) -> None:
        """Note that a client has finished a round. The last client closes this round and opens the next one."""
        self._arrived += 1
        if self._arrived % self._clients:
            return
        now = time.perf_counter()
        if number:
            self.seconds.append(now - self._started)
            self._model = self._sum / np.float32(self._clients)
        self._started = now
        self._sum = np.zeros_like(self._model)
        data = self._model.tobytes()
        parts = [pb.ModelPart(data=data[start : start + CHUNK]) for start in range(0, len(data), CHUNK)]
        self._parts = [part.SerializeToString() for part in parts]
        self._open[number].set()

    async def echo(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> AsyncIterator[bytes]:
        """Serve one client's stream."""
        self._arrive(0)
        for number in range(self._rounds):
            await self._open[number].wait()
            for part in self._parts:
                yield part
            at = 0
            while at < len(self._sum):
                values = np.frombuffer((await anext(aiter(requests))).data, np.float32)
                self._sum[at : at + len(values)] += values
                at += len(values)
            self._arrive(number + 1)
        await self._open[self._rounds].wait()
        self.done.set()


async def serve(options: argparse.Namespace) -> None:
    """Serve all rounds; print the address first and the times last."""
    floor = Floor(options.devices, options.bytes, options.rounds)
    server = grpc.aio.server(options=OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(
        floor.echo, request_deserializer=pb.UpdatePart.FromString, response_serializer=bytes
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor.Floor", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await floor.done.wait()
    print(json.dumps({"seconds": floor.seconds, "peak_mb": resident_mb(os.getpid())}), flush=True)
    await server.stop(1)


async def attend(options: argparse.Namespace) -> None:
    """Run one client, which sends each received model back."""
    async with grpc.aio.insecure_channel(options.address, options=OPTIONS) as channel:
        call: grpc.aio.StreamStreamCall[pb.UpdatePart, pb.ModelPart] = channel.stream_stream(
            METHOD,
            request_serializer=pb.UpdatePart.SerializeToString,
            response_deserializer=pb.ModelPart.FromString,
        )(None, wait_for_ready=True)
        received: list[bytes] = []
        got = 0
        async for part in call:
            received.append(part.data)
            got += len(part.data)
            if got == options.bytes:
                for data in received:
                    await call.write(pb.UpdatePart(data=data))
                got, received = 0, []


def parse() -> argparse.Namespace:
    """Return the options of the server and of the clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("end", choices=("server", "device"))
    for name in ("--devices", "--bytes", "--rounds", "--index"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--address", default="")
    return parser.parse_args()


if __name__ == "__main__":
    parsed = parse()
    asyncio.run(serve(parsed) if parsed.end == "server" else attend(parsed))
    sys.stdout.flush()
