"""The end-to-end tests: the chart on the Kubernetes cluster that KUBECONFIG names, with its images loaded.

`make test-cluster` runs them. Every module works in a namespace of its own and removes it at the end, with its claims.
If a cluster has no provisioner, FEDSTRATA_FREE_VOLUMES is a command that offers volumes without a claim again; it runs
after each test.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

ROOT = Path(__file__).resolve().parents[2]
FREE_VOLUMES = os.environ.get("FEDSTRATA_FREE_VOLUMES", "")
SLOW = ("clock=real", "links={device-lps: {latency: 50ms}}")
ROUND_S = 0.4  # a global round of experiments/digits.yaml takes as long with SLOW on any machine: two LPS rounds


def lasting(seconds: float) -> tuple[str, ...]:
    """Settings of a run whose training takes so long or longer, so that it is not over before it is disturbed."""
    return (f"training.global_rounds={round(seconds / ROUND_S)}", *SLOW)


LONG = lasting(48)  # since on a busy machine `up` returns late, and a status takes some seconds
INSTANCE = "app.kubernetes.io/instance"
# Small requests, so that the tests fit on a laptop; images are in the nodes already.
VALUES: dict[str, Any] = {
    "image": {
        "pullPolicy": os.environ.get("FEDSTRATA_PULL_POLICY", "Never"),
        "tag": os.environ.get("FEDSTRATA_TAG", ""),
    },
    # A volume only where a test needs one: a small cluster has no more than twenty.
    # LPSs and devices stay after a run, for tests that look at them.
    "gps": {
        "nodeSelector": {"tier": "cloud"},
        "persistence": {"enabled": False, "retain": "delete"},
        "releaseAfterSeconds": None,
    },
    "lps": {"nodeSelector": {"tier": "edge"}, "persistence": {"enabled": False}},
    "device": {"nodeSelector": {"tier": "edge"}, "resources": {"requests": {"cpu": "10m", "memory": "128Mi"}}},
}
PERSISTENT: dict[str, Any] = {"gps": {"persistence": {"enabled": True}}}


def pytest_configure() -> None:
    """The Kubernetes client leaves its sockets to the garbage collector, after the last test, too."""
    warnings.filterwarnings("ignore", category=pytest.PytestUnraisableExceptionWarning)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)
        item.add_marker(pytest.mark.timeout(600))
        item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


class Lab:
    """One namespace, the `fedstrata` command in it, and Kubernetes' own word on what is there."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self.namespace = namespace
        self.folder = folder
        self.core, self.apps, self.batch = client.CoreV1Api(), client.AppsV1Api(), client.BatchV1Api()

    def fedstrata(self, *arguments: str, code: int = 0, timeout_s: int = 300) -> str:
        """Run the command and check its exit code; gives what it said."""
        command = [sys.executable, "-m", "emulator", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def here(self, command: str, *arguments: str, release: str = "lab", code: int = 0) -> str:
        """A command about a release in this namespace."""
        return self.fedstrata(command, "--namespace", self.namespace, "--release", release, *arguments, code=code)

    def up(
        self, experiment: Path | str, values: Mapping[str, Any] | None = None, *, sets: tuple[str, ...] = (),
        release: str = "lab", code: int = 0, timeout_s: int = 240,
    ) -> str:  # fmt: skip
        """Install or upgrade a release with the tests' values under the given ones."""
        files = []
        for number, document in enumerate((VALUES, values or {})):
            path = self.folder / f"values-{release}-{number}.yaml"
            path.write_text(yaml.safe_dump(dict(document)))
            files += ["--values", str(path)]
        chosen = [part for pair in sets for part in ("--set", pair)]
        return self.here(
            "up", str(experiment), *chosen, *files, "--timeout", str(timeout_s), release=release, code=code
        )

    def status(self, release: str = "lab") -> dict[str, Any]:
        """How a run stands."""
        found: dict[str, Any] = json.loads(self.here("status", "--once", "--json", release=release))
        return found

    def wait_global_round(self, number: int, release: str) -> None:
        """Wait until so many global rounds are done; the run must not be over by then: `lasting` makes it long."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = self.status(release)
            if found["global_round"] >= number:
                assert found["phase"] == "training", f"over too soon: {found}"
                return
        raise AssertionError(f"{release} has not come to global round {number}: {found}")

    def pods(self, component: str, release: str = "lab") -> list[Any]:
        """The pods of one tier, by name."""
        selector = f"{INSTANCE}={release},app.kubernetes.io/component={component}"
        found = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return sorted(found, key=lambda pod: str(pod.metadata.name))

    def scale(self, component: str, pods: int, release: str = "lab") -> None:
        """Ask for so many pods of one tier, which the next upgrade asks for otherwise."""
        name = f"{release}-fedstrata-{component}"
        self.apps.patch_namespaced_stateful_set_scale(name, self.namespace, {"spec": {"replicas": pods}})

    def job(self, release: str = "lab") -> Any:
        """The Job of a release's run."""
        (found,) = self.batch.list_namespaced_job(self.namespace, label_selector=f"{INSTANCE}={release}").items
        return found

    @contextmanager
    def waiting(
        self, condition: str, release: str = "lab", timeout_s: int = 400
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """`kubectl wait` for the release's run, which ends with 0 once the run has completed or failed."""
        command = ["kubectl", "-n", self.namespace, "wait", f"--for=condition={condition}", f"--timeout={timeout_s}s"]
        with subprocess.Popen([*command, "job", "-l", f"{INSTANCE}={release}"]) as wait:
            try:
                yield wait
            finally:
                wait.kill()

    def releases(self) -> set[str]:
        """The releases of Helm's in the namespace."""
        found = self.core.list_namespaced_secret(self.namespace, label_selector="owner=helm").items
        return {secret.metadata.labels["name"] for secret in found}

    def claims(self) -> list[str]:
        """Names of the volume claims in the namespace that are not on their way out."""
        found = self.core.list_namespaced_persistent_volume_claim(self.namespace).items
        return [claim.metadata.name for claim in found if claim.metadata.deletion_timestamp is None]


@pytest.fixture(scope="session", autouse=True)
def _context() -> None:
    if "KUBECONFIG" not in os.environ and not (Path.home() / ".kube" / "config").exists():
        pytest.fail("no Kubernetes cluster: set KUBECONFIG, or make one with `make kind-up`")
    config.load_kube_config()


@pytest.fixture(autouse=True)
def _volumes() -> Iterator[None]:
    """Offer the volumes that a test has used to the next one, if the cluster does not do so by itself."""
    yield
    if FREE_VOLUMES:
        subprocess.run(shlex.split(FREE_VOLUMES), check=True, timeout=60)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A namespace for one module of tests."""
    core = client.CoreV1Api()
    name = f"fedstrata-{uuid.uuid4().hex[:8]}"
    core.create_namespace({"metadata": {"name": name}})
    try:
        yield Lab(name, tmp_path_factory.mktemp("lab"))
    finally:
        core.delete_namespace(name)


@pytest.fixture(scope="session")
def local_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of experiments/digits.yaml, run on this machine."""
    return run_here(tmp_path_factory.mktemp("local") / "digits")


@pytest.fixture(scope="session")
def local_long_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with enough global rounds to disturb it on the way."""
    return run_here(tmp_path_factory.mktemp("local") / "long-digits", *LONG)


def run_here(
    folder: Path, *sets: str, experiment: Path | str = "experiments/digits.yaml", start: Path = ROOT,
    arguments: Sequence[str] = (),
) -> Path:  # fmt: skip
    """The record of an experiment with these settings, run on this machine, started in a folder."""
    command = [sys.executable, "-m", "emulator", "run", str(experiment), "--out", str(folder), "--quiet"]
    chosen = [part for pair in sets for part in ("--set", pair)]
    subprocess.run([*command, *chosen, *arguments], cwd=start, check=True, capture_output=True, timeout=200)
    return folder
