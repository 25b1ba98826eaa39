"""Bytes per tier: a real Prometheus, the record and the kernel's counters of the pods' interfaces agree."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.stream import stream

from tests.cluster.conftest import Lab
from tests.support.records import summary_of

# The query of docs/metrics.md.
PER_TIER = 'sum by (link, direction) (fedstrata_link_bytes_total{end="parent"})'
WIDE = ("model.hidden=[18000]", "training.global_rounds=1", "method.clusters=3")  # 1.35 million weights, 5.4 MB
READ_COUNTERS = "print(*(open(f'/sys/class/net/eth0/statistics/{way}_bytes').read().strip() for way in ('rx', 'tx')))"


class Prometheus:
    """A Prometheus on this machine that scrapes pods by their addresses."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "fedstrata", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0", "--log.level=info",
        ]  # fmt: skip
        self.targets = len(targets)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.address = self._wait_listening()

    def _wait_listening(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r'msg="Listening on" address=(\S+)', line)
            if found:
                return found[1]
        raise AssertionError("prometheus ended before it listened")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        url = f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def scrapes(self) -> float:
        """How often every pod has been scraped; 0 while one of them has not been."""
        result = self.query(f"min(count_over_time(up[1h])) and count(up) == {self.targets}")
        return float(result[0]["value"][1]) if result else 0.0

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def prometheus(lab: Lab) -> Iterator[Prometheus]:
    """Prometheus over all pods of a run with a model of 5.4 MB."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs a prometheus on the PATH (Debian: apt-get install prometheus)")
    lab.up("experiments/digits.yaml", {"device": {"devicesPerPod": 5}}, sets=WIDE)
    pods = lab.pods("gps") + lab.pods("lps") + lab.pods("device")
    folder = lab.folder / "prometheus"
    folder.mkdir()
    server = Prometheus(folder, [f"{pod.status.pod_ip}:8080" for pod in pods])
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def record(lab: Lab, prometheus: Prometheus) -> Path:
    folder = lab.folder / "record"
    lab.here("collect", "--out", str(folder), "--quiet")
    return folder


def _scraped_after_the_end(prometheus: Prometheus) -> dict[tuple[str, str], float]:
    """The sums once every pod has been scraped three more times since the end of the run."""
    before = prometheus.scrapes()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if prometheus.scrapes() >= before + 3:
            result = prometheus.query(PER_TIER)
            return {(r["metric"]["link"], r["metric"]["direction"]): float(r["value"][1]) for r in result}
        threading.Event().wait(0.2)
    raise AssertionError("Prometheus does not scrape")


def test_the_documented_query_gives_the_records_bytes(prometheus: Prometheus, record: Path) -> None:
    expected = {(link, way): n for link, ways in summary_of(record)["bytes"].items() for way, n in ways.items()}
    assert _scraped_after_the_end(prometheus) == expected


def test_the_record_is_within_two_percent_of_the_pods_interfaces(lab: Lab, record: Path) -> None:
    received = sent = 0
    for pod in lab.pods("lps"):
        command = ["python3", "-c", READ_COUNTERS]
        said = stream(
            lab.core.connect_get_namespaced_pod_exec, pod.metadata.name, lab.namespace,
            command=command, stdout=True, stderr=True,
        )  # fmt: skip
        into, out = (int(number) for number in said.split())
        received, sent = received + into, sent + out
    found = summary_of(record)["bytes"]
    counted_in = found["device-lps"]["up"] + found["lps-gps"]["down"]
    counted_out = found["device-lps"]["down"] + found["lps-gps"]["up"]
    assert counted_in == pytest.approx(received, rel=0.02)
    assert counted_out == pytest.approx(sent, rel=0.02)
