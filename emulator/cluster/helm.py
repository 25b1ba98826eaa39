"""Call Helm. If the command helm is on the PATH, it is used. Otherwise Helm's library in the package helm-python-sdk is
used.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from emulator.cluster.release import Release
from emulator.cluster.secrets import HOW_TO_GET_RIGHTS, lacking_right
from fedstrata.errors import AccountError, AddressError, ExperimentError, FedstrataError

CHART_NAME = "fedstrata"
LIBRARY = Path(__file__).with_name("helm_library.py")
LONGEST_S = 600  # twice the time after which Helm itself gives up
MESSAGE_CHARACTERS = 900
# Options of Helm 4: the chart's replicas replace those that the GPS has set, also if Helm 3 has made the release.
FORCED = ("--server-side=true", "--force-conflicts")


class BusyError(AddressError):
    """Another program is changing the release at this moment."""


class Helm:
    """Install and remove one release."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._command = shutil.which("helm")

    def chart(self) -> str | None:
        """Return the name and version of the release's chart, such as fedstrata-0.2.0. If the release does not exist,
        return None.

        Raises:
            AddressError: Kubernetes does not answer, or refuses.
        """
        found = self._listed()
        return None if found is None else chart_of(found)

    def revision(self) -> int:
        """Return the number of the release's newest revision. If the release does not exist, return 0. Raises
        AddressError like `chart`.
        """
        found = self._listed()
        return 0 if found is None else int(found["revision"])

    def _listed(self) -> Mapping[str, Any] | None:
        """Return Helm's entry about the release. If the release does not exist, return None."""
        name = self._release.name
        if self._command is not None:
            every = ["--all"] if self._is_version_3 else []  # Helm 4 lists all, and has no such option
            listed = json.loads(self._run(["list", *every, "--filter", f"^{name}$", "--output", "json"]) or "[]")
        else:
            listed = self._by_library("list")
        return next((found for found in listed if found.get("name") == name), None)

    def check_ours(self) -> bool:
        """Return whether the release exists. If it does, check that it has Fedstrata's chart.

        Raises:
            ExperimentError: the release has another chart. The release is not changed.
        """
        chart = self.chart()
        if chart is not None and re.sub(r"-v?\d[^-]*(-.*)?$", "", chart) != CHART_NAME:
            raise ExperimentError(
                f"release {self._release.name} in namespace {self._release.namespace} has chart {chart}, not "
                f"{CHART_NAME}; nothing was changed. Choose another --release"
            )
        return chart is not None

    def values(self) -> dict[str, Any]:
        """Return the values of the release. Raises AddressError if the release does not exist."""
        name = self._release.name
        if self._command is not None:
            return dict(json.loads(self._run(["get", "values", name, "--output", "json"])) or {})
        return dict(self._by_library("values"))

    def check(self, chart: Path, values: Mapping[str, Any], version: str | None) -> None:
        """Render the chart without a call to Kubernetes. Raises ExperimentError if the chart refuses the values.

        `version` is the version of Kubernetes, if it is known. Otherwise the command helm assumes a version, and Helm
        4.0.0 assumes 1.20. The library always assumes the newest version that it knows.
        """
        if self._command is None:
            self._by_library("render", chart=str(chart), values=dict(values))
            return
        of_version = [] if version is None else ["--kube-version", version]
        with _as_file(values) as file:
            self._run(["template", self._release.name, str(chart), *of_version, "--values", file])

    def upgrade(self, chart: Path, values: Mapping[str, Any]) -> None:
        """Install the chart as the release, or upgrade the existing release to this chart. The namespace must exist.

        Raises:
            ExperimentError: the chart refuses these values. The message gives the reason.
            AddressError: Kubernetes does not answer, or refuses.
        """
        if self._command is None:
            call = "install" if self.chart() is None else "upgrade"
            self._by_library(call, chart=str(chart), values=dict(values))
            return
        with _as_file(values) as file:
            forced = () if self._is_version_3 else FORCED
            self._run(["upgrade", "--install", *forced, self._release.name, str(chart), "--values", file])

    def roll_back(self, revision: int) -> None:
        """Give the release the objects of an earlier revision. Raises AddressError if Kubernetes refuses."""
        if self._command is not None:
            forced = () if self._is_version_3 else FORCED
            self._run(["rollback", *forced, self._release.name, str(revision)])
            return
        self._by_library("rollback", revision=revision)

    def uninstall(self) -> None:
        """Uninstall the release. Raises AddressError if the release does not exist."""
        if self._command is not None:
            self._run(["uninstall", self._release.name, "--wait"])
            return
        self._by_library("uninstall")

    @cached_property
    def _is_version_3(self) -> bool:
        return self._run(["version", "--short"]).startswith("v3")

    def _run(self, arguments: Sequence[str]) -> str:
        where = ["--namespace", self._release.namespace]
        if self._release.context:
            where += ["--kube-context", self._release.context]
        if self._release.kubeconfig:
            where += ["--kubeconfig", str(self._release.kubeconfig)]
        command = [str(self._command), *where, *arguments]
        done = _run_to_end(command)
        if done.returncode:
            raise _refused(done.stderr or done.stdout)
        return done.stdout

    def _by_library(self, call: str, **arguments: Any) -> Any:
        """Call Helm's library in a separate process with the name helm. Kubernetes stores the name of the program that
        set a field. With the same name, Helm's command can later change the same fields.

        Raises:
            ExperimentError: the library is not installed, or the chart refuses the values.
            AddressError: Kubernetes does not answer, or refuses.
        """
        config = {
            "namespace": self._release.namespace,
            "kubeconfig_path": str(self._release.kubeconfig) if self._release.kubeconfig else None,
            "kube_context": self._release.context,
        }
        request = {"call": call, "release": self._release.name, "config": config, **arguments}
        command = ["helm", str(LIBRARY)]  # argv[0] is helm, the program is Python
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = _run_to_end(command, executable=sys.executable, env=environment, input=json.dumps(request))
        reply = json.loads(done.stdout or json.dumps({"error": done.stderr or f"it ended with {done.returncode}"}))
        if "missing" in reply:
            raise ExperimentError("helm is not on the PATH; install Helm 3.8 or later, or pip install helm-python-sdk")
        if "error" in reply:
            raise _refused(reply["error"])
        return reply["result"]


def _run_to_end(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Helm, and return its output. Raises AddressError if Helm does not end."""
    try:
        return subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=LONGEST_S, check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise AddressError(
            f"helm: not finished after {LONGEST_S} s; helm list --all-namespaces shows the state of all releases"
        ) from None


class _Quoting(yaml.SafeDumper):
    """Write all texts in quotes. Helm reads some texts as numbers that PyYAML writes without quotes, such as 12e5."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@contextmanager
def _as_file(values: Mapping[str, Any]) -> Iterator[str]:
    """Write values to a temporary file, and yield the name of the file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.dump(dict(values), file, _Quoting)
        file.flush()
        yield file.name


def check_chart(chart: Path) -> None:
    """Check that a folder contains a chart. Raises ExperimentError if it does not."""
    if not (chart / "Chart.yaml").exists():
        raise ExperimentError(f"no chart in {chart}; give its folder with --chart")


def chart_of(found: Mapping[str, Any]) -> str:
    """Return the name and version of a release's chart. `found` is an entry of the list of releases, from the command
    or from the library.
    """
    return str(found.get("chart") or f"{found['chart_name']}-{found['chart_version']}")


def _refused(message: str) -> FedstrataError:
    """Return an error with Helm's message on one line. If the chart refused the values, the message is the chart's own
    text.
    """
    return next(_explanations(" ".join(message.split())))


def _explanations(line: str) -> Iterator[FedstrataError]:
    """Yield the errors that explain a message of Helm, the best one first."""
    for mark in ("error calling fail: ", "execution error at "):
        if mark in line:
            said = re.sub(r"^\(\S+:\d+:\d+\): ", "", line.split(mark, 1)[1])  # without the template's name and line
            yield ExperimentError(f"helm: {_shortened(said)}")
    if "attempting to grant RBAC permissions not currently held" in line:
        lacking = "; ".join(re.findall(r"\{APIGroups:.*?\}", line)) or line
        yield AccountError(
            f"this account may not give the GPS's Role rights that the account lacks: {_shortened(lacking)}. "
            f"{HOW_TO_GET_RIGHTS}, or set gps.rbac.create to false and lps.replicas to the number of LPSs"
        )
    if lacking_right(line):
        yield AccountError(f"helm: {_shortened(line)}. {HOW_TO_GET_RIGHTS}")
    if claim := re.search(
        r'(?i)persistentvolumeclaims? \\?"([^"\\]+)\\?" is \w+: (.*(?:immutable|be less|resized).*)', line
    ):
        yield ExperimentError(
            f"helm: claim {claim[1]} cannot get another class or a smaller size, and grows only if its class allows "
            "it. Leave persistence.storageClass and persistence.size as they were, or fetch the records with fedstrata "
            f"collect and run fedstrata down --delete-records first (Kubernetes says: {_shortened(claim[2])})"
        )
    if "updates to statefulset spec" in line:
        yield ExperimentError(
            "helm: an upgrade cannot add, remove or change volumes. Leave lps.persistence and device.persistence as "
            "they were (lps.persistence.enabled=false if an older chart made the release), or run fedstrata down first"
        )
    if line.endswith("release: already exists") or "another operation" in line:
        yield BusyError(
            "helm: another program is changing this release now; wait until it has finished, then try again"
        )
    if empty := re.search(r"at <([^<>]*)>: nil pointer evaluating interface \{\}\.(\w+)", line):
        yield ExperimentError(
            f"helm: a section of the values is empty, so the chart finds no key {empty[2]} at {empty[1]}; delete the "
            "section's line, or give it keys"
        )
    if "schema" in line or "values" in line:
        yield ExperimentError(f"helm: {_shortened(line)}")
    yield AddressError(f"helm: {_shortened(line)}")


def _shortened(text: str) -> str:
    """Return a text with at most `MESSAGE_CHARACTERS`. A longer text ends after a whole word, with an ellipsis."""
    return textwrap.shorten(text, MESSAGE_CHARACTERS, placeholder=" …")
