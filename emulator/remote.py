"""A run on Kubernetes from the experimenter's side: up, status, collect, down."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from emulator.client import RunClient
from emulator.faults import refuse_faults
from emulator.follow import Outcome, follow
from emulator.helm import CHART, Helm
from emulator.interrupts import run_interruptibly
from emulator.kubernetes import Cluster
from emulator.output import check_unused
from emulator.progress import Display
from fedstrata.errors import ExperimentError, RunStoppedError
from fedstrata.experiment import Experiment, load_experiment
from fedstrata.v1 import gps_service_pb2 as pb

if TYPE_CHECKING:
    from rich.console import Console

FIRST_STATUS_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Release:
    """Which release, in which namespace."""

    name: str
    namespace: str


def up(
    release: Release, experiment: Experiment, *, values: Sequence[Path], chart: Path | None, timeout_s: int,
    console: "Console",
) -> None:  # fmt: skip
    """Install or upgrade the chart with this experiment and wait until all pods are ready.

    Raises:
        ExperimentError, AddressError, RunStoppedError: with what Helm, Kubernetes or the pods say.
    """
    merged = merge_values([load_values(path) for path in values])
    merged["experiment"] = experiment.to_yaml()
    Helm(release.namespace).upgrade(release.name, chart or CHART, merged)
    console.print(f"installed {release.name} in namespace {release.namespace}: run {experiment.run_id}")
    Cluster(release.namespace).wait_ready(release.name, timeout_s)
    console.print(f"all pods are ready; fedstrata status --release {release.name} --namespace {release.namespace}")


def load_values(path: Path) -> dict[str, Any]:
    """A values file. Raises ExperimentError when it is none."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ExperimentError(f"cannot read the values file {path}: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ExperimentError(f"{path} must be a mapping of keys to values")
    return document


def merge_values(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Values files laid over each other, later ones on top, as Helm does."""
    merged: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            under = merged.get(key)
            both = isinstance(under, dict) and isinstance(value, dict)
            merged[key] = merge_values([under, value]) if both else value  # type: ignore[list-item]
    return merged


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


def status(release: Release, display: Display, *, once: bool) -> pb.RunStatus:
    """Show a run's state, once or until it has ended. Raises RunStoppedError when the run failed."""

    async def watch(address: str) -> Outcome:
        async with RunClient(address) as client:
            if once:
                return Outcome(status=await _first(client, display), failure=None)
            return await follow(client, _Elsewhere(), display.show)

    with Cluster(release.namespace).gps_address(release.name) as address, display.open():
        outcome = run_interruptibly(watch(address))
    if outcome.failure is not None:
        raise outcome.failure
    return outcome.status


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

    check_unused(out)

    async def fetch(address: str) -> Outcome:
        async with RunClient(address) as client:
            outcome = await follow(client, _Elsewhere(), display.show)
            if outcome.status.has_record:
                await client.fetch_record(outcome.status.run_id, out)
            return outcome

    with Cluster(release.namespace).gps_address(release.name) as address, display.open():
        outcome = run_interruptibly(fetch(address))
    report = write_report(out)
    if outcome.failure is not None:
        raise outcome.failure
    return report


def down(release: Release, *, delete_records: bool) -> list[str]:
    """Uninstall a release; with `delete_records` its volume claims too. Gives the names of the claims deleted."""
    Helm(release.namespace).uninstall(release.name)
    return Cluster(release.namespace).delete_claims(release.name) if delete_records else []


def load_for_cluster(path: Path, overrides: Sequence[str], seed: int | None) -> Experiment:
    """An experiment as it goes to a cluster: without this machine's data folder, which pods do not have."""
    experiment = load_experiment(path, overrides, seed)
    refuse_faults(experiment, "Kubernetes")
    if experiment.data.folder is not None and experiment.data.name != "folder":
        return experiment.model_copy(update={"data": experiment.data.model_copy(update={"folder": None})})
    return experiment


def as_json(found: pb.RunStatus) -> str:
    """A status as one JSON line."""
    clusters = {
        c.cluster_id: {"devices": c.devices, "accuracy": c.accuracy if c.is_evaluated else None} for c in found.clusters
    }
    return json.dumps({
        "run_id": found.run_id, "phase": found.phase, "reason": found.reason or None,
        "global_round": found.global_round, "global_rounds": found.global_rounds, "clusters": clusters,
    })  # fmt: skip
