"""A run of thousands of devices in a few pods: seconds by phase, memory and processor time by tier. By hand, with
Fashion-MNIST in a folder of each node:

    FEDSTRATA_DATA_SETS=/usr/share/datasets python -m pytest -s -m cluster tests/cluster/test_many_devices.py

FEDSTRATA_MANY_DEVICES is the number of devices, 10,000 unless set. FEDSTRATA_DEVICE_PODS is the number of their pods.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from benchmarks.suite.observed import TICKS
from tests.cluster.conftest import VALUES, Lab
from tests.support.records import summary_of

DATA_SETS = os.environ.get("FEDSTRATA_DATA_SETS", "")
DEVICES, PODS = (int(os.environ.get(*each)) for each in (
    ("FEDSTRATA_MANY_DEVICES", "10000"), ("FEDSTRATA_DEVICE_PODS", "4"),
))  # fmt: skip
LPSS = 10
TIERS = ("gps", "lps", "device")
FILE = """
name: many
data: {{name: fashion-mnist}}
partition: {{kind: iid, devices: {devices}, examples_per_device: {examples}}}
model: {{name: mlp, hidden: [32]}}
method: fedavg
topology: {{lps: {lps}}}
training: {{global_rounds: 3, lps_rounds_per_global_round: 1}}
"""
TIMEOUT_S = 1200
USED = """
grep VmHWM /proc/1/status
cat /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes 2>/dev/null
cut -d ')' -f 2 /proc/1/stat
"""  # cgroups of version 2, or of version 1


@dataclass(frozen=True, kw_only=True)
class Used:
    """The resources that a pod has used: the peak in MB of 10⁶ bytes, and processor seconds."""

    resident_mb: float
    cgroup_mb: float  # with the files that it has read
    cpu_s: float

    @classmethod
    def of(cls, lab: Lab, pod: str) -> "Used":
        """Ask a pod that runs."""
        command = ["kubectl", "-n", lab.namespace, "exec", pod, "--", "sh", "-c", USED]
        resident, cgroup, stat = subprocess.check_output(command, text=True, timeout=60).splitlines()
        fields = stat.split()
        return cls(
            resident_mb=int(resident.split()[1]) * 1024 / 1e6,
            cgroup_mb=int(cgroup) / 1e6,
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        )


def table(used: dict[str, list[Used]]) -> str:
    """The largest pod of each tier, the memory of all pods together, and their processor time."""
    lines = ["tier    pods  resident MB: most    all  cgroup MB: most    all  processor s"]
    for tier, pods in used.items():
        resident, cgroup = [pod.resident_mb for pod in pods], [pod.cgroup_mb for pod in pods]
        sizes = f"{max(resident):17.0f}  {sum(resident):5.0f}  {max(cgroup):15.0f}  {sum(cgroup):5.0f}"
        lines.append(f"{tier:6}  {len(pods):4}  {sizes}  {sum(pod.cpu_s for pod in pods):11.1f}")
    return "\n".join(lines)


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.skipif(not DATA_SETS, reason="needs FEDSTRATA_DATA_SETS (see head)")
def test_thousands_of_devices_in_a_few_pods_complete(lab: Lab, tmp_path: Path) -> None:
    file, chosen, out = tmp_path / "many.yaml", tmp_path / "values.yaml", tmp_path / "out"
    file.write_text(FILE.format(devices=DEVICES, examples=min(60, 60_000 // DEVICES), lps=LPSS))
    device = {"nodeSelector": {"tier": "edge"}, "devicesPerPod": -(-DEVICES // PODS)}  # of memory what `up` works out
    values = {**VALUES, "data": {"type": "hostPath", "hostPath": DATA_SETS}, "device": device}
    chosen.write_text(yaml.safe_dump(values))
    where = ("--namespace", lab.namespace, "--release", "many")
    began = time.monotonic()
    lab.fedstrata(
        "up", str(file), *where, "--values", str(chosen), "--timeout", str(TIMEOUT_S), timeout_s=TIMEOUT_S
    )  # fmt: skip
    up_s = time.monotonic() - began
    with lab.waiting("complete", "many", TIMEOUT_S) as wait:
        assert wait.wait(timeout=TIMEOUT_S) == 0
    completed_s = time.monotonic() - began
    used = {tier: [Used.of(lab, pod.metadata.name) for pod in lab.pods(tier, "many")] for tier in TIERS}
    print(f"\n{DEVICES} devices in {PODS} pods: ready after {up_s:.0f} s, complete after {completed_s:.0f} s")
    print(table(used))
    lab.fedstrata("collect", *where, "--out", str(out), "--quiet", timeout_s=TIMEOUT_S)
    found = summary_of(out)
    print("  ".join(f"{phase} {seconds:.1f} s" for phase, seconds in found["wall_seconds"].items()))
    assert found["status"] == "completed"
    assert found["excluded"] == []
    assert sum(map(len, found["clusters"].values())) == DEVICES
    lab.fedstrata("down", *where, "--delete-records", "--yes", timeout_s=TIMEOUT_S)
