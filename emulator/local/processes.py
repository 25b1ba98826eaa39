"""Run the three tiers as processes on this machine."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from emulator.estimates.device_processes import device_ranges, process_count, share_arguments
from emulator.local.faults import FaultDriver
from fedstrata.errors import CertificateError, FedstrataError, OutputError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.process.child_processes import OwnedProcess, ProcessSpec, Restart, Supervisor
from fedstrata.process.machine import command_line
from fedstrata.process.nursery import Nurseries
from fedstrata.process.starting import INTERPRETER, Starter
from fedstrata.trust.security import OPEN, Security
from fedstrata.trust.tls_files import tls_arguments
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from emulator.local.run_certificates import RunCertificates

STARTUP_DEADLINE_S = 1_800.0  # long, for machines without free CPU time; a process that ends is noticed at once
ARRIVALS = "arrivals.csv"  # in the folder of a run that repeats the asynchronous rounds of another run
SERVER_ENDPOINTS = {"grpc": "--listen", "http": "--http"}
DEVICE_ENDPOINTS = {"http": "--http"}
SERVERS, DEVICES = ("gps", "lps"), ("device",)  # programs that import the same modules


class LocalBackend:
    """Run an experiment as processes on this machine. In the folder, `state/` has the files that must survive a crash,
    and `logs/` has one file per process.

    The backend is an async context manager. Its exit ends every process.
    """

    programs: tuple[str, ...] = (*SERVERS, *DEVICES)  # all programs that the backend starts

    def __init__(
        self,
        folder: Path,
        *,
        device_processes: int | None,
        on_restart: Callable[[Restart], None],
        has_tls: bool = False,
        servers_at: Mapping[str, str] | None = None,
        starter: Starter = INTERPRETER,
        runs: int = 1,
    ) -> None:
        """Set `servers_at`, the addresses at which GPS and LPSs listen at their first start. It maps an endpoint's
        name, such as `grpc`, to an address. By default GPS and LPSs listen at free ports of the loopback interface.
        `runs` is the number of runs that share this machine.
        """
        self._servers_at = servers_at or {}
        self._folder = folder
        self._there = folder.absolute()  # for processes, whose own code may change their current folder
        self._device_processes, self._runs = device_processes, runs
        self._supervisor = Supervisor(folder / "logs", on_restart, starter)
        self._on_restart = on_restart
        self._has_tls = has_tls
        self._certificates: RunCertificates | None = None
        self.security: Security = OPEN  # how the emulator calls the GPS; set by `start`
        self._gps_address = ""
        self.http_address = ""  # the GPS's HTTP address; set by `start`
        self._lps_count = 0
        self._lps_gone: set[str] = set()  # revoked LPSs
        self._watches: set[asyncio.Task[None]] = set()
        self._faults = FaultDriver((), folder / "state" / "faults", self._note_fault)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, experiment: Experiment) -> str:
        """Start the GPS, and then the devices. Return the address of the GPS."""
        self._faults.take(experiment.faults)
        if self._has_tls:
            from emulator.local.run_certificates import RunCertificates

            self._certificates = RunCertificates(self._there / "state" / "tls", experiment)
            self.security = self._certificates.of_operator()
        gps = self._start(self._server("gps", "gps", "--command", command_line(sys.argv)), ["gps"])
        self._watch([gps])
        addresses = await self._unless_failure(gps.addresses())
        self._gps_address, self.http_address = addresses["grpc"], addresses.get("http", "")
        await self._start_devices(experiment, await self._faults.by_way_of("device-gps", self._gps_address))
        return self._gps_address

    async def _start_devices(self, experiment: Experiment, gps: str) -> None:
        """Start all devices of the run. `gps` is the address by which they reach the GPS."""
        ranges = device_ranges(experiment.device_count, process_count(experiment, self._device_processes))
        ids, words = experiment.device_ids(), share_arguments(experiment, len(ranges) * self._runs)
        self._watch([self._start(self._devices(part, gps, words), [ids[i] for i in part]) for part in ranges])

    def observe(self, status: pb.RunStatus) -> None:
        """Cause the experiment's faults that are due in this state."""
        self._faults.observe(status)

    def _start(self, spec: ProcessSpec, names: Sequence[str]) -> OwnedProcess:
        """Start a process. Faults refer to the process by these names."""
        process = self._supervisor.start(replace(spec, environment=self._faults.environment(names)))
        self._faults.add(process, names)
        return process

    async def scale_lps(self, replicas: int) -> None:
        """Start each of the LPSs `lps-0` to `lps-(replicas − 1)` that has not been started yet."""
        missing = range(self._lps_count, replicas)
        self._lps_count = max(self._lps_count, replicas)
        started = [await self._start_lps(index) for index in missing]
        if started:
            self._watch(started)

    def _note_fault(self, fault: str) -> None:
        path, time = self._folder / "logs" / "faults.log", datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with path.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"time": time, "fault": fault}) + "\n")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}; free space, or begin a new run") from None

    async def _start_lps(self, index: int) -> OwnedProcess:
        name = f"lps-{index}"
        gps = await self._faults.by_way_of("lps-gps", self._gps_address)
        arguments, proxy = ["--gps", gps, "--lps-id", name], None
        if (self._there / ARRIVALS).exists():
            arguments += ["--arrivals", str(self._there / ARRIVALS)]
        if self._faults.has_link("device-lps"):
            proxy = await self._faults.proxy("device-lps")
            arguments += ["--advertise", proxy.address]
        spec = replace(self._server("lps", name, *arguments), may_go=lambda: self._is_replaced(name))
        process = self._start(spec, [name])
        if proxy is not None:
            proxy.lead_to(process.addresses)
        return process

    def _is_replaced(self, name: str) -> bool:
        """Return whether an LPS ended because its name is revoked. Such an LPS is not restarted, because other LPSs
        serve its clusters. If no other LPS is left, also start a new LPS under another name.
        """
        try:
            if self._certificates is None or not self._certificates.revoked().revokes(("lps",), name):
                return False
        except (CertificateError, OSError):
            return False
        self._lps_gone.add(name)
        if len(self._lps_gone) == self._lps_count:
            self._watches.add(asyncio.create_task(self._start_instead_of(name)))
        return True

    async def _start_instead_of(self, gone: str) -> None:
        index, self._lps_count = self._lps_count, self._lps_count + 1
        try:
            process = await self._start_lps(index)
        except (FedstrataError, OSError) as error:
            self._supervisor.fail(error)
            return
        self._on_restart(Restart(process=process.spec.name, cause=f"{gone} is revoked", count=1, instead_of=gone))
        self._watch([process])

    async def failure(self) -> BaseException:
        """Wait until a process fails to start, or can no longer be restarted. Return this failure as an error."""
        return await self._supervisor.failure()

    async def stop(self) -> None:
        """End all processes of the run. Return when all have ended."""
        for watch in self._watches:
            watch.cancel()
        try:
            self._faults.close()
        finally:
            await self._supervisor.stop()

    async def _unless_failure(self, addresses: Coroutine[None, None, Mapping[str, str]]) -> Mapping[str, str]:
        """Return the addresses of a process when it has reported them. If the run fails before that, raise the error of
        the run.
        """
        waiting = asyncio.create_task(addresses)
        failing = asyncio.create_task(self._supervisor.failure())
        try:
            await asyncio.wait({waiting, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                raise failing.result()
            return waiting.result()
        finally:
            waiting.cancel()
            failing.cancel()

    def _watch(self, processes: Sequence[OwnedProcess]) -> None:
        """Watch these processes in the background. If one of them does not listen in time, let the run fail."""
        self._watches.add(asyncio.create_task(self._come_up(processes)))

    async def _come_up(self, processes: Sequence[OwnedProcess]) -> None:
        waits = {asyncio.create_task(process.addresses()): process for process in processes}
        try:
            _, late = await asyncio.wait(waits, timeout=STARTUP_DEADLINE_S)
        finally:
            for wait in waits:
                wait.cancel()
        if late:
            names = ", ".join(sorted(waits[wait].spec.name for wait in late))
            self._supervisor.fail(
                RunStoppedError(
                    f"{names} did not start within {STARTUP_DEADLINE_S:g} s; the logs are in {self._folder / 'logs'}"
                )
            )

    def _server(self, module: str, name: str, *arguments: str) -> ProcessSpec:
        state = str(self._there / "state" / name)
        tls = self._certificates.of_server(name) if self._certificates else None
        command = (module, *self._common(tls), "--state", state, *arguments)
        return ProcessSpec(
            name=name,
            command=command,
            endpoints=SERVER_ENDPOINTS,
            listens_at=self._servers_at,
            may_move=module != "gps",
        )

    def _devices(self, part: range, gps: str, more: Sequence[str] = ()) -> ProcessSpec:
        indices = f"{part.start}-{part.stop - 1}"
        state, name = str(self._there / "state" / "devices"), f"devices-{indices}"
        tls = self._certificates.of_devices(name, part) if self._certificates else None
        command = ("device", *self._common(tls), "--gps", gps, "--devices", indices, "--state", state, *more)
        return ProcessSpec(name=name, command=command, endpoints=DEVICE_ENDPOINTS, may_finish=True, may_move=True)

    def _common(self, tls: Path | None = None) -> tuple[str, ...]:
        return ("--experiment", str(self._there / "experiment.yaml"), "--exit-with-parent", *tls_arguments(tls))


def nurseries() -> Nurseries:
    """Return a starter that imports the modules of each program once, for all runs that use this starter. GPS and LPSs
    share one import, which does not load torch.
    """
    return Nurseries(SERVERS, DEVICES)
