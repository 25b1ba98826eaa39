"""Do a sweep on Kubernetes from the experimenter's machine: make its Job, follow the Job, and fetch every record."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.cluster.chart_values import with_code
from emulator.cluster.release import Release
from emulator.sweep_jobs.api import JobState, SweepApi
from emulator.sweep_jobs.finished import FinishedRuns, PodRuns
from emulator.sweep_jobs.objects import JobRequest, SweepObjects, job_name
from emulator.sweep_jobs.refusals import check
from emulator.sweeps.claims import Claim
from emulator.sweeps.file import Sweep, SweepRun
from emulator.sweeps.store import SweepStore
from emulator.sweeps.sweep import Cost, SweepOutcome, written_results
from emulator.sweeps.sweep_folder import FolderState, check_folder, completed_record, state_of
from emulator.sweeps.sweep_progress import Pace, RunEnd, SweepDisplay
from fedstrata.errors import (
    AccountError,
    AddressError,
    DataError,
    FedstrataError,
    OutputError,
    PayloadError,
    RunStoppedError,
)
from fedstrata.process.waiting import pass_time

LOOK_S = 2.0
SILENT_LOOKS = 10  # looks without an answer after which the error is printed
RECORDS_S = 600.0  # how long records may take after the end of the Job


@dataclass(frozen=True, kw_only=True)
class ClusterSweepRequest:
    """Hold the arguments of `fedstrata sweep --on kubernetes`."""

    sweep: Sweep
    store: SweepStore  # on this machine
    runs: Callable[[SweepApi, SweepObjects], PodRuns]  # in pods
    job: JobRequest
    where: Release
    code: Sequence[Path] = ()  # files of own code


def sweep_on_kubernetes(
    request: ClusterSweepRequest, display: SweepDisplay, tell: Callable[[str], None]
) -> SweepOutcome:
    """Let pods do the missing runs, fetch their records, and write the sweep's table, figure and page.

    Raises:
        FedstrataError: nothing was started because something is wrong, or the Job failed. The message gives the reason.
        KeyboardInterrupt: a signal interrupted this call. The Job keeps running, and the same call follows it again.
    """
    sweep, out, began = request.sweep, request.store.folder, time.monotonic()
    files = _files(request)
    check_folder(out)
    wanted = [run for run in sweep.runs if state_of(out / run.path, run.experiment) is not FolderState.DONE]
    check(sweep, files, request.job)
    api = SweepApi(request.where)
    objects = SweepObjects(
        name=sweep.name, namespace=request.where.namespace, request=request.job, files=files,
        is_shared=request.job.storage.is_shared(api.is_shared),
    )  # fmt: skip
    with request.store.joined(sweep):
        runs = request.runs(api, objects)
        following = _Following(api, objects, runs=runs, out=out, wanted=wanted, display=display, tell=tell)
        if wanted:
            following.follow(Pace(waiting=wanted, done=len(sweep.runs) - len(wanted), jobs=request.job.parallelism))
    cost = Cost(
        runs=len(wanted), seconds=time.monotonic() - began, cpu_seconds=0.0,
        cores=request.job.parallelism * request.job.cores,
    )  # fmt: skip
    results = written_results(sweep, out, wanted)
    return SweepOutcome(results=results, failures=tuple(following.failures), cost=cost)


def _files(request: ClusterSweepRequest) -> Mapping[str, str]:
    """Return the files that pods read: the sweep file and the user's own code."""
    code: Mapping[str, str] = with_code({}, request.code).get("code", {}).get("files", {})
    return {f"{job_name(request.sweep.name).removesuffix('-sweep')}.yaml": request.sweep.text, **code}


class _Following:
    """Follow the Job of a sweep, and fetch each record once."""

    def __init__(
        self, api: SweepApi, objects: SweepObjects, *, runs: PodRuns, out: Path, wanted: Sequence[SweepRun],
        display: SweepDisplay, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._api, self._objects, self._runs, self._out = api, objects, runs, out
        self._waiting, self._display, self._tell = list(wanted), display, tell
        self._told: set[str] = set()
        self._silent = 0  # looks in a row without an answer
        self._heard = time.monotonic()  # when the last record came, or the Job was last seen running
        self.failures: list[tuple[SweepRun, FedstrataError]] = []

    def follow(self, pace: Pace) -> None:
        """Follow the Job up to its end, and fetch the records of its runs.

        Raises:
            RunStoppedError: no pod of the Job can run, or the Job ended before all runs had ended.
            AccountError: this account lacks a right, for instance to read the records.
            AddressError: Kubernetes does not answer in time, or the records cannot be fetched in time.
        """
        name = self._objects.job_name
        self._api.ensure(self._objects, self._tell)
        try:
            with self._display.open(pace):
                state = self._follow(pace)
        except KeyboardInterrupt:
            self._tell(
                f"job {name} keeps running; the same command follows it again, and kubectl delete job {name} "
                f"--namespace {self._objects.namespace} ends it"
            )
            raise
        finally:
            self._runs.leave()
        if self._waiting:
            if state.ended == "Complete":  # runs have been removed from the claim
                self._api.delete_job(name)
            said = next(iter(state.failed.values()), "")
            raise RunStoppedError(
                f"job {name} ended with {len(self._waiting)} runs missing: {state.reason or state.ended}"
                f"{'; ' if said else ''}{said}; the same command continues"
            )

    def _follow(self, pace: Pace) -> JobState:
        name = self._objects.job_name
        while True:
            try:
                state = self._api.look(name)
            except AddressError as error:
                if isinstance(error, AccountError) or time.monotonic() - self._heard > RECORDS_S:
                    raise
                self._tell_once(f"{error}; trying again")
                pass_time(LOOK_S)
                continue
            if state.hopeless:
                self._api.delete_job(name)
                raise RunStoppedError(f"no pod of job {name} can run, so it was deleted: {state.hopeless}")
            for line in (*state.waits, *state.failed.values()):
                self._tell_once(line)
            has_pods = state.pods > 0 or state.ended  # before, it is unknown whether image and claim work
            if has_pods and self._fetch(state.uid, pace, is_last=bool(state.ended)) and state.ended:
                return state
            if not state.ended:
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard > RECORDS_S:
                raise AddressError(
                    f"job {name} ended, but no records came in {RECORDS_S:.0f} s; the same command tries again"
                )
            pass_time(LOOK_S)

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    def _fetch(self, uid: str, pace: Pace, *, is_last: bool) -> bool:
        """Fetch the records of runs that have finished since the last call. Return False if the runs of the pods could
        not be read.
        """
        try:
            with self._runs.look(uid) as there:
                if there is None:
                    return False
                for run in [run for run in self._waiting if there.is_finished(run)]:
                    self._fetch_run(there, run, pace)
                for run in list(self._waiting) if is_last else []:
                    if failures := there.failures(run):
                        self._end(run, pace, failures[-1].seconds, RunStoppedError(failures[-1].reason))
        except AccountError:  # trying again would not help
            raise
        except AddressError as error:  # the reader may be starting, perhaps on another node
            self._silent += 1
            if self._silent == SILENT_LOOKS:
                self._tell(str(error))
            return False
        self._silent = 0
        return True

    def _fetch_run(self, there: FinishedRuns, run: SweepRun, pace: Pace) -> None:
        from emulator.results.report import write_report

        folder = self._out / run.path
        claim = Claim.of(folder)
        if claim is None:  # another sweep on this machine does this run, with the same record
            return
        try:
            with claim:
                there.fetch(run)
                state_of(folder, run.experiment)
                write_report(folder)
        except (DataError, OutputError, PayloadError) as error:  # such as a damaged record
            self._end(run, pace, 0.0, error)
            return
        record = completed_record(folder)
        seconds = record.summary.total_seconds or 0.0 if record else 0.0
        self._heard = time.monotonic()
        self._end(run, pace, seconds, None)

    def _end(self, run: SweepRun, pace: Pace, seconds: float, failure: FedstrataError | None) -> None:
        folder = self._out / run.path
        self._waiting.remove(run)
        pace.ended_elsewhere(run, seconds)
        if failure is not None:
            self.failures.append((run, failure))
        record = completed_record(folder) if failure is None else None
        self._display.ended(run, RunEnd(failure=failure, record=record, folder=folder, seconds=seconds))
