"""Measure how soon a run on Kubernetes continues after a pod of each tier was replaced.

    python -m benchmarks.recovery_kubernetes --values values.yaml --repeats 3 --out /tmp/recovery.csv

The kubeconfig names the Kubernetes, which has the images of this version. Its volumes must be usable, because GPS and
LPSs have volumes by default. The program installs a release. It then deletes a pod, and waits until the pod's successor
is ready. It prints one row per deleted pod: the tier, the seconds until the successor was ready, and the seconds
from then until the first update. If the pod is a server's, its successor must accept an update. If the pod has devices,
every LPS must accept an update. The second number shows how long others looked for the pod at its old address.
"""

import argparse
import csv
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from emulator.cluster.forward import PodPort
from emulator.cluster.release import Release
from emulator.cluster.release_objects import InstalledRelease
from emulator.cluster.remote import down
from emulator.cluster.rollout import COMPONENT, is_ready
from emulator.cluster.up import UpRequest, load_for_cluster, up
from emulator.shipped.share import EXPERIMENTS
from fedstrata.process.waiting import pass_time

RUN = ("method.clusters=2", "training.global_rounds=100000", "links={device-lps: {latency: 20ms}}", "clock=real")
LOOK_S, LONGEST_S = 0.1, 120.0
TIERS = ("lps", "device", "gps")
HTTP = 8080  # the chart's port of /metrics


class Lab:
    """The release that is measured."""

    def __init__(self, release: Release) -> None:
        from kubernetes import client

        self.release = release
        self.installed = InstalledRelease(release)
        self._core = client.CoreV1Api(client.ApiClient(self.installed.configuration))

    def pods(self, tier: str) -> list[Any]:
        """Return the pods of a tier that are not being deleted, by name."""
        found = [pod for pod in self.installed.look().pods if (pod.metadata.labels or {}).get(COMPONENT) == tier]
        return sorted(
            (pod for pod in found if pod.metadata.deletion_timestamp is None), key=lambda pod: str(pod.metadata.name)
        )

    def delete(self, pod: Any) -> None:
        """Delete a pod, as an eviction does."""
        self._core.delete_namespaced_pod(pod.metadata.name, self.release.namespace)

    def updates(self, pod: str) -> float:
        """Return the number of updates that a server's pod has accepted since it started."""
        port = PodPort(self.installed.configuration, self.release.namespace, pod, HTTP)
        with port.forwarded() as address, urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "fedstrata_updates_total" and sample.labels["outcome"] == "accepted"
        )


def seconds_until(holds: Callable[[], bool]) -> float:
    """Return how many seconds pass until a condition holds."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > LONGEST_S:
            raise SystemExit(f"not within {LONGEST_S:g} s; see fedstrata status")
        pass_time(LOOK_S)
    return time.monotonic() - begin


def replaced(lab: Lab, tier: str) -> tuple[float, float]:
    """Delete the first pod of a tier. Return the seconds until its successor is ready, and the seconds from then until
    the first update. A server's successor must accept this update itself. For a pod with devices, every LPS must accept
    an update.
    """
    old = lab.pods(tier)[0]
    lab.delete(old)

    def is_replaced() -> bool:
        return any(
            pod.metadata.name == old.metadata.name and pod.metadata.uid != old.metadata.uid and is_ready(pod)
            for pod in lab.pods(tier)
        )

    ready_s = seconds_until(is_replaced)
    watched = [pod.metadata.name for pod in lab.pods("lps")] if tier == "device" else [old.metadata.name]
    before = {name: lab.updates(name) if tier == "device" else 0.0 for name in watched}
    update_s = seconds_until(lambda: all(lab.updates(name) > before[name] for name in watched))
    return ready_s, update_s


def main(words: Sequence[str]) -> None:
    """Install a release, replace pods of each tier, print and write the times, and remove the release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespace", default="recovery")
    parser.add_argument("--values", type=Path, action="append", default=[])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    release, console = Release(name="recovery", namespace=given.namespace), Console()
    experiment = load_for_cluster(EXPERIMENTS / "digits.yaml", RUN, None)
    with ExitStack() as stack, given.out.open("w", newline="", encoding="utf-8") as file:
        up(release, UpRequest(experiment=experiment, values=given.values), console)
        stack.callback(down, release, deletes_records=True, console=console)
        lab = Lab(release)
        seconds_until(lambda: all(lab.updates(pod.metadata.name) > 0 for pod in lab.pods("lps")))
        rows = csv.writer(file)
        rows.writerow(["tier", "until_ready_s", "until_first_update_s"])
        for tier in [tier for tier in TIERS for _ in range(given.repeats)]:
            row = (tier, *(f"{seconds:.1f}" for seconds in replaced(lab, tier)))
            rows.writerow(row)
            console.print(*row)


if __name__ == "__main__":
    main(sys.argv[1:])
