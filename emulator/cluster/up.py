"""Do the work of `fedstrata up`: install a release with an experiment, or upgrade it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.cluster.chart_values import (
    asked_values,
    load_values,
    merge_values,
    with_code,
    with_lps_count,
    with_memory,
)
from emulator.cluster.helm import BusyError, Helm, check_chart
from emulator.cluster.release import Release
from emulator.cluster.release_certificates import (
    GENERATED,
    ReleaseCertificates,
    authority_is_taken_over,
    holders_of,
    with_mode,
)
from emulator.cluster.release_objects import InstalledRelease
from emulator.cluster.remote import TIMEOUT_S, status
from emulator.cluster.rollout import is_ready, listed
from emulator.estimates.sizing import are_examples_guessed, examples_of_a_device
from emulator.local.faults import refuse_faults
from emulator.runs.progress import Display
from emulator.shipped.data import dataset_here
from emulator.shipped.share import CHART
from fedstrata.datasets import Dataset
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
from fedstrata.experiment.keys_of_files import HASHED, files_named
from fedstrata.experiment_file import load_experiment
from fedstrata.partitions import check_partition
from fedstrata.store.own_code import with_digests
from fedstrata.trust.names import Name
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console


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
    chart: Path = CHART
    timeout_s: int = TIMEOUT_S


def up(release: Release, request: UpRequest, console: "Console") -> None:
    """Install or upgrade a release with an experiment, and wait until all pods are ready.

    If the release exists, it keeps all values that the request does not change.

    Raises:
        DataError: the data set has fewer examples than the partition needs.
        ExperimentError, AddressError, RunStoppedError: Helm, Kubernetes or a pod reports a fault. The message has the
            text of this report.
    """
    dataset = dataset_here(request.experiment)
    asked = _checked_values(request, dataset)
    _Upgrade(release, request, dataset, partial(console.print, soft_wrap=True, markup=False)).do(asked)


def _checked_values(request: UpRequest, dataset: Dataset | None) -> dict[str, Any]:
    """Return the values in the request. Check what can be checked before any call to Kubernetes."""
    check_chart(request.chart)
    asked = with_code(asked_values(request.chart, request.values, request.value_overrides), request.code)
    with_lps_count(asked, asked, request.experiment)
    if dataset is not None:
        check_partition(request.experiment, dataset)
    return asked


def _with_memory(
    values: dict[str, Any],
    asked: Mapping[str, Any],
    experiment: Experiment,
    dataset: Dataset | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return `values` with the memory of pods, as `with_memory` does. If it is unknown or a guess, tell the user."""
    try:
        found = with_memory(values, asked, experiment, dataset)
    except PluginError as error:  # an image may have the own code
        tell(f"the memory that pods need cannot be estimated here, so the chart's or your values apply: {error}")
        return values
    if are_examples_guessed(experiment, dataset):
        tell(
            "the data are not on this machine, so the memory of device pods is a guess with "
            f"{examples_of_a_device(experiment):,} examples a device; correct it with bounds.max_examples, or with "
            "--set-value device.memoryMi.pod=MIB"
        )
    return found


class _PresentRun:
    """Check the present run of a release before an upgrade of the release."""

    def __init__(self, release: Release, experiment: Experiment) -> None:
        """Set `experiment`, the experiment of the upgrade."""
        self._release, self._experiment = release, experiment

    def check_failed(self) -> None:
        """Check that the run of this experiment has failed, so that it may begin again. If no GPS answers, or if the
        GPS has a run of another experiment, do nothing.

        When a run begins again, its LPSs and devices do not use the state of the failed run.

        Raises:
            ExperimentError: the run has not failed.
            AccountError, CertificateError, HandshakeError: the GPS cannot be asked.
        """
        run_id = self._experiment.run_id
        found = self._status_now(
            f"--again begins a failed run again, but cannot ask the GPS whether {run_id} has failed"
        )
        if found is None or found.run_id != run_id or found.phase == "failed":
            return
        what = "has completed, and its record is available" if found.phase == "completed" else f"is in {found.phase}"
        raise ExperimentError(
            f"--again begins a failed run again, but {run_id} {what}; leave --again out, or give another --seed"
        )

    def check_not_ended(self, *, has_volumes: bool) -> None:
        """Check that new pods would not end the present run of the release. They would if the run is of another
        experiment, or if it cannot continue in new pods.

        Raises:
            ExperimentError: new pods would end the present run.
            AccountError, CertificateError, HandshakeError: the GPS cannot be asked.
        """
        name = self._release.name
        found = self._status_now("cannot ask the GPS whether a run is under way, which --replace would interrupt")
        if found is None or found.phase in {"completed", "failed"}:
            return
        if found.run_id != self._experiment.run_id:
            raise ExperimentError(
                f"release {name} has run {found.run_id} in phase {found.phase}; give another --release, or --replace "
                "to interrupt that run. Its state stays: fedstrata up with its experiment continues it later"
            )
        if not has_volumes and found.phase in {"training", "evaluation"}:
            raise ExperimentError(
                f"release {name} has run {found.run_id} in phase {found.phase}, and its LPSs have no volumes "
                "(lps.persistence.enabled). New values would replace LPSs and devices together, which ends the run. "
                "Wait for its end, or give --replace"
            )

    def _status_now(self, unknown: str) -> pb.RunStatus | None:
        """Return the status of the release's run. If no GPS is ready to answer, return None.

        Raises:
            AccountError, CertificateError, HandshakeError: this account may not call the GPS, or has no certificate
                that the GPS trusts. The message begins with the text `unknown`, which says what this command could not
                find out.
            AddressError, RunStoppedError: the GPS is ready but does not answer this command. The message begins in the
                same way.
        """
        try:
            return status(self._release, Display(), once=True)
        except (AccountError, CertificateError, HandshakeError) as error:
            raise type(error)(f"{unknown}: {error}") from None
        except (AddressError, RunStoppedError) as error:
            if not any(is_ready(pod) for pod in InstalledRelease(self._release).gps_pods()):
                return None
            raise type(error)(f"{unknown}: {error}") from None


class _Upgrade:
    """Install a release, or upgrade it if it exists."""

    def __init__(
        self, release: Release, request: UpRequest, dataset: Dataset | None, tell: Callable[[str], None]
    ) -> None:
        """Set `dataset`, the data set of the experiment; None if it is not on this machine."""
        self._release, self._request, self._tell = release, request, tell
        self._experiment, self._dataset = request.experiment, dataset
        self._helm, self._cluster = Helm(release), InstalledRelease(release)
        self._certificates = ReleaseCertificates(release, self._cluster.secrets)

    def do(self, asked: dict[str, Any]) -> None:
        """Install or upgrade the release with the values in the request, `asked`. Return when all pods are ready."""
        release, request = self._release, self._request
        before = self._helm.values() if self._helm.check_ours() else None  # None: there is no such release
        if before is None:
            self._cluster.wait_gone(request.timeout_s, self._tell)
        values = self._values({} if before is None or request.resets_values else before, asked)
        # before anything is written for values that the chart refuses
        self._helm.check(request.chart, values, self._cluster.kubernetes_version())
        values = _with_rights(values, self._cluster, self._tell)
        if before is None:
            self._cluster.secrets.ensure_namespace()
        with self._with_certificates(values) as values:
            if before is not None:
                self._check_run(before, values)
            earlier = self._cluster.warnings()
            self._apply(values)
        self._tell(f"{'installed' if before is None else 'upgraded'} {release.name} in namespace {release.namespace}: "
                   f"run {self._experiment.run_id}")  # fmt: skip
        try:
            self._cluster.wait_ready(request.timeout_s, self._tell, earlier)
        except (RunStoppedError, AddressError) as error:
            raise type(error)(
                f"{error}. Release {release.name} stays in namespace {release.namespace}, and its pods run or wait: "
                f"correct this and run fedstrata up again, or remove it with {self._down}"
            ) from None
        self._check_not_overtaken(values)
        self._tell(f"all pods are ready; fedstrata status {release.options}")

    @property
    def _down(self) -> str:
        return f"fedstrata down {self._release.options}"

    def _apply(self, values: Mapping[str, Any]) -> None:
        """Let Helm install or upgrade the release. If this fails half-way, restore the state from before."""
        before = self._helm.revision()
        try:
            self._helm.upgrade(self._request.chart, values)
        except BusyError:
            raise  # the objects are another program's
        except FedstrataError as error:
            raise type(error)(f"{error}{self._restored(before)}") from None
        except KeyboardInterrupt:
            self._restored(before)
            raise

    def _restored(self, before: int) -> str:
        """Undo a failed installation or upgrade of the release, which had the revision `before`. Return a sentence
        about the result. It is empty if Helm had not begun.
        """
        name = self._release.name
        try:
            if self._helm.revision() == before:
                return ""
            if before == 0:
                self._helm.uninstall()
                return f". What had been installed of release {name} was removed again"
            self._helm.roll_back(before)
        except FedstrataError as error:
            remedy = (
                self._down if before == 0 else f"helm rollback {name} {before} --namespace {self._release.namespace}"
            )
            return f". A part of release {name} is installed and may run, and could not be undone ({error}): {remedy}"
        else:
            return f". Release {name} is again as it was before"

    # --- the values for the chart ---------------------------------------------------------------

    def _values(self, kept: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
        """Return all values for the chart: values that the release keeps, values in the request, and computed
        values.
        """
        merged = with_code(merge_values([kept, asked]), self._request.code)
        merged = with_lps_count(merged, asked, self._experiment)
        merged = _with_memory(merged, asked, self._experiment, self._dataset, self._tell)
        merged["again"] = self._again(kept)
        merged["experiment"] = self._experiment.to_yaml()
        return with_mode(merged)

    def _again(self, kept: Mapping[str, Any]) -> str:
        """Return the chart's value `again`. A failed run begins again when this value changes.

        If the user asks to begin again, return a new text, the present time. Otherwise return the release's present
        value, or an empty text if the release has another experiment.
        """
        if self._request.begins_again:
            return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        is_same = kept.get("experiment") == self._experiment.to_yaml()
        return str(kept.get("again", "")) if is_same else ""

    def _with_defaults(self, values: dict[str, Any]) -> dict[str, Any]:
        return merge_values([load_values(self._request.chart / "values.yaml"), values])

    # --- certificates ---------------------------------------------------------------------------

    @contextmanager
    def _with_certificates(self, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Make the Secrets with the pods' certificates. Yield the values with the fingerprint of the authority.

        After the block, delete the Secrets that the release no longer uses. If the block fails, delete the Secrets that
        are new.
        """
        holders = self._holders(self._with_defaults(values))
        try:
            if holders:
                if made := self._certificates.make(holders, values.get("outside", {}).get("serverDomain") or ""):
                    self._tell(f"made certificates for {listed(made)}")
                if advice := self._certificates.advice():
                    self._tell(advice)
                values = merge_values([values, {"tls": {"authority": self._certificates.fingerprint()}}])
            yield values
        except BaseException:
            self._take_back()
            raise
        self._tidy(holders, values)

    def _holders(self, values: dict[str, Any]) -> dict[str, list[Name]]:
        """Return the processes that need a certificate, with the names in each certificate. `values` include all
        defaults. If they name another source of certificates, return an empty mapping.
        """
        try:
            return holders_of(values, self._experiment) if values["tls"]["mode"] == GENERATED else {}
        except (KeyError, TypeError, ValueError) as error:  # another chart, whose schema allows other values
            raise ExperimentError(
                f"--chart {self._request.chart}: its values tls, lps or device differ in form from the project's "
                f"chart: {error!r}; set tls.mode to secret, or leave --chart out"
            ) from None

    def _take_back(self) -> None:
        """Delete the Secrets that a failed `fedstrata up` has made. If the release exists, keep them, because its pods
        may use them.
        """
        with suppress(FedstrataError):  # the first error is reported; `fedstrata down` deletes what stays
            if self._helm.chart() is None:
                self._certificates.take_back()

    def _tidy(self, holders: Mapping[str, list[Name]], values: Mapping[str, Any]) -> None:
        """Delete the Secrets with certificates that the release no longer uses."""
        try:
            if holders:
                self._certificates.prune(holders)
            elif not authority_is_taken_over(values):
                self._certificates.drop_authority()
        except FedstrataError as error:
            self._tell(f"certificates that are no longer needed could not be deleted: {error}")

    # --- the state of the release ---------------------------------------------------------------

    def _check_run(self, before: Mapping[str, Any], values: dict[str, Any]) -> None:
        """Check that the upgrade does no harm to the present run. `before` are the values of the release, and `values`
        the new values. Raises FedstrataError like `_PresentRun`.
        """
        run = _PresentRun(self._release, self._experiment)
        if self._request.begins_again:
            run.check_failed()
        if before != values and not self._request.replaces_run:
            # Without volumes, the state of LPSs is lost when pods are replaced.
            lps = self._with_defaults(values).get("lps", {})
            run.check_not_ended(has_volumes=bool(lps.get("persistence", {}).get("enabled")))

    def _check_not_overtaken(self, asked: Mapping[str, Any]) -> None:
        """Check that the release still has the values of this `fedstrata up`. If another user has changed them while
        this command waited for the pods, raise AddressError.
        """
        found = self._helm.values()
        changed = sorted(key for key in {*found, *asked} if found.get(key) != asked.get(key))
        if not changed:
            return
        run_id = self._experiment.run_id
        outcome = f"run {run_id} was replaced" if "experiment" in changed else "your values do not apply"
        raise AddressError(
            f"another fedstrata up has changed {', '.join(changed)} of release {self._release.name} while this one "
            f"waited for its pods: {outcome}. Run fedstrata up again, or give one of the two another --release"
        )


def _with_rights(values: dict[str, Any], cluster: InstalledRelease, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return `values`, with `gps.rbac.recordEvents` set to false if this account may not create Events.

    The chart's Role gives the GPS the right to create Events. An account can only give rights that it has itself.
    Kubernetes would therefore refuse the Role.
    """
    rbac = merge_values([{"create": True, "recordEvents": True}, dict(values.get("gps", {}).get("rbac") or {})])
    if not rbac["create"] or not rbac["recordEvents"] or cluster.may("create", "events"):
        return values
    tell("this account may not create Events, nor give the GPS this right, so gps.rbac.recordEvents is set to false")
    return merge_values([values, {"gps": {"rbac": {"recordEvents": False}}}])


def load_for_cluster(
    path: Path, overrides: Sequence[str], seed: int | None, tell: Callable[[str], None] = lambda _: None
) -> Experiment:
    """Load an experiment for Kubernetes. Call `tell` with a line about each file that the experiment names, because
    pods do not have this machine's files. If it has the key data.folder, remove the key, and tell this, too.
    """
    experiment = with_digests(load_experiment(path, overrides, seed))
    refuse_faults(experiment, "Kubernetes")
    for key, file in files_named(experiment.model_dump(mode="json", by_alias=True), HASHED).items():
        tell(
            f"{key} is {file}, which `fedstrata up` does not send: pods need the same file at this path, from your own "
            "image, or from a volume (extraVolumes of gps, lps and device)"
        )
    if experiment.data.folder is not None and experiment.data.name != "folder":
        tell(
            f"data.folder {experiment.data.folder} is on this machine, so pods do not use it. They read data from the "
            "place that the chart's data.type names (hostPath, claim or image), at data.path"
        )
        return experiment.model_copy(update={"data": experiment.data.model_copy(update={"folder": None})})
    return experiment
