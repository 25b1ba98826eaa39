"""A run on Kubernetes from the experimenter's side: up, status, collect, down."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.browser import keep_page, show_page
from emulator.chart_values import asked_values, load_values, merge_values, with_code, with_lps_count, with_memory
from emulator.client import RunClient
from emulator.faults import refuse_faults
from emulator.follow import Outcome, follow
from emulator.helm import Helm, check_chart
from emulator.interrupts import run_interruptibly
from emulator.kubernetes import InstalledRelease
from emulator.output import new_folder
from emulator.place import Release
from emulator.progress import Display, Quiet
from emulator.release_certificates import ReleaseCertificates, holders_of, with_mode
from emulator.rollout import listed
from emulator.share import CHART
from fedstrata.errors import AddressError, ExperimentError, FedstrataError, PluginError, RunStoppedError
from fedstrata.experiment import Experiment, load_experiment
from fedstrata.trust.files import TlsFiles
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console

FIRST_STATUS_S = 30.0


@dataclass(frozen=True, kw_only=True)
class UpRequest:
    """What `fedstrata up` was asked for."""

    experiment: Experiment
    values: Sequence[Path] = ()
    value_overrides: Sequence[str] = ()  # KEY=VALUE, of the chart's values
    code: Sequence[Path] = ()  # files of own code
    resets_values: bool = False
    begins_again: bool = False
    chart: Path | None = None
    timeout_s: int = 300


def up(release: Release, request: UpRequest, console: "Console") -> None:
    """Install or upgrade the chart with an experiment and wait until all pods are ready.

    A release that is there keeps the values it was given; those of the request lie over them.

    Raises:
        ExperimentError, AddressError, RunStoppedError: with what Helm, Kubernetes or the pods say.
    """
    chart = request.chart or CHART
    check_chart(chart)
    asked = with_code(asked_values(chart, request.values, request.value_overrides), request.code)
    with_lps_count(asked, asked, request.experiment)  # refused before Kubernetes is asked anything
    helm, cluster = Helm(release), InstalledRelease(release)
    tell = partial(console.print, soft_wrap=True, markup=False)
    is_there = helm.check_ours()
    if is_there and request.begins_again:
        _refuse_unless_failed(release, request.experiment)
    if not is_there:
        cluster.wait_gone(request.timeout_s, tell, pods=True)
    kept = [helm.values()] if is_there and not request.resets_values else []
    merged = with_code(merge_values([*kept, asked]), request.code)
    merged = with_lps_count(merged, asked, request.experiment)
    try:
        merged = with_memory(merged, asked, request.experiment)
    except PluginError as error:  # the pods may have it from an image
        tell(f"memory of the pods is the chart's or as given, since it cannot be worked out here: {error}")
    merged["again"] = _again(kept, request)
    merged["experiment"] = request.experiment.to_yaml()
    merged = with_mode(merged)
    certificates = _make_certificates(release, cluster, chart, merged, request.experiment)
    try:
        helm.upgrade(chart, merged)
    except FedstrataError:
        if not is_there:
            cluster.delete_certificates()
        raise
    if certificates:
        tell(f"made certificates for {listed(certificates)}")
    tell(f"{'upgraded' if is_there else 'installed'} {release.name} in namespace {release.namespace}: "
         f"run {request.experiment.run_id}")  # fmt: skip
    cluster.wait_ready(request.timeout_s, tell)
    tell(f"all pods are ready; fedstrata status --release {release.name} --namespace {release.namespace}")


def _make_certificates(
    release: Release, cluster: InstalledRelease, chart: Path, values: dict[str, Any], experiment: Experiment
) -> list[str]:
    """Make the Secrets that the pods will mount, where the values leave them to us; gives whose were made."""
    try:
        whole = merge_values([load_values(chart / "values.yaml"), values])
        if whole["tls"]["mode"] != "generated":
            return []
        holders = holders_of(whole, experiment, whole["lps"]["replicas"] or 0)
    except (KeyError, TypeError, ValueError):
        return []  # of a shape that the chart refuses
    cluster.ensure_namespace()
    return ReleaseCertificates(release, cluster).ensure(holders)


def _refuse_unless_failed(release: Release, experiment: Experiment) -> None:
    """Raise ExperimentError where the GPS says that this very run has not failed; nothing where it says nothing.

    LPSs and devices of a run that is begun anew leave the state of the earlier one behind.
    """
    try:
        found = status(release, Quiet(), once=True)
    except (AddressError, RunStoppedError):
        return
    if found.run_id == experiment.run_id and found.phase != "failed":
        what = "has completed and its record is served" if found.phase == "completed" else f"is in {found.phase}"
        raise ExperimentError(
            f"--again begins a failed run anew, and {found.run_id} {what}; leave --again out, or give another --seed"
        )


def _again(kept: Sequence[Mapping[str, Any]], request: UpRequest) -> str:
    """The word with which a failed run is begun anew: another than before, or what it was begun with."""
    if request.begins_again:
        return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    is_same = kept and kept[0].get("experiment") == request.experiment.to_yaml()
    return str(kept[0].get("again", "")) if is_same else ""


class _Elsewhere:
    """The backend of a run that Kubernetes keeps alive: there is nothing to do but watch."""

    async def start(self, experiment: Experiment) -> str:
        raise NotImplementedError

    async def scale_lps(self, replicas: int) -> None:
        """The GPS does it."""

    async def failure(self) -> BaseException:
        """Never: the GPS's status says what fails."""
        await asyncio.Event().wait()
        raise AssertionError

    async def stop(self) -> None:
        """What runs goes on."""


def status(release: Release, display: Display, *, once: bool, shows_page: bool = False) -> pb.RunStatus:
    """Show a run's state, once or until it has ended, with `shows_page` on its page, too.

    Raises:
        RunStoppedError: the run failed.
    """

    async def watch(address: str, tls: TlsFiles | None) -> Outcome:
        async with RunClient(address, tls) as client:
            if once:
                return Outcome(status=await _first(client, display), failure=None)
            return await follow(client, _Elsewhere(), display.show)

    installed = InstalledRelease(release)
    with installed.operator_tls() as tls, installed.gps_address() as address, ExitStack() as stack:
        if shows_page:
            show_page(display, stack.enter_context(installed.gps_address("http")))
        with display.open():
            outcome = run_interruptibly(watch(address, tls))
        if shows_page:
            keep_page()
    if outcome.failure is not None:
        raise _failed(release, outcome.failure)
    return outcome.status


def _failed(release: Release, failure: FedstrataError) -> FedstrataError:
    """A run's failure, with what to do about it."""
    if not isinstance(failure, RunStoppedError):
        return failure
    return RunStoppedError(
        f"{failure}; mend that, then fedstrata up EXPERIMENT.yaml --again --release {release.name} begins it anew"
    )


async def _first(client: RunClient, display: Display) -> pb.RunStatus:
    try:
        async with asyncio.timeout(FIRST_STATUS_S):
            async for found in client.watch():
                display.show(found)
                return found
    except TimeoutError:
        pass
    raise RunStoppedError(f"the GPS did not answer within {FIRST_STATUS_S:g} s; kubectl logs of its pod says why")


def collect(release: Release, out: Path, display: Display) -> Path:
    """Wait for the end of the run and put its record, with the report, into a new folder; gives the report.

    Raises:
        OutputError: the folder is in use. RunStoppedError: the run failed; its record is collected all the same.
    """
    from emulator.report import write_report

    new_folder(out)  # now, and not after hours of waiting

    async def fetch(address: str, tls: TlsFiles | None) -> Outcome:
        async with RunClient(address, tls) as client:
            outcome = await follow(client, _Elsewhere(), display.show)
            if outcome.status.has_record:
                await client.fetch_record(outcome.status.run_id, out)
            return outcome

    installed = InstalledRelease(release)
    with installed.operator_tls() as tls, installed.gps_address() as address, display.open():
        outcome = run_interruptibly(fetch(address, tls))
    report = write_report(out)
    if outcome.failure is not None:
        raise _failed(release, outcome.failure)
    return report


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What `fedstrata down` found and did."""

    was_installed: bool
    deleted: Sequence[str]  # volume claims
    kept: Sequence[str]


def down(release: Release, *, deletes_records: bool, console: "Console", timeout_s: int = 300) -> Removed:
    """Uninstall a release and wait until its pods are gone; with `deletes_records` its volume claims, too.

    Claims that an earlier uninstallation has left are deleted likewise.

    Raises:
        ExperimentError: the release is of another chart. AddressError: there is nothing of that name.
    """
    helm, cluster = Helm(release), InstalledRelease(release)
    tell = partial(console.print, soft_wrap=True, markup=False)
    was_installed = helm.check_ours()
    if not was_installed and not (deletes_records and cluster.claims()):
        left = ", ".join(cluster.claims())
        raise AddressError(
            f"no release {release.name} in namespace {release.namespace}"
            + (f"; it has left {left}, which --delete-records deletes" if left else "; see helm list --all-namespaces")
        )
    if was_installed:
        helm.uninstall()
        cluster.delete_tests()
        cluster.delete_certificates()
    deleted = cluster.delete_claims() if deletes_records else []
    cluster.wait_gone(timeout_s, tell, pods=True)
    return Removed(was_installed=was_installed, deleted=deleted, kept=[] if deletes_records else cluster.claims())


def claims_of(release: Release) -> list[str]:
    """Names of a release's volume claims, whether it is installed or not."""
    return InstalledRelease(release).claims()


def load_for_cluster(
    path: Path, overrides: Sequence[str], seed: int | None, tell: Callable[[str], None] = lambda _: None
) -> Experiment:
    """An experiment as it goes to a cluster: without this machine's data folder, which pods do not have; tells so."""
    experiment = load_experiment(path, overrides, seed)
    refuse_faults(experiment, "Kubernetes")
    if experiment.data.folder is not None and experiment.data.name != "folder":
        tell(
            f"data.folder {experiment.data.folder} is this machine's and left out: pods read what data.type of the "
            "chart's values says (hostPath, claim or image), at data.path"
        )
        return experiment.model_copy(update={"data": experiment.data.model_copy(update={"folder": None})})
    return experiment
