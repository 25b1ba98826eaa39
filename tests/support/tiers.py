"""The three tiers in the test's own process, over real gRPC on 127.0.0.1 and ports that the kernel chose.

What `python -m gps`, `python -m lps` and `python -m device` put together, put together here from the same parts,
so that a test can hold a call back, make a device lie, or look at a meter. `programs.py` has the real processes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from device.__main__ import load
from device.agent import DeviceAgent
from device.channels import Channels
from device.rounds import DeviceRounds
from device.work import DeviceProcess
from emulator.results.read_record import RunRecord, load_record
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkKey, ProcessMetrics
from fedstrata.process.process import run_loop
from fedstrata.rounds import Update
from fedstrata.rpc.server import RpcServer
from fedstrata.trust.authority import Authority
from fedstrata.trust.guard import Membership
from fedstrata.trust.names import Name, device_names
from fedstrata.trust.security import OPEN, Security, TlsSecurity
from fedstrata.trust.tls_files import TlsFiles
from fedstrata.v1.gps_service_pb2_grpc import add_GpsServiceServicer_to_server, add_RunServiceServicer_to_server
from fedstrata.v1.lps_service_pb2_grpc import add_LpsServiceServicer_to_server
from gps.kubernetes.backend import Backend
from gps.phases import Phases
from gps.run import Run
from gps.servicer import GpsServicer, RunServicer
from lps.agent import LpsAgent
from lps.servicer import LpsServicer
from tests.support.attempts import attempt_of
from tests.support.loop_time import Ahead
from tests.support.records import summary_of

ANY_PORT = "127.0.0.1:0"
# Five devices, two tasks, one global round of two LPS rounds: the least that shows all three tiers.
SMALL = """
name: small
partition:
  kind: tasks
  minority_ratio: 0.1
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 50}
model: {name: mlp, hidden: [16]}
method: {name: one_shot, clusters: 2}
training:
  global_rounds: 1
  lps_rounds_per_global_round: 2
  batch_size: 16
  optimiser: {learning_rate: 0.1, momentum: 0.5}
"""


@cache
def small(*overrides: str) -> Experiment:
    """The small experiment, with some keys changed."""
    return parse_experiment(SMALL, overrides=overrides)


@dataclass
class Lps:
    """One LPS of this process."""

    agent: LpsAgent
    server: RpcServer
    metrics: ProcessMetrics


@dataclass
class Tiers:
    """A GPS, the LPSs that it asks for, and devices as a test starts them. An async context manager."""

    experiment: Experiment
    folder: Path
    gps_servicer: Callable[[Run], GpsServicer] = GpsServicer
    lps_servicer: Callable[..., LpsServicer] = LpsServicer
    authority: Authority | None = None  # where the tiers are to speak TLS
    lps: dict[str, Lps] = field(default_factory=dict)
    device_metrics: list[ProcessMetrics] = field(default_factory=list)
    _jobs: list[asyncio.Task[Any]] = field(default_factory=list)
    _channels: list[Channels] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.metrics = ProcessMetrics("gps")
        state = self.folder / "gps"
        state.mkdir(parents=True)
        backend = _Backend(self._have_lps)
        security = self.issued("gps", Name("gps"))
        with patch("gps.journal.journal_file.new_attempt", lambda run_id: attempt_of(self.experiment)):
            self.run = Run(
                self.experiment, state=state, metrics=self.metrics, backend=backend, log=EventLog("gps"),
                security=security,
            )  # fmt: skip
        self.server = self._server(self.metrics, security, self.run.serving)
        gps = self.gps_servicer(self.run)
        self.server.add(add_GpsServiceServicer_to_server, gps, "fedstrata.v1.GpsService")
        self.server.add(add_RunServiceServicer_to_server, RunServicer(self.run), "fedstrata.v1.RunService")
        await self.server.start(ANY_PORT)
        await self.server.set_ready()
        self.address = self.server.address
        self._jobs.append(asyncio.create_task(Phases(self.run).conduct()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for job in self._jobs:
            job.cancel()
        results = await asyncio.gather(*self._jobs, return_exceptions=True)
        for channels in self._channels:
            await channels.close()
        for lps in self.lps.values():
            await lps.agent.close()
            await lps.server.stop(0)
        await self.server.stop(0)
        self.run.journal.close()
        for result in results:  # a fault in a job must not pass for a result
            if isinstance(result, Exception):
                raise result

    def _server(self, metrics: ProcessMetrics, security: Security, membership: Membership) -> RpcServer:
        children = self.experiment.device_count
        return RpcServer(
            metrics.links, children=children, security=security, membership=membership, refused=metrics.refused
        )

    async def _have_lps(self, count: int) -> None:
        for number in range(len(self.lps), count):
            await self.start_lps(f"lps-{number}")

    async def start_lps(self, name: str) -> Lps:
        """Start an LPS and let it register and serve."""
        metrics = ProcessMetrics("lps")
        state = self.folder / name
        state.mkdir()
        log = EventLog("lps", lps_id=name)
        security = self.issued(name, Name("lps", name))
        agent = LpsAgent(
            self.experiment, lps_id=name, gps=self.address, state=state, metrics=metrics, log=log, security=security
        )
        server = self._server(metrics, security, agent)
        lps = self.lps[name] = Lps(agent, server, metrics)
        servicer = self.lps_servicer(agent.handlers, agent.knows_clusters)
        lps.server.add(add_LpsServiceServicer_to_server, servicer, "fedstrata.v1.LpsService")
        await lps.server.start(ANY_PORT)
        self._jobs.append(asyncio.create_task(_serve(lps)))
        return lps

    async def host(self, **changed: Any) -> DeviceProcess:
        """What a device process has; with fields of it changed, for a device unlike the others."""
        metrics = ProcessMetrics("device")
        self.device_metrics.append(metrics)
        security = self.issued("devices", *device_names(self.experiment.device_ids()))
        channels = Channels(self.address, metrics.links, security)
        self._channels.append(channels)
        state = self.folder / "devices" if self.experiment.secure_aggregation is not None else None
        host = await asyncio.to_thread(load, self.experiment, channels, metrics, state)
        return replace(host, **changed)

    def issued(self, name: str, *names: Name) -> Security:
        """A new certificate, where the tiers speak TLS."""
        if self.authority is None:
            return OPEN
        self.authority.issue(names, self.folder / "tls" / name)
        return TlsSecurity(TlsFiles.load(self.folder / "tls" / name))

    def start_device(
        self, host: DeviceProcess, index: int, kind: Callable[[DeviceProcess, int], DeviceAgent] = DeviceAgent
    ) -> "asyncio.Task[None]":
        """Start one device; its task ends as the device does, with the error that ended it."""
        device = asyncio.create_task(kind(host, index).run())
        self._jobs.append(asyncio.create_task(_quietly(device)))
        return device

    async def start_devices(self, indexes: Sequence[int] | None = None) -> DeviceProcess:
        """Start devices, all if not said which, as one process of theirs would."""
        host = await self.host()
        for index in range(self.experiment.device_count) if indexes is None else indexes:
            self.start_device(host, index)
        return host

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until something holds of the run at the GPS, which shows every change, or the run has failed."""
        await self.run.news.wait_until(lambda: is_true() or self.run.phase == "failed", None)
        assert is_true(), self.run.reason

    async def ended(self) -> RunRecord:
        """Wait for the run's record, of a completed or a failed run."""
        await self.run.changes.wait_until(lambda: self.run.has_record, None)
        return load_record(self.run.record_folder)


def open_device(note: Callable[[str, Update], None]) -> type[DeviceAgent]:
    """Return a kind of device that tells the test its name and each of its updates, before the update is sent."""

    class Rounds(DeviceRounds):
        def _note(self, goes_up: Any) -> None:
            if isinstance(goes_up, Update):
                note(self._device_id, goes_up)
            super()._note(goes_up)

    class Device(DeviceAgent):
        def __init__(self, host: DeviceProcess, device_index: int) -> None:
            super().__init__(host, device_index)
            self._rounds = Rounds(host, device_index, self._store, self._made, self._log)

    return Device


class Clock(Ahead):
    """Lets time pass at once for all that waits in the running event loop: deadlines, not calls on the wire."""

    def __init__(self) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + self.ahead_s  # type: ignore[method-assign]


class _Backend(Backend):
    """Starts LPSs in this process when the GPS says how many it wants."""

    def __init__(self, have_lps: Callable[[int], Any]) -> None:
        self._have_lps = have_lps
        self._starting: list[asyncio.Future[Any]] = []

    def scale_lps(self, replicas: int) -> None:
        self._starting.append(asyncio.ensure_future(self._have_lps(replicas)))


async def _serve(lps: Lps) -> None:
    await lps.agent.register(lps.server.address)
    await lps.server.set_ready()
    await lps.agent.run()


async def _quietly(device: "asyncio.Task[None]") -> None:
    """Let a device end as it may: what became of it is for the test to say, by the record or by its task."""
    try:
        await asyncio.wait({device})
    finally:
        device.cancel()
        with suppress(Exception, asyncio.CancelledError):
            await device


async def whole_run(
    experiment: Experiment,
    folder: Path,
    *,
    gps_servicer: Callable[[Run], GpsServicer] = GpsServicer,
    lps_servicer: Callable[..., LpsServicer] = LpsServicer,
    liars: Mapping[int, Callable[[DeviceProcess, int], DeviceAgent]] | None = None,
) -> RunRecord:
    """One run from start to record; `liars` are devices, by index, of a kind of their own."""
    async with Tiers(experiment, folder, gps_servicer, lps_servicer) as tiers:
        host = await tiers.host()
        for index in range(experiment.device_count):
            tiers.start_device(host, index, (liars or {}).get(index, DeviceAgent))
        return await tiers.ended()


def run_in_process(experiment: Experiment, folder: Path, **kinds: Any) -> RunRecord:
    """`whole_run` in an event loop of its own, for fixtures that several tests share."""
    return run_loop(whole_run(experiment, folder, **kinds))


def outcome(folder: Path) -> dict[str, Any]:
    """What two runs of one experiment must have in common, bit for bit."""
    summary = summary_of(folder)
    return {
        "clusters": summary["clusters"],
        "relevance.csv": (folder / "relevance.csv").read_text(),
        "model_sha256": summary["model_sha256"],
        "accuracy": summary["accuracy"],
    }


def counts(metrics: ProcessMetrics) -> dict[LinkKey, int]:
    """All bytes that a process has counted."""
    return dict(metrics.links.snapshot())
