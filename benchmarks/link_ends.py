"""Both ends of links on the real clock, for links.py: a parent, and devices that time what they fetch and send.

All are processes of one machine and have one clock: a model is timed from the call to when the device has it, an update
from the call to when the parent has its last piece.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.suite.programs import environment, python
from fedstrata.clock.tier_links import TierLinks, device_links
from fedstrata.clock.transfers import Transfers
from fedstrata.experiment import Experiment, LinkSettings, TierDeadline
from fedstrata.experiment.links import WAYS
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkMeter, ProcessMetrics
from fedstrata.process.process import run_loop
from fedstrata.rounds import (
    Identity,
    Intake,
    OpenRound,
    ParentCalls,
    ParentStream,
    RoundClient,
    RoundServer,
    RoundTerms,
    Update,
)
from fedstrata.rpc.client import open_channel
from fedstrata.rpc.server import RpcServer
from fedstrata.store.model_file import ModelInMemory
from fedstrata.streams.streams import UPDATE_PART as PART
from fedstrata.tensors import Layout, OneSum
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub, add_LpsServiceServicer_to_server
from lps.servicer import LpsServicer

RUN, EXAMPLES = "links", 10


@dataclass(frozen=True, kw_only=True)
class End:
    """What one device does: rounds of a payload, from a time on."""

    index: int
    payload_bytes: int
    rounds: int = 1
    start_s: float = 0.0
    sends_only: bool = False  # shared: all at the same time, so that there is one thing on the link

    @property
    def layout(self) -> Layout:
        """A model of so many bytes."""
        return Layout.of({"fc1.weight": (self.payload_bytes // 4,)})


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One transfer: nanoseconds from the device's call to when it is there, and its bits with their header."""

    index: int
    way: str
    began_ns: int
    took_ns: int
    bits: int = 0
    answered_ns: int = 0  # until the device knows it; of what it sends, after the parent's answer

    def missed_ms(self, rate: float, latency_ms: float = 0.0) -> float:
        """By how much it missed what it should have taken."""
        return (self.took_ns - self.bits / rate * 1e9) / 1e6 - latency_ms

    def missed_percent(self, rate: float) -> float:
        """The same as a share."""
        return 100 * self.took_ns / (self.bits / rate * 1e9) - 100


def experiment_of(links: str, devices: int) -> Experiment:
    """An experiment whose links these are."""
    text = f"name: links\nclock: real\npartition: {{kind: iid, devices: {devices}, examples_per_device: 10}}\n"
    return parse_experiment(text, overrides=[f"links={links}"])


# --- the parent -------------------------------------------------------------------------------------------------


class SizedTransfers(Transfers):
    """Transfers that keep their sizes."""

    def __init__(self, links: TierLinks) -> None:
        super().__init__(links)
        self.bits: dict[tuple[str, str], int] = {}  # by child and direction

    def under_way(self, child_id: str, way: int, number: int, size: int, before: int = 0, **more: Any) -> Any:
        """A transfer, of which the size is kept."""
        self.bits[child_id, WAYS[way]] = 8 * size
        return super().under_way(child_id, way, number, size, before, **more)


class Parent:
    """A server with a cluster for each device, and one calendar for all."""

    def __init__(self, experiment: Experiment, ends: Sequence[End]) -> None:
        self._ends = ends
        self.transfers = SizedTransfers(device_links(experiment))
        self._executor = ThreadPoolExecutor(1)
        self._log, self._metrics = EventLog("links"), ProcessMetrics("lps")
        self.pieces: list[tuple[int, int, int]] = []  # of updates: when, how many bytes, whose
        known = asyncio.Event()
        known.set()
        self._rounds = {f"lps-{end.index}": self._server(end.layout) for end in ends}
        self.server = RpcServer(self._metrics.links)
        servicer = LpsServicer(self._rounds, known)
        self.server.add(add_LpsServiceServicer_to_server, servicer, "fedstrata.v1.LpsService")

    def _server(self, layout: Layout) -> RoundServer:
        terms = RoundTerms(
            run_id=RUN, layout=layout, part=PART, link=LinkSettings(), wait=TierDeadline(), transfers=self.transfers
        )
        return RoundServer(terms, self._metrics, self._log, self._executor)

    async def rounds_of(self, end: End) -> None:
        """All rounds of a device."""
        server, name = self._rounds[f"lps-{end.index}"], name_of(end.index)
        model = ModelInMemory(end.layout, np.ones(end.layout.size, np.float32))
        for number in range(end.rounds):
            intake = Intake(children=[name], sums=OneSum(end.layout.size, {name: EXAMPLES}), wait=TierDeadline())
            fold = intake.fold

            async def noted(upload: Any, data: Any, fold: Any = fold) -> None:
                self.pieces.append((time.monotonic_ns(), len(data), end.index))
                await fold(upload, data)

            intake.fold = noted  # type: ignore[method-assign]
            server.open(OpenRound.of_one(model, number=number, global_round=number, intake=intake))
            await server.gather()


def name_of(index: int) -> str:
    """A device's id."""
    return f"device-{index:03d}"


# --- the devices' end -------------------------------------------------------------------------------------------


async def attend(address: str, links: str, devices: int, ends: Sequence[End]) -> list[Timed]:
    """All devices, on one connection."""
    experiment = experiment_of(links, devices)
    channel, counting = open_channel(address, LinkMeter())
    stub = LpsServiceStub(counting)
    await channel.channel_ready()  # connecting is no transfer
    began_ns = time.monotonic_ns() + 500_000_000
    timed = await asyncio.gather(*(one(stub, experiment, end, began_ns) for end in ends))
    await channel.close(None)
    return [each for found in timed for each in found]


async def one(stub: Any, experiment: Experiment, end: End, began_ns: int) -> list[Timed]:
    """One device."""
    session, timed = ParentStream(stub.Attend), []
    calls = ParentCalls(fetch=session.fetch, submit=stub.SubmitUpdate, locate=stub.LocateUpdate)
    identity = Identity(run_id=RUN, child_id=name_of(end.index), cluster_id=f"lps-{end.index}")
    client = RoundClient(calls, identity, end.layout, link=LinkSettings(), part=PART, log=EventLog("links"))
    client.keep_to(device_links(experiment), payload_bytes=end.payload_bytes, children=experiment.device_count)
    flat = np.ones(end.layout.size, np.float32)
    await asyncio.sleep((began_ns - time.monotonic_ns()) / 1e9 + end.start_s)
    for number in range(end.rounds):
        if not end.sends_only:
            start_ns = time.monotonic_ns()
            offer = await client.fetch(-1)
            timed.append(Timed(index=end.index, way="down", began_ns=start_ns, took_ns=time.monotonic_ns() - start_ns))
            del offer
        update = Update(round=number, num_examples=EXAMPLES, codec=client.codec_for(flat), read=lambda a, b: flat[a:b])
        start_ns = time.monotonic_ns()
        await client.submit(update)
        timed.append(Timed(index=end.index, way="up", began_ns=start_ns, took_ns=time.monotonic_ns() - start_ns))
        await asyncio.sleep(0.1)  # the parent opens the next round
    session.close()
    return timed


Pieces = list[tuple[int, int, int]]


def arrived(each: Timed, pieces: Pieces) -> Timed:
    """A transfer as long as until it is there: an update's last piece is at the parent before the device is told."""
    if each.way == "down":
        return replace(each, answered_ns=each.took_ns)
    times = [at for at, _, index in pieces if index == each.index and 0 <= at - each.began_ns <= each.took_ns]
    return replace(each, took_ns=max(times) - each.began_ns, answered_ns=each.took_ns)


async def measured(links: str, devices: int, ends: Sequence[End]) -> tuple[list[Timed], Pieces]:
    """What a process with all devices has timed, and when the parent had which bytes of updates."""
    parent = Parent(experiment_of(links, devices), ends)
    await parent.server.start("127.0.0.1:0")
    plan = json.dumps({"links": links, "devices": devices, "ends": [asdict(end) for end in ends]})
    rounds = [asyncio.create_task(parent.rounds_of(end)) for end in ends]
    process = await asyncio.create_subprocess_exec(
        *python("-m", "benchmarks.link_ends", parent.server.address, plan),
        stdout=subprocess.PIPE, env=environment(), limit=1 << 26,
    )  # fmt: skip
    told, _ = await process.communicate()
    for job in rounds:
        job.cancel()
    await parent.server.stop(0)
    timed = [arrived(Timed(**each), parent.pieces) for each in json.loads(told)]
    bits = parent.transfers.bits
    return [replace(each, bits=bits[name_of(each.index), each.way]) for each in timed], parent.pieces


if __name__ == "__main__":
    said = json.loads(sys.argv[2])
    found = run_loop(attend(sys.argv[1], said["links"], said["devices"], [End(**each) for each in said["ends"]]))
    print(json.dumps([asdict(each) for each in found]))
