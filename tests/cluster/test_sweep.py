"""A sweep in pods: the table of this machine, through an interruption and lost pods, and what is refused.

FEDSTRATA_SHARED_FOLDER is a folder that all nodes see as theirs, if there is one. Without it, all pods run on one node.
By hand, with FEDSTRATA_LONG_SWEEP=1, also a drained node, and two releases at the same time. With
FEDSTRATA_BUCKET_HOST, an address of this machine that pods reach, also a sweep in a bucket.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import watch

from emulator.sweeps.claims import claimed
from tests.cluster.conftest import ROOT, Lab, lasting, run_here
from tests.support.buckets import BUCKET, served_bucket, settings_of
from tests.support.programs import start_heeding
from tests.support.records import assert_same_result
from tests.support.sweep_tables import without_bytes

BUCKET_HOST = os.environ.get("FEDSTRATA_BUCKET_HOST", "")
SHARED = os.environ.get("FEDSTRATA_SHARED_FOLDER", "")
IMAGE = os.environ.get("FEDSTRATA_EMULATOR_IMAGE", "localhost/fedstrata/emulator:0.2.0")
CLAIM = "runs"
PACKED = {"device": {"devicesPerPod": 5}}


@pytest.fixture
def claim(lab: Lab) -> Iterator[str]:
    """A claim that all pods can mount."""
    name = f"{CLAIM}-{uuid.uuid4().hex[:6]}"
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = None
    if SHARED:
        folder = Path(SHARED) / name
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        volume = f"{lab.namespace}-{name}"
        lab.core.create_persistent_volume({
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": str(folder)},
            },
        })  # fmt: skip
        spec |= {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume}
    lab.core.create_namespaced_persistent_volume_claim(lab.namespace, {"metadata": {"name": name}, "spec": spec})
    yield name
    if volume:
        lab.core.delete_persistent_volume(volume)


def sweep_file(folder: Path, name: str, seeds: int) -> Path:
    """A sweep of two cells."""
    cells = {
        "one_shot": {"training.global_rounds": 2, "method.clusters": 1},
        "random": {"training.global_rounds": 2, "method": {"name": "random", "clusters": 1}},
    }
    path = folder / f"{name}.yaml"
    document = {"base": "digits", "seeds": list(range(seeds)), "cells": cells, "baseline": "random"}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


class Command:
    """`fedstrata sweep --on kubernetes`, and the lines that it prints."""

    def __init__(self, lab: Lab, file: Path, out: Path, *options: str) -> None:
        words = ["sweep", str(file), "--out", str(out), "--on", "kubernetes", "--image", IMAGE]
        words += ["--namespace", lab.namespace, "--json", *options]
        self.process = start_heeding(signal.SIGINT, [sys.executable, "-m", "emulator", *words], cwd=ROOT)

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        return found

    def until_followed(self, job: str, lab: Lab) -> None:
        """Wait for the pod that reads the records, which the command makes while it follows the Job's first pod."""
        events = watch.Watch().stream(
            lab.core.list_namespaced_pod, lab.namespace, timeout_seconds=120,
            label_selector=f"app.kubernetes.io/instance={job},app.kubernetes.io/component=reader",
        )  # fmt: skip
        assert next(events, None) is not None

    def interrupt(self) -> str:
        self.process.send_signal(signal.SIGINT)
        return self.end(130)

    def end(self, code: int = 0) -> str:
        out, errors = self.process.communicate(timeout=500)
        assert self.process.returncode == code, f"{out}\n{errors}"
        return out + errors


def here(lab: Lab, file: Path, out: Path) -> str:
    """The same sweep on this machine; its table."""
    lab.fedstrata("sweep", str(file), "--out", str(out), "--quiet", timeout_s=500)
    return (out / "table.csv").read_text()


def check_same(found: Path, expected: str) -> None:
    (table, of_table), (wanted, of_wanted) = without_bytes((found / "table.csv").read_text()), without_bytes(expected)
    assert table == wanted
    assert of_table == pytest.approx(of_wanted, rel=1e-3)


def sweep_pods(lab: Lab, job: str) -> list[Any]:
    selector = f"app.kubernetes.io/instance={job},app.kubernetes.io/component=sweep"
    return list(lab.core.list_namespaced_pod(lab.namespace, label_selector=selector).items)


def test_a_sweep_in_pods_that_is_interrupted_gives_the_table_of_this_machine(
    lab: Lab, claim: str, tmp_path: Path
) -> None:
    file, out = sweep_file(tmp_path, "short", seeds=1), tmp_path / "out"
    first = Command(lab, file, out, "--claim", claim, "--parallelism", "1")
    first.until_followed("short-sweep", lab)
    assert "job short-sweep keeps running" in first.interrupt()
    second = Command(lab, file, out, "--claim", claim, "--parallelism", "1")
    assert '"completed": 2' in second.end()
    with lab.waiting("complete", "short-sweep", timeout_s=60) as wait:  # Kubernetes may say so after the command's end
        assert wait.wait() == 0
    check_same(out, here(lab, file, tmp_path / "here"))
    assert (out / "runs" / "random" / "seed-0" / "report.html").stat().st_size > 10_000


def test_a_claim_that_is_not_there_is_refused(lab: Lab, tmp_path: Path) -> None:
    file = sweep_file(tmp_path, "refused", seeds=1)
    assert "has no claim nowhere" in Command(lab, file, tmp_path / "out", "--claim", "nowhere").end(2)


LONG = pytest.mark.skipif(not os.environ.get("FEDSTRATA_LONG_SWEEP"), reason="ten minutes; set FEDSTRATA_LONG_SWEEP=1")


@LONG
def test_an_image_that_is_not_there_ends_the_command_and_the_job(lab: Lab, claim: str, tmp_path: Path) -> None:
    file, absent = sweep_file(tmp_path, "absent", seeds=1), "localhost/fedstrata/emulator:no-such-tag"
    said = Command(lab, file, tmp_path / "out", "--claim", claim, "--parallelism", "1", "--image", absent).end(4)
    assert "no-such-tag" in said
    assert "so it was deleted" in said


@LONG
def test_lost_pods_repeat_at_most_what_was_under_way(lab: Lab, claim: str, tmp_path: Path) -> None:
    """24 runs, four at once. Two pods are lost, and the command is interrupted once."""
    file, out = sweep_file(tmp_path, "long", seeds=12), tmp_path / "out"
    command = Command(lab, file, out, "--claim", claim, "--parallelism", "4")
    done = [command.line()["folder"] for _ in range(4)]
    for pod in [pod for pod in sweep_pods(lab, "long-sweep") if pod.status.phase == "Running"][:2]:
        lab.core.delete_namespaced_pod(pod.metadata.name, lab.namespace, grace_period_seconds=0)
    done.append(command.line()["folder"])
    command.interrupt()
    times = {folder: (Path(folder) / "summary.json").stat().st_mtime_ns for folder in done}
    again = Command(lab, file, out, "--claim", claim, "--parallelism", "4")
    again.end()
    assert {folder: (Path(folder) / "summary.json").stat().st_mtime_ns for folder in done} == times
    check_same(out, here(lab, file, tmp_path / "here"))


def beginnings(folder: Path) -> dict[str, list[str]]:
    """The lines with which the GPS of each begun run of a sweep has begun or gone on, by the run's path."""
    found = {}
    for run in claimed(folder):
        log = run / "logs" / "gps.log"
        lines = log.read_text().splitlines() if log.exists() else []
        found[str(run.relative_to(folder))] = [line for line in lines if '"event": "serving"' in line]
    return found


def repeated(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> set[str]:
    """The runs that began more than once: they went on, or began anew with an empty folder."""
    return {run for run, lines in after.items() if len(lines) > 1 or before.get(run, lines) not in ([], lines)}


@LONG
@pytest.mark.skipif(not SHARED, reason="needs FEDSTRATA_SHARED_FOLDER (see head)")
def test_a_drained_node_repeats_at_most_what_was_under_way_on_it(lab: Lab, claim: str, tmp_path: Path) -> None:
    """24 runs, four at once, on two nodes or more."""
    file, out = sweep_file(tmp_path, "drained", seeds=12), tmp_path / "out"
    expected = here(lab, file, tmp_path / "here")
    folder = Path(SHARED) / claim / "sweeps" / "drained"
    command = Command(lab, file, out, "--claim", claim, "--parallelism", "4")
    for _ in range(4):
        command.line()
    pods = sweep_pods(lab, "drained-sweep")
    node, there = Counter(pod.spec.node_name for pod in pods if pod.status.phase == "Running").most_common(1)[0]
    before = beginnings(folder)
    kubectl = ["kubectl", "--namespace", lab.namespace]
    try:
        drain = ["drain", node, "--force", "--delete-emptydir-data", "--timeout=120s"]  # --force: for the reader
        subprocess.run([*kubectl, *drain], check=True, timeout=150)
        command.end()
    finally:
        subprocess.run([*kubectl, "uncordon", node], check=True, timeout=60)
    again = repeated(before, beginnings(folder))
    print(f"{there} pods were on {node}; {len(again)} of {len(before)} begun runs of 24 began again: {sorted(again)}")
    assert 0 < len(again) <= there
    assert len(beginnings(folder)) == 24
    assert (out / "table.csv").read_text() == expected
    with lab.waiting("complete", "drained-sweep") as wait:
        assert wait.wait(timeout=30) == 0


def uids(lab: Lab, instance: str) -> set[str]:
    """The objects of a release or a sweep in the namespace, without the reader, which ends with its command."""
    kinds = "all,configmaps,secrets,persistentvolumeclaims,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
    chosen = [
        "--selector",
        f"app.kubernetes.io/instance={instance},app.kubernetes.io/component!=reader",
        "--output",
        "jsonpath={.items[*].metadata.uid}",
    ]
    command = ["kubectl", "--namespace", lab.namespace, "get", kinds, *chosen]
    return set(subprocess.check_output(command, text=True, timeout=60).split())


@LONG
def test_two_releases_and_a_sweep_at_once_end_as_each_alone(lab: Lab, claim: str, tmp_path: Path) -> None:
    file, out = sweep_file(tmp_path, "beside", seeds=12), tmp_path / "out"
    runs = {"one": lasting(60), "two": (*lasting(100), "seed=7", "method={name: random, clusters: 2}")}
    table = here(lab, file, tmp_path / "here")
    with ThreadPoolExecutor() as threads:
        alone = dict(zip(runs, threads.map(lambda name: run_here(tmp_path / name, *runs[name]), runs), strict=True))
        command = Command(lab, file, out, "--claim", claim, "--parallelism", "1")
        list(threads.map(lambda name: lab.up("experiments/digits.yaml", PACKED, sets=runs[name], release=name), runs))
    assert {lab.status(name)["phase"] for name in runs} == {"training"}
    assert lab.job("beside-sweep").status.active
    check_completes(lab, "one", alone["one"], {"two", "beside-sweep"})
    check_completes(lab, "two", alone["two"], {"beside-sweep"})
    with lab.waiting("complete", "beside-sweep", 500) as wait:
        assert wait.wait(timeout=500) == 0
    command.end()
    assert claim in lab.claims()
    assert (out / "table.csv").read_text() == table


def check_completes(lab: Lab, release: str, alone: Path, others: set[str]) -> None:
    """Wait for a release's run, compare its record, and take the release down; all that others have stays."""
    with lab.waiting("complete", release) as wait:
        assert wait.wait(timeout=400) == 0
    folder = lab.folder / release
    lab.here("collect", "--out", str(folder), "--quiet", release=release)
    assert_same_result(folder, alone)
    before = {other: uids(lab, other) for other in others}
    lab.here("down", "--delete-records", "--yes", release=release)
    for other in others:
        assert before[other]
        assert before[other] <= uids(lab, other)


@pytest.mark.skipif(not BUCKET_HOST, reason="needs FEDSTRATA_BUCKET_HOST (see head)")
def test_pods_that_share_a_bucket_give_the_table_of_this_machine(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve runs, three at once; two pods are deleted by force."""
    file, out = sweep_file(tmp_path, "bucket", seeds=6), tmp_path / "out"
    with served_bucket(BUCKET_HOST) as address:
        settings = settings_of(address)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        secret = {"metadata": {"name": "bucket"}, "stringData": settings}
        lab.core.create_namespaced_secret(lab.namespace, secret)
        to = ("--to", f"s3://{BUCKET}/bucket", "--secret", "bucket", "--parallelism", "3")
        command = Command(lab, file, out, *to)
        for _ in range(3):
            command.line()
        at_work = [pod for pod in sweep_pods(lab, "bucket-sweep") if pod.status.phase == "Running"][:2]
        for pod in at_work:
            lab.core.delete_namespaced_pod(pod.metadata.name, lab.namespace, grace_period_seconds=0)
        command.end()
    assert at_work
    check_same(out, here(lab, file, tmp_path / "here"))
