"""Do a sweep on this machine, with as many runs at once as keep the cores busy. Each run has a full record. At the end,
the tables are written.

Several processes may share the runs of one sweep.
"""

import asyncio
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emulator.console.interrupts import run_interruptibly
from emulator.estimates.device_processes import processes_beside, usable_cores
from emulator.local.processes import LocalBackend, nurseries
from emulator.results.output import run_folder
from emulator.runs.progress import Display
from emulator.runs.run import RunRequest, on_this_machine
from emulator.sweeps.check_runs import check_room, check_runs
from emulator.sweeps.claims import Failure, turn_at
from emulator.sweeps.file import Sweep, SweepRun
from emulator.sweeps.results import SweepResults
from emulator.sweeps.store import RunClaim, SweepStore
from emulator.sweeps.sweep_folder import (
    FolderState,
    check_folder,
    clear,
    completed_record,
    is_drawn,
    records_of,
    state_of,
)
from emulator.sweeps.sweep_progress import Pace, RunEnd, SweepDisplay
from emulator.tracking.tracking import Tracking
from fedstrata.errors import DIVERGED, AddressError, FedstrataError, OutputError, RunStoppedError
from fedstrata.plugins import check_may_start
from fedstrata.process.child_processes import Restart
from fedstrata.process.descriptors import raise_limit
from fedstrata.v1 import gps_service_pb2 as pb

LOOK_S = 1.0  # between two looks at runs of other processes


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Hold the arguments of `fedstrata sweep`."""

    sweep: Sweep
    store: SweepStore
    jobs: int | None = None  # runs at once; None: one more than cores
    tracking: Callable[[], Tracking] = Tracking  # makes what shows one run in other tools


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Hold the cost of the runs that one call of `sweep` has done: the wall time, and the CPU time of all processes."""

    runs: int
    seconds: float
    cpu_seconds: float  # 0 if other machines have done the runs
    cores: int

    @property
    def ratio(self) -> float | None:
        """The wall time divided by the shortest possible time, which is all CPU time divided by the number of cores.
        None if no CPU time is known.
        """
        return self.seconds * self.cores / self.cpu_seconds if self.runs and self.cpu_seconds else None


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """Hold the outcome of a sweep: the results of all completed runs, the runs that failed in this call with their
    errors, and the cost.
    """

    results: SweepResults
    failures: tuple[tuple[SweepRun, FedstrataError], ...]
    cost: Cost

    @property
    def failure(self) -> FedstrataError | None:
        """The error to raise if a run has failed in this call. None if no run has failed."""
        return self._error_of(self.failures)

    @property
    def fault(self) -> FedstrataError | None:
        """The error to raise if a run has failed in this call for another reason than divergence. None if no run has
        done so.
        """
        return self._error_of([(run, error) for run, error in self.failures if DIVERGED not in str(error)])

    def _error_of(self, failures: Sequence[tuple[SweepRun, FedstrataError]]) -> FedstrataError | None:
        if not failures:
            return None
        run, error = failures[0]
        return RunStoppedError(
            f"{len(failures)} of {len(self.results.sweep.runs)} runs failed, first {run.label}: {error}; "
            "the same command tries them again"
        )


def sweep(request: SweepRequest, display: SweepDisplay) -> SweepOutcome:
    """Do the missing runs, and write the sweep's table, figure and page.

    Raises:
        FedstrataError: nothing was started because something is wrong. The message names the cell.
        KeyboardInterrupt: a signal interrupted the sweep. All processes have ended, and the same call continues the
            sweep.
    """
    check_may_start("fedstrata sweep")
    raise_limit()
    store, out = request.store, request.store.folder
    check_folder(out)
    states = [(run, state_of(out / run.path, run.experiment)) for run in request.sweep.runs]
    wanted = [run for run, there in states if there is not FolderState.DONE]
    check_runs(wanted)
    jobs = max(1, min(request.jobs or usable_cores() + 1, len(wanted)))
    check_room(wanted, jobs)
    with store.joined(request.sweep):
        work = _Work(request, wanted, jobs, display)
        cost = work.do()
    results = written_results(request.sweep, out, wanted)
    return SweepOutcome(results=results, failures=tuple(work.failures), cost=cost)


def written_results(sweep: Sweep, out: Path, wanted: Sequence[SweepRun]) -> SweepResults:
    """Write the results of all completed runs, and each run's report that is missing. Return the results. If another
    process has just written the same results, its files stay.
    """
    from emulator.results.report import write_report
    from emulator.sweeps.sweep_page import TABLE, are_written, write_results

    with turn_at(out / TABLE):
        results = SweepResults(sweep=sweep, records=records_of(out, sweep))
        for record in results.records.values():
            if not is_drawn(record.folder):  # an earlier call was killed before it
                with suppress(FedstrataError):  # a damaged file that only the report needs
                    write_report(record.folder)
        if not wanted or not are_written(results, out):
            write_results(results, out)
    return results


class _Work:
    """Do the runs of one call of `sweep`, except runs that other processes complete."""

    def __init__(self, request: SweepRequest, wanted: Sequence[SweepRun], jobs: int, display: SweepDisplay) -> None:
        self._store, self._waiting, self._display = request.store, list(wanted), display
        self._tracking = request.tracking
        self._out = request.store.folder
        self._failed_before = {run.path: len(request.store.failures(run)) for run in wanted}
        self._cores = usable_cores()
        self._jobs = jobs
        self._pace = Pace(waiting=wanted, done=len(request.sweep.runs) - len(wanted), jobs=jobs)
        self._claiming = asyncio.Lock()  # no two jobs of this process ask for the same run
        self._starter = nurseries()  # for all runs of this call
        self._drawing = asyncio.Lock()  # matplotlib draws one figure at a time
        self._done_here = 0
        self.failures: list[tuple[SweepRun, FedstrataError]] = []

    def do(self) -> Cost:
        """Do all runs. Return the cost of the runs that this process has done."""
        began, cpu_seconds = time.monotonic(), _cpu_seconds()
        with self._display.open(self._pace):
            run_interruptibly(self._all())
        return Cost(
            runs=self._done_here,
            seconds=time.monotonic() - began,
            cpu_seconds=_cpu_seconds() - cpu_seconds,
            cores=self._cores,
        )

    async def _all(self) -> None:
        async with self._starter:
            await asyncio.gather(*(self._one_after_the_other() for _ in range(self._jobs)))

    async def _one_after_the_other(self) -> None:
        """Do one run after another until no run is left. If other processes have claimed all remaining runs, wait. If
        such a process ends before its run is finished, take over the run.
        """
        while self._waiting:
            taken = await self._taken()
            if taken is None:
                await asyncio.sleep(LOOK_S)
                continue
            run, claim = taken
            try:
                end = await self._end_elsewhere(run) or await self._end_of(run, claim)
            except AddressError:  # the bucket did not answer before the run began
                self._waiting.append(run)
                await asyncio.sleep(LOOK_S)
                continue
            finally:
                await asyncio.to_thread(claim.release)
            self._ended(run, end)

    def _ended(self, run: SweepRun, end: RunEnd) -> None:
        if end.failure is not None:
            self.failures.append((run, end.failure))
        self._display.ended(run, end)

    async def _taken(self) -> tuple[SweepRun, RunClaim] | None:
        """Claim one of the waiting runs, and return the run with the claim. If other processes have claimed all waiting
        runs, return None.
        """
        async with self._claiming:
            for run in list(self._waiting):
                try:
                    claim = await asyncio.to_thread(self._store.claim, run)
                except OutputError as error:  # such as a damaged record
                    self._waiting.remove(run)
                    self._pace.ended_elsewhere(run, 0.0)
                    self._ended(run, RunEnd(failure=error, record=None, folder=self._out / run.path, seconds=0.0))
                    continue
                if claim is not None:
                    self._waiting.remove(run)
                    return run, claim
        return None

    async def _end_elsewhere(self, run: SweepRun) -> RunEnd | None:
        """Return how a run ended, if another process has done the run since this call of `sweep` began. Otherwise
        return None.
        """
        folder = self._out / run.path
        record, failed = completed_record(folder), await asyncio.to_thread(self._store.failures, run)
        if record is not None:
            failure: FedstrataError | None = None
            if not is_drawn(folder):  # another process or machine has done the run
                try:
                    await self._report(folder)
                except FedstrataError as error:  # such as a damaged file that only the report needs
                    failure = error
            shown, seconds = record if failure is None else None, record.summary.total_seconds or 0.0
            end = RunEnd(failure=failure, record=shown, folder=folder, seconds=seconds)
        elif len(failed) > self._failed_before[run.path]:
            failure = RunStoppedError(failed[-1].reason)
            end = RunEnd(failure=failure, record=None, folder=folder, seconds=failed[-1].seconds)
        else:
            return None
        self._pace.ended_elsewhere(run, end.seconds)
        return end

    async def _end_of(self, run: SweepRun, claim: RunClaim) -> RunEnd:
        """Do a run, and write its record and report. Return how the run ended. A failed run does not affect other
        runs.
        """
        folder, began = self._out / run.path, time.monotonic()
        self._pace.began(run)
        try:
            failure = await self._run(run, folder)
            if failure is None:
                await asyncio.to_thread(claim.finish)
        except FedstrataError as error:
            failure = error
        seconds = time.monotonic() - began
        if failure is not None:
            failure = await _noted(claim, failure, seconds)
        self._pace.ended(run)
        self._done_here += 1
        record = completed_record(folder) if failure is None else None
        return RunEnd(failure=failure, record=record, folder=folder, seconds=seconds)

    async def _run(self, run: SweepRun, folder: Path) -> FedstrataError | None:
        is_new = state_of(folder, run.experiment) is not FolderState.HALF
        if is_new:
            clear(folder)
        with run_folder(folder, run.experiment if is_new else None) as experiment:
            request = RunRequest(
                experiment=experiment, out=folder,
                device_processes=processes_beside(experiment, self._jobs),
                backend=partial(LocalBackend, runs=self._jobs), tracking=self._tracking().labelled(run.label),
            )  # fmt: skip
            try:
                outcome = await on_this_machine(request, experiment, _OneOfMany(run, self._display), self._starter)
            finally:
                await asyncio.to_thread(request.tracking.end, folder)
        if outcome.status.has_record:
            await self._report(folder)
        return outcome.failure

    async def _report(self, folder: Path) -> None:
        from emulator.results.report import write_report

        async with self._drawing:
            await asyncio.to_thread(write_report, folder)


async def _noted(claim: RunClaim, failure: FedstrataError, seconds: float) -> FedstrataError:
    """Note the failure of a run for the other processes, and return the failure. If it cannot be noted, the returned
    error also has the reason for this.
    """
    try:
        await asyncio.to_thread(claim.note, Failure(reason=str(failure), seconds=seconds))
    except FedstrataError as error:
        return RunStoppedError(f"{failure}; {error}")
    return failure


class _OneOfMany(Display):
    """Show the progress of one of a sweep's runs in the sweep's display."""

    def __init__(self, run: SweepRun, display: SweepDisplay) -> None:
        self._run, self._display = run, display

    def show(self, status: pb.RunStatus) -> None:
        self._display.show(self._run, status)

    def restarted(self, restart: Restart) -> None:
        self._display.restarted(self._run, restart)


def _cpu_seconds() -> float:
    """Return the CPU time in seconds of this process and of its child processes that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
