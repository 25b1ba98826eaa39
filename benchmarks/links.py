"""The real clock's links beside what was asked of them, timed by the devices, all in one process of their own.

    python benchmarks/links.py rates latency many shared

Every device fetches a model and submits an update over gRPC, each round in turn, and times both calls. Expected is what
the calendar says; the errors are of whole transfers, with all that calls and arithmetic take.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.experiment import Experiment, LinkSettings, TierDeadline, parse_experiment
from fedstrata.link_calendar import Flow, fair_ends
from fedstrata.logs import EventLog
from fedstrata.metrics import LinkMeter, ProcessMetrics
from fedstrata.process import run_loop
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
from fedstrata.streams import UPDATE_PART as PART
from fedstrata.tensors import Layout, OneSum
from fedstrata.tier_links import WAYS, TierLinks, device_links
from fedstrata.transfers import Transfers
from fedstrata.v1.lps_service_pb2_grpc import LpsServiceStub, add_LpsServiceServicer_to_server
from lps.servicer import LpsServicer

HERE, RUN, EXAMPLES = Path(__file__).parent, "links", 10


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
    """One transfer: nanoseconds at the device's end, and its bits with their header."""

    index: int
    way: str
    began_ns: int
    took_ns: int
    bits: int = 0

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

    def under_way(self, child_id: str, way: int, number: int, size: int, before: int = 0) -> Any:
        """A transfer, of which the size is kept."""
        self.bits[child_id, WAYS[way]] = 8 * size
        return super().under_way(child_id, way, number, size, before)


class Parent:
    """A server with a cluster for each device, and one calendar for all."""

    def __init__(self, experiment: Experiment, ends: Sequence[End]) -> None:
        self._ends = ends
        self.transfers = SizedTransfers(device_links(experiment))
        self._executor = ThreadPoolExecutor(1)
        self._log, self._metrics = EventLog("links"), ProcessMetrics("lps")
        self.pieces: list[tuple[int, int]] = []
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
                self.pieces.append((time.monotonic_ns(), len(data)))
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


async def measured(links: str, devices: int, ends: Sequence[End]) -> tuple[list[Timed], list[tuple[int, int]]]:
    """What a process with all devices has timed, and when the parent had which bytes of updates."""
    parent = Parent(experiment_of(links, devices), ends)
    await parent.server.start("127.0.0.1:0")
    plan = json.dumps({"links": links, "devices": devices, "ends": [asdict(end) for end in ends]})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    rounds = [asyncio.create_task(parent.rounds_of(end)) for end in ends]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "links.py"), "--attend", parent.server.address, plan,
        stdout=subprocess.PIPE, env=environment, limit=1 << 26,
    )  # fmt: skip
    told, _ = await process.communicate()
    for job in rounds:
        job.cancel()
    await parent.server.stop(0)
    timed = [Timed(**each) for each in json.loads(told)]
    bits = parent.transfers.bits
    return [replace(each, bits=bits[name_of(each.index), each.way]) for each in timed], parent.pieces


# --- tables -----------------------------------------------------------------------------------------------------


async def rates(rounds: int) -> None:
    """One link after the other, from 0.1 to 500 Mbit/s, and small payloads."""
    print("one link                  expected      median error          worst")
    cases = [(0.1, 1.2), (1, 1.2), (10, 1.2), (100, 1.2), (500, 1.2), (10, 0.4), (100, 0.4), (1, 0.08)]
    for mbit, seconds in cases:
        size = int(mbit * 1e6 * seconds / 8) // 8 * 8
        links = f"{{device-lps: {{down_rate: {mbit}Mbit/s, up_rate: {mbit}Mbit/s}}}}"
        timed, _ = await measured(links, 1, [End(index=0, payload_bytes=size, rounds=rounds)])
        for way in ("down", "up"):
            missed = [each.missed_ms(mbit * 1e6) for each in timed if each.way == way]
            middle, worst = statistics.median(missed), max(missed, key=abs)
            expected_ms = next(each.bits for each in timed if each.way == way) / mbit / 1e3
            share = f"{100 * middle / expected_ms:+.2f} %"
            print(f"{mbit:>6g} Mbit/s {way:<4} {expected_ms:>12.1f} ms {middle:>+8.2f} ms {share:>9} {worst:>+9.2f} ms")


async def latency(rounds: int) -> None:
    """What a message of a kilobyte adds to its link's latency."""
    for wanted in (5, 50):
        links = f"{{device-lps: {{latency: {wanted}ms}}}}"
        timed, _ = await measured(links, 1, [End(index=0, payload_bytes=1000, rounds=10 * rounds)])
        missed = sorted(each.missed_ms(float("inf"), wanted) for each in timed)
        print(
            f"latency {wanted} ms: median error {statistics.median(missed):+.2f} ms, "
            f"95 % below {missed[int(0.95 * len(missed))]:+.2f} ms, calls and arithmetic included"
        )


async def many(rounds: int) -> None:
    """Twenty devices of one process, each with a rate of its own, all at once."""
    chosen = {index: 0.5 + index for index in range(20)}
    overrides = ", ".join(
        f"{{devices: [{index}], down_rate: {rate}Mbit/s, up_rate: {rate}Mbit/s}}" for index, rate in chosen.items()
    )
    sizes = {index: int(rate * 1e6 * 2 / 8) // 8 * 8 for index, rate in chosen.items()}
    ends = [End(index=index, payload_bytes=size, rounds=rounds) for index, size in sizes.items()]
    timed, _ = await measured(f"{{overrides: [{overrides}]}}", len(chosen), ends)
    print("twenty devices of one process, 0.5 to 19.5 Mbit/s, transfers of 2 s")
    for way in ("down", "up"):
        shares = {
            index: statistics.median(
                each.missed_percent(rate * 1e6) for each in timed if (each.index, each.way) == (index, way)
            )
            for index, rate in chosen.items()
        }
        worst = max(shares.values(), key=abs)
        within = sum(abs(share) <= 2 for share in shares.values())
        middle = statistics.median(shares.values())
        print(f"  {way:<4} {within} of 20 within 2 %; median {middle:+.2f} %, worst {worst:+.2f} %")


async def shared(rounds: int) -> None:
    """Eight uploads of different sizes, starts and own links through one link of 8 Mbit/s."""
    own = [None, None, 0.4, 0.8, 3.0, None, 1.2, 2.5]  # Mbit/s
    sizes, starts = [900, 400, 300, 500, 1200, 700, 600, 800], [0.0, 0.3, 0.0, 0.7, 0.2, 1.1, 0.5, 0.1]  # kB, s
    overrides = ", ".join(f"{{devices: [{n}], up_rate: {rate}Mbit/s}}" for n, rate in enumerate(own) if rate)
    links = f"{{overrides: [{overrides}], shared: {{device-lps: {{up_rate: 8Mbit/s}}}}}}"
    shares, windows = [], []
    for _ in range(rounds):
        ends = [
            End(index=n, payload_bytes=1000 * size, start_s=start, sends_only=True)
            for n, (size, start) in enumerate(zip(sizes, starts, strict=True))
        ]
        timed, pieces = await measured(links, len(ends), ends)
        timed = sorted(timed, key=lambda each: each.index)
        flows = [
            Flow(start_ns=each.began_ns, bits=each.bits, rate=int(rate * 1e6) if rate else None)
            for each, rate in zip(timed, own, strict=True)
        ]
        for each, end_ns in zip(timed, fair_ends(flows, 8 * 10**6), strict=True):
            shares.append(100 * each.took_ns / (end_ns - each.began_ns) - 100)
        windows.append(most_in(pieces, 100_000_000) * 8 / 0.1 / 8e6)
    print(f"eight flows through 8 Mbit/s, {rounds} times")
    print(f"  beside max-min: median {statistics.median(shares):+.2f} %, worst {max(shares, key=abs):+.2f} %")
    print(f"  in any 100 ms: at most {max(windows):.3f} of the link, median {statistics.median(windows):.3f}")


def most_in(pieces: Sequence[tuple[int, int]], window_ns: int) -> int:
    """The most bytes that came within such a time."""
    ordered, first, within, most = sorted(pieces), 0, 0, 0
    for at_ns, size in ordered:
        within += size
        while ordered[first][0] <= at_ns - window_ns:
            within -= ordered[first][1]
            first += 1
        most = max(most, within)
    return most


async def lateness() -> list[float]:
    """By how many milliseconds timers of ten are late, until cancelled."""
    late = []
    with suppress(asyncio.CancelledError):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            late.append(1000 * (time.monotonic() - began) - 10)
    return late


PARTS = {"rates": rates, "latency": latency, "many": many, "shared": shared}


async def main(options: argparse.Namespace) -> None:
    """Print what was asked for, and how late timers are on this machine meanwhile."""
    print(f"load average {', '.join(f'{each:.1f}' for each in os.getloadavg())}, {os.cpu_count()} cores")
    for part in options.parts or PARTS:
        timers = asyncio.create_task(lateness())
        await PARTS[part](options.rounds)
        timers.cancel()
        late = sorted(await timers)
        middle, most = late[len(late) // 2], late[-len(late) // 20]
        print(f"  timers meanwhile: median {middle:.2f} ms late, 95 % below {most:.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attend", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.attend:
        said = json.loads(parsed.attend[1])
        found = run_loop(
            attend(parsed.attend[0], said["links"], said["devices"], [End(**each) for each in said["ends"]])
        )
        print(json.dumps([asdict(each) for each in found]))
    else:
        run_loop(main(parsed))
