"""Do the work of the commands for a run on Kubernetes: status, collect and down."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.cluster.helm import Helm
from emulator.cluster.release import Release
from emulator.cluster.release_objects import GpsAccess, InstalledRelease
from emulator.console.browser import keep_page, show_page
from emulator.console.interrupts import run_interruptibly
from emulator.results.output import new_folder
from emulator.runs.follow import Outcome, follow
from emulator.runs.progress import Display
from emulator.runs.run_client import RunClient
from emulator.tracking.page_rows import run_of_page
from emulator.tracking.tracking import LEFT_BY_TRACKING, Tracking
from fedstrata.errors import AddressError, FedstrataError, RunStoppedError
from fedstrata.trust.security import Security
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console

FIRST_STATUS_S = 30.0
TIMEOUT_S = 300  # how long an installation or its end may take by default


class _Elsewhere:
    """Represent a run in pods. Kubernetes starts the pods, so this backend has nothing to do."""

    async def scale_lps(self, replicas: int) -> None:
        """Do nothing, because on Kubernetes the GPS scales the LPSs."""

    async def failure(self) -> BaseException:
        """Wait for ever, because the status of the GPS already reports failures."""
        await asyncio.Event().wait()
        raise AssertionError


def status(release: Release, display: Display, *, once: bool, shows_page: bool = False) -> pb.RunStatus:
    """Show the status of a run until its end, or with `once` only once. Return the last status. With `shows_page`, also
    show the run's live page.

    Raises:
        RunStoppedError: the run failed.
    """

    async def watch(address: str, security: Security) -> Outcome:
        async with RunClient(address, security) as client:
            if once:
                return Outcome(status=await _first(client, display), failure=None)
            return await follow(client, _Elsewhere(), display.show)

    gps = GpsAccess(InstalledRelease(release))
    with gps.of_operator() as security, gps.address() as address, ExitStack() as stack:
        if shows_page:
            show_page(display.page, stack.enter_context(gps.address("http")))
        with display.open():
            outcome = run_interruptibly(watch(address, security))
        if shows_page:
            keep_page()
    if outcome.failure is not None:
        raise _failed(release, outcome.failure)
    return outcome.status


def _failed(release: Release, failure: FedstrataError) -> FedstrataError:
    """Return the error for a failed run, with advice on how to begin the run again."""
    if not isinstance(failure, RunStoppedError):
        return failure
    return RunStoppedError(
        f"{failure}; correct this, then begin the run again: fedstrata up EXPERIMENT.yaml --again {release.options}"
    )


async def _first(client: RunClient, display: Display) -> pb.RunStatus:
    try:
        async with asyncio.timeout(FIRST_STATUS_S):
            async for found in client.watch():
                display.show(found)
                return found
    except TimeoutError:
        pass
    raise RunStoppedError(f"the GPS did not answer within {FIRST_STATUS_S:g} s; see kubectl logs of its pod")


def collect(release: Release, out: Path, display: Display, tracking: Tracking) -> Path:
    """Wait for the end of the run, and track it from this machine. Write its record and report to a new folder, and
    return the path of the report. If an earlier call with this folder was interrupted, its tracking goes on.

    Raises:
        OutputError: the folder is not empty.
        RunStoppedError: the run failed. If the failed run has a record, it is collected, too.
    """
    from emulator.results.report import write_report

    new_folder(out, LEFT_BY_TRACKING if tracking else ())  # fail now, not after hours of waiting

    async def fetch(address: str, security: Security) -> Outcome:
        async with RunClient(address, security) as client:
            outcome = await follow(client, _Elsewhere(), display.show)
            if outcome.status.has_record:
                await client.fetch_record(outcome.status.run_id, out)
            return outcome

    gps = GpsAccess(InstalledRelease(release))
    with gps.of_operator() as security, gps.address() as address, ExitStack() as stack:
        if tracking:
            page = stack.enter_context(gps.address("http"))
            tracking.watch(run_of_page(page, out), page)
            stack.callback(tracking.end, out)
        stack.enter_context(display.open())
        outcome = run_interruptibly(fetch(address, security))
    report = write_report(out)
    if outcome.failure is not None:
        raise _failed(release, outcome.failure)
    return report


@dataclass(frozen=True, kw_only=True)
class Removed:
    """Hold the result of `fedstrata down`: the objects that it found, deleted and kept."""

    was_installed: bool
    certificates: Sequence[str]  # names of Secrets
    deleted: Sequence[str]  # names of volume claims
    kept: Sequence[str]


def down(release: Release, *, deletes_records: bool, console: "Console") -> Removed:
    """Uninstall a release, and wait until its pods no longer exist. With `deletes_records`, also delete its volume
    claims with the records.

    Volume claims that remained after an earlier uninstallation are deleted, too. Secrets with certificates are always
    deleted.

    Raises:
        ExperimentError: the release has another chart.
        AddressError: no object of a release with this name exists.
    """
    helm, cluster = Helm(release), InstalledRelease(release)
    tell = partial(console.print, soft_wrap=True, markup=False)
    was_installed, certificates = helm.check_ours(), cluster.secrets.names()
    if not was_installed and not certificates and not (deletes_records and cluster.claims()):
        left = ", ".join(cluster.claims())
        raise AddressError(
            f"no release {release.name} in namespace {release.namespace}"
            + (f"; --delete-records deletes what it has left: {left}" if left else "; see helm list --all-namespaces")
        )
    if was_installed:
        helm.uninstall()
    for name in cluster.secrets.names():  # ask again: cert-manager may have made some meanwhile
        cluster.secrets.delete(name)
    deleted = cluster.delete_claims() if deletes_records else []
    cluster.delete_tests()
    cluster.wait_gone(TIMEOUT_S, tell)
    kept = [] if deletes_records else cluster.claims()
    return Removed(was_installed=was_installed, certificates=certificates, deleted=deleted, kept=kept)
