"""Do the work of the commands for a run on Kubernetes: up, status, collect and down."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.cluster.certificates import (
    GENERATED,
    ReleaseCertificates,
    authority_is_taken_over,
    holders_of,
    with_mode,
)
from emulator.cluster.chart_values import (
    asked_values,
    load_values,
    merge_values,
    with_code,
    with_lps_count,
    with_memory,
)
from emulator.cluster.helm import Helm, check_chart
from emulator.cluster.kubernetes import GpsAccess, InstalledRelease
from emulator.cluster.release import Release
from emulator.cluster.rollout import listed
from emulator.console.browser import keep_page, show_page
from emulator.console.interrupts import run_interruptibly
from emulator.local.faults import refuse_faults
from emulator.results.output import new_folder
from emulator.runs.client import RunClient
from emulator.runs.follow import Outcome, follow
from emulator.runs.progress import Display
from emulator.shipped.data import dataset_here
from emulator.shipped.share import CHART
from fedstrata.errors import (
    AccountError,
    AddressError,
    CertificateError,
    ExperimentError,
    FedstrataError,
    HandshakeError,
    PluginError,
    RunStoppedError,
)
from fedstrata.experiment import Experiment
from fedstrata.experiment.partition import LocalPartition
from fedstrata.experiment_file import load_experiment
from fedstrata.partitions import check_partition
from fedstrata.trust.names import Name
from fedstrata.trust.security import Security
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console

FIRST_STATUS_S = 30.0
TIMEOUT_S = 300  # how long an installation or its end may take by default


@dataclass(frozen=True, kw_only=True)
class UpRequest:
    """Hold the user's request to `fedstrata up`."""

    experiment: Experiment
    values: Sequence[Path] = ()
    value_overrides: Sequence[str] = ()  # KEY=VALUE for the chart
    code: Sequence[Path] = ()  # files of own code
    resets_values: bool = False
    begins_again: bool = False
    replaces_run: bool = False  # also replace a run of another experiment that has not ended
    chart: Path | None = None
    timeout_s: int = TIMEOUT_S


def up(release: Release, request: UpRequest, console: "Console") -> None:
    """Install or upgrade a release with an experiment, and wait until all pods are ready.

    If the release exists, it keeps all values that the request does not change.

    Raises:
        DataError: the data set has fewer examples than the partition needs.
        ExperimentError, AddressError, RunStoppedError: Helm, Kubernetes or a pod reports a fault. The message has the
            text of this report.
    """
    chart = request.chart or CHART
    check_chart(chart)
    asked = with_code(asked_values(chart, request.values, request.value_overrides), request.code)
    with_lps_count(asked, asked, request.experiment)  # refuse before any call to Kubernetes
    if not isinstance(request.experiment.partition, LocalPartition):
        dataset = dataset_here(request.experiment)
        if dataset is not None:
            check_partition(request.experiment, dataset)
    helm, cluster = Helm(release), InstalledRelease(release)
    tell = partial(console.print, soft_wrap=True, markup=False)
    is_there = helm.check_ours()
    if not is_there:
        cluster.wait_gone(request.timeout_s, tell)
    before = helm.values() if is_there else {}
    kept = [before] if is_there and not request.resets_values else []
    values = _values(request, kept, asked, tell)
    helm.check(chart, values)  # before anything is written for values that the chart refuses
    values = _with_rights(cluster, values, tell)
    if not is_there:
        cluster.secrets.ensure_namespace()
    whole = merge_values([load_values(chart / "values.yaml"), values])
    holders = _holders(chart, whole, request.experiment)
    certificates = ReleaseCertificates(release, cluster.secrets)
    try:
        if holders:
            values = _with_certificates(certificates, holders, values, tell)
        if is_there and request.begins_again:
            _refuse_unless_failed(release, request.experiment)
        if is_there and not request.replaces_run and before != values:
            # Without volumes, the state of LPSs is lost when pods are replaced.
            has_volumes = bool(whole.get("lps", {}).get("persistence", {}).get("enabled"))
            _refuse_to_end_a_run(release, request.experiment, has_volumes=has_volumes)
        helm.upgrade(chart, values)
    except BaseException:
        _take_back(helm, certificates)
        raise
    _tidy(certificates, holders, values, tell)
    tell(f"{'upgraded' if is_there else 'installed'} {release.name} in namespace {release.namespace}: "
         f"run {request.experiment.run_id}")  # fmt: skip
    cluster.wait_ready(request.timeout_s, tell)
    _check_not_overtaken(release, helm.values(), values, request.experiment)
    tell(f"all pods are ready; fedstrata status --release {release.name} --namespace {release.namespace}")


def _check_not_overtaken(
    release: Release, found: Mapping[str, Any], asked: Mapping[str, Any], experiment: Experiment
) -> None:
    """Check that the release still has the values of this `fedstrata up`. If another user has changed them while this
    command waited for the pods, raise AddressError.
    """
    changed = sorted(key for key in {*found, *asked} if found.get(key) != asked.get(key))
    if not changed:
        return
    outcome = f"run {experiment.run_id} was replaced" if "experiment" in changed else "your values do not apply"
    raise AddressError(
        f"another fedstrata up has changed {', '.join(changed)} of release {release.name} while this one waited for "
        f"its pods: {outcome}. Run fedstrata up again, or give one of the two another --release"
    )


def _values(
    request: UpRequest, kept: Sequence[dict[str, Any]], asked: dict[str, Any], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return all values for the chart: values that the release already has, values in this request, and computed
    values.
    """
    merged = with_code(merge_values([*kept, asked]), request.code)
    merged = with_lps_count(merged, asked, request.experiment)
    try:
        merged = with_memory(merged, asked, request.experiment)
    except PluginError as error:  # an image may have the own code
        tell(f"the memory that pods need cannot be estimated here, so the chart's or your values apply: {error}")
    merged["again"] = _again(kept, request)
    merged["experiment"] = request.experiment.to_yaml()
    return with_mode(merged)


def _holders(chart: Path, values: dict[str, Any], experiment: Experiment) -> dict[str, list[Name]]:
    """Return the processes that need a certificate, with the names in each certificate. `values` are the values of the
    chart, including all defaults. If they name another source of certificates, return an empty mapping.
    """
    try:
        return holders_of(values, experiment) if values["tls"]["mode"] == GENERATED else {}
    except (KeyError, TypeError, ValueError) as error:  # another chart, whose schema allows other values
        raise ExperimentError(
            f"--chart {chart}: its values tls, lps or device differ in form from the project's chart: {error!r}; "
            "set tls.mode to secret, or leave --chart out"
        ) from None


def _with_certificates(
    certificates: ReleaseCertificates,
    holders: Mapping[str, list[Name]],
    values: dict[str, Any],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Make the Secrets with the pods' certificates. Return the values with the fingerprint of the authority."""
    if made := certificates.make(holders, values.get("outside", {}).get("serverDomain") or ""):
        tell(f"made certificates for {listed(made)}")
    return merge_values([values, {"tls": {"authority": certificates.fingerprint()}}])


def _take_back(helm: Helm, certificates: ReleaseCertificates) -> None:
    """Delete the Secrets that a failed `fedstrata up` has made. If the release exists, keep them, because its pods may
    use them.
    """
    with suppress(FedstrataError):  # the first error is reported; `fedstrata down` deletes what stays
        if helm.chart() is None:
            certificates.take_back()


def _tidy(
    certificates: ReleaseCertificates,
    holders: Mapping[str, list[Name]],
    values: Mapping[str, Any],
    tell: Callable[[str], None],
) -> None:
    """Delete the Secrets with certificates that the release no longer uses."""
    try:
        if holders:
            certificates.prune(holders)
        elif not authority_is_taken_over(values):
            certificates.drop_authority()
    except FedstrataError as error:
        tell(f"certificates that are no longer needed could not be deleted: {error}")


def _with_rights(cluster: InstalledRelease, values: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """Return `values`, with `gps.rbac.recordEvents` set to false if this account may not create Events.

    The chart's Role gives the GPS the right to create Events. An account can only give rights that it has itself.
    Kubernetes would therefore refuse the Role.
    """
    rbac = merge_values([{"create": True, "recordEvents": True}, dict(values.get("gps", {}).get("rbac") or {})])
    if not rbac["create"] or not rbac["recordEvents"] or cluster.may("create", "events"):
        return values
    tell("this account may not create Events, nor give the GPS this right, so gps.rbac.recordEvents is set to false")
    return merge_values([values, {"gps": {"rbac": {"recordEvents": False}}}])


def _status_now(release: Release, unknown: str) -> pb.RunStatus | None:
    """Return the status of the release's run. If the GPS does not run or does not answer, return None.

    Raises:
        AccountError, CertificateError, HandshakeError: this account may not call the GPS, or has no certificate that
            the GPS trusts. The message begins with the text `unknown`, which says what this command could not find out.
    """
    try:
        return status(release, Display(), once=True)
    except (AccountError, CertificateError, HandshakeError) as error:
        raise type(error)(f"{unknown}: {error}") from None
    except (AddressError, RunStoppedError):
        return None


def _refuse_to_end_a_run(release: Release, experiment: Experiment, *, has_volumes: bool) -> None:
    """Check that new pods would not end the present run of the release. They would if the run is of another experiment,
    or if it cannot continue in new pods.

    Raises:
        ExperimentError: new pods would end the present run.
        AccountError, CertificateError, HandshakeError: the GPS cannot be asked.
    """
    found = _status_now(release, "cannot ask the GPS whether a run is under way, which --replace would interrupt")
    if found is None or found.phase in {"completed", "failed"}:
        return
    if found.run_id != experiment.run_id:
        raise ExperimentError(
            f"release {release.name} has run {found.run_id} in phase {found.phase}; give another --release, or "
            "--replace to interrupt that run. Its state stays: fedstrata up with its experiment continues it later"
        )
    if not has_volumes and found.phase in {"training", "evaluation"}:
        raise ExperimentError(
            f"release {release.name} has run {found.run_id} in phase {found.phase}, and its LPSs have no volumes "
            "(lps.persistence.enabled). New values would replace LPSs and devices together, which ends the run. "
            "Wait for its end, or give --replace"
        )


def _refuse_unless_failed(release: Release, experiment: Experiment) -> None:
    """Check that the run of this experiment has failed, so that it may begin again. If no GPS answers, or if the GPS
    has a run of another experiment, do nothing.

    When a run begins again, its LPSs and devices do not use the state of the failed run.

    Raises:
        ExperimentError: the run has not failed.
        AccountError, CertificateError, HandshakeError: the GPS cannot be asked.
    """
    what = f"--again begins a failed run again, but cannot ask the GPS whether {experiment.run_id} has failed"
    found = _status_now(release, what)
    if found is None:
        return
    if found.run_id == experiment.run_id and found.phase != "failed":
        what = "has completed, and its record is available" if found.phase == "completed" else f"is in {found.phase}"
        raise ExperimentError(
            f"--again begins a failed run again, but {found.run_id} {what}; leave --again out, or give another --seed"
        )


def _again(kept: Sequence[Mapping[str, Any]], request: UpRequest) -> str:
    """Return the chart's value `again`. A failed run begins again when this value changes.

    If the user asks to begin again, return a new text, the present time. Otherwise return the release's present value,
    or an empty text if the release has another experiment.
    """
    if request.begins_again:
        return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    is_same = kept and kept[0].get("experiment") == request.experiment.to_yaml()
    return str(kept[0].get("again", "")) if is_same else ""


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
        f"{failure}; correct this, then begin the run again: fedstrata up EXPERIMENT.yaml --again --release "
        f"{release.name}"
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


def collect(release: Release, out: Path, display: Display) -> Path:
    """Wait for the end of the run. Write its record and report to a new folder, and return the path of the report.

    Raises:
        OutputError: the folder is not empty.
        RunStoppedError: the run failed. If the failed run has a record, it is collected, too.
    """
    from emulator.results.report import write_report

    new_folder(out)  # fail now, not after hours of waiting

    async def fetch(address: str, security: Security) -> Outcome:
        async with RunClient(address, security) as client:
            outcome = await follow(client, _Elsewhere(), display.show)
            if outcome.status.has_record:
                await client.fetch_record(outcome.status.run_id, out)
            return outcome

    gps = GpsAccess(InstalledRelease(release))
    with gps.of_operator() as security, gps.address() as address, display.open():
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
        AddressError: nothing of a release with this name exists.
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
        cluster.delete_tests()
    for name in cluster.secrets.names():  # ask again: cert-manager may have made some meanwhile
        cluster.secrets.delete(name)
    deleted = cluster.delete_claims() if deletes_records else []
    cluster.wait_gone(TIMEOUT_S, tell)
    kept = [] if deletes_records else cluster.claims()
    return Removed(was_installed=was_installed, certificates=certificates, deleted=deleted, kept=kept)


def load_for_cluster(
    path: Path, overrides: Sequence[str], seed: int | None, tell: Callable[[str], None] = lambda _: None
) -> Experiment:
    """Load an experiment for Kubernetes. Its key data.folder is removed, because pods do not have this machine's
    folders. In this case `tell` is called with a line about the removal.
    """
    experiment = load_experiment(path, overrides, seed)
    refuse_faults(experiment, "Kubernetes")
    if experiment.data.folder is not None and experiment.data.name != "folder":
        tell(
            f"data.folder {experiment.data.folder} is on this machine, so pods do not use it. They read data from the "
            "place that the chart's data.type names (hostPath, claim or image), at data.path"
        )
        return experiment.model_copy(update={"data": experiment.data.model_copy(update={"folder": None})})
    return experiment
