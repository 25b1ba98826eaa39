"""A Prometheus of its own for a test, which scrapes the processes that the test names."""

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import urlopen

BINARY = shutil.which("prometheus")
CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: lab/demo-fedstrata
    file_sd_configs: [{{files: ["{targets}"]}}]
"""
# What the chart's PodMonitor makes of a pod.
OF_RELEASE = {"namespace": "lab", "app_kubernetes_io_instance": "demo"}
PATIENCE_S = 60
STEP_S = 0.2


class Prometheus:
    """Scrapes five times a second what `scrape` was told last. A context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._targets = folder / "targets.json"
        self._targets.write_text("[]")
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(targets=self._targets))
        self._log = folder / "log"
        with self._log.open("wb") as log:
            words = (BINARY, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
            address = "--web.listen-address=127.0.0.1:0"
            self._process = subprocess.Popen([*map(str, words), address], cwd=folder, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        self._address = self._until(lambda: re.search(r'"Listening on" address=(\S+)', self._log.read_text()))[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=PATIENCE_S)

    def scrape(self, processes: Mapping[tuple[str, int], str]) -> None:
        """Ask these addresses from now on, by tier and number."""
        groups = [
            {
                "targets": [http],
                "labels": {**OF_RELEASE, "app_kubernetes_io_component": tier, "pod": f"{tier}-{number}"},
            }
            for (tier, number), http in processes.items()
        ]
        aside = self._targets.with_suffix(".new")
        aside.write_text(json.dumps(groups))
        aside.rename(self._targets)

    def now(self, query: str) -> dict[str, list[float]]:
        """The one value of each series of a query at this moment, by its labels; without those that are no number."""
        return numbers((series["metric"], [series["value"]]) for series in self._get("query", query=query)["result"])

    def over_time(self, query: str, start: float, end: float) -> dict[str, list[float]]:
        """The numbers of each line that a query draws, by its labels."""
        found = self._get("query_range", query=query, start=start, end=end, step=STEP_S)["result"]
        return numbers((line["metric"], line["values"]) for line in found)

    def until(self, query: str) -> float:
        """Wait until a query gives something; gives when it did, in Unix time."""
        self._until(lambda: self.now(query), what=query)
        return time.time()

    def label_values(self, label: str, series: str) -> list[str]:
        found: list[str] = self._get(f"label/{label}/values", **{"match[]": series})
        return found

    def _get(self, path: str, **arguments: Any) -> Any:
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(arguments)}", timeout=PATIENCE_S) as reply:
            return json.load(reply)["data"]

    def _until(self, ask: Any, what: str = "that it listens") -> Any:
        end = time.monotonic() + PATIENCE_S
        while not (found := ask()):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, f"waited for {PATIENCE_S} s: {what}"
            time.sleep(0.05)  # between two looks
        return found


def numbers(found: Iterable[tuple[Mapping[str, str], Iterable[tuple[float, str]]]]) -> dict[str, list[float]]:
    """What Prometheus answered, without NaN and Inf, and without what has nothing else."""
    lines = {named(labels): [float(text) for _, text in points] for labels, points in found}
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in lines.items()}
    return {name: values for name, values in finite.items() if values}


def named(labels: Mapping[str, str]) -> str:
    """A series as a table calls it: its labels' values."""
    return " ".join(value for name, value in sorted(labels.items()) if name != "__name__") or "-"
