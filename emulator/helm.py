"""Helm, as a command on the PATH or, where there is none, as the library of the helm-python-sdk package."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedstrata.errors import AddressError, ExperimentError

CHART = Path(__file__).resolve().parents[1] / "helm" / "fedstrata"
HELM_S = 300


class Helm:
    """Installs and removes releases in one namespace of the current Kubernetes context."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._command = shutil.which("helm")

    def upgrade(self, release: str, chart: Path, values: Mapping[str, Any]) -> None:
        """Install the chart, or upgrade the release to it.

        Raises:
            ExperimentError: the chart refuses these values; its message says why.
            AddressError: Kubernetes does not answer, or refuses.
        """
        if not (chart / "Chart.yaml").exists():
            raise ExperimentError(f"no chart in {chart}; give its folder with --chart")
        if self._command is None:
            self._upgrade_by_library(release, chart, dict(values))
            return
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(dict(values), file)
            file.flush()
            self._run(["upgrade", "--install", "--create-namespace", release, str(chart), "--values", file.name])

    def uninstall(self, release: str) -> None:
        """Remove a release. Raises AddressError when there is none."""
        if self._command is not None:
            self._run(["uninstall", release, "--wait"])
            return
        sdk = _library()
        with _told(sdk), sdk.Config(namespace=self._namespace) as config:
            config.uninstall(release, timeout=HELM_S, wait="watcher")

    def _run(self, arguments: Sequence[str]) -> None:
        command = [str(self._command), "--namespace", self._namespace, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HELM_S, check=False)  # noqa: S603
        if done.returncode:
            raise _refused(done.stderr or done.stdout)

    def _upgrade_by_library(self, release: str, chart: Path, values: dict[str, Any]) -> None:
        sdk = _library()
        with _told(sdk), sdk.Config(namespace=self._namespace) as config:
            if any(found.get("name") == release for found in _names(config)):
                config.upgrade(chart, release, values, reset_values=True, timeout=HELM_S)
            else:
                config.install(chart, release, values, create_namespace=True, timeout=HELM_S)


def _names(config: Any) -> list[dict[str, Any]]:
    listed = config.list(all_states=True)
    releases = listed.get("releases", listed) if isinstance(listed, dict) else listed
    return [dict(found) for found in releases]


def _library() -> Any:
    try:
        import helm_python
    except ImportError:
        raise ExperimentError(
            "helm is not on the PATH; install Helm 3.8 or later, or pip install helm-python-sdk"
        ) from None
    return helm_python


class _told:  # noqa: N801  # reads as a statement: with _told(sdk): …
    """Turns the library's errors into ours."""

    def __init__(self, sdk: Any) -> None:
        self._error = sdk.HelmError

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._error):
            raise _refused(str(error)) from None


def _refused(message: str) -> ExperimentError | AddressError:
    """Helm's message on one line: the chart's own words where it was the chart that refused."""
    line = " ".join(message.split())
    for mark in ("error calling fail: ", "execution error at "):
        if mark in line:
            return ExperimentError(f"helm: {line.split(mark, 1)[1][:600]}")
    if "schema" in line or "values" in line:
        return ExperimentError(f"helm: {line[:600]}")
    return AddressError(f"helm: {line[:600]}")
