"""What processes serve as their counts of bytes agrees with the record, at both ends, and with the kernel."""

import re
import shutil
import subprocess
from collections import Counter

import pytest

from tests.support.programs import LINKS, BigRun, Counts, scraped_bytes, total_bytes


@pytest.mark.runs
def test_the_processes_serve_the_counts_that_the_record_adds_up(big_run: BigRun) -> None:
    counts: Counts = Counter()
    for address in big_run.http.values():
        counts.update(scraped_bytes(address))
    assert big_run.summary["bytes"] == {
        link: {way: total_bytes(counts, link, way, "parent") for way in ("up", "down")} for link in LINKS
    }
    children = {key[:3]: count for key, count in counts.items() if key[3] == "child" and count}
    assert children == {key[:3]: count for key, count in counts.items() if key[3] == "parent" and count}


@pytest.mark.runs
@pytest.mark.skipif(not shutil.which("ss"), reason="needs ss of iproute2, which shows the kernel's counts")
@pytest.mark.parametrize(("child", "parent", "link"), [("device", "lps", "device-lps"), ("lps", "gps", "lps-gps")])
def test_the_kernel_counts_the_same_within_two_percent(big_run: BigRun, child: str, parent: str, link: str) -> None:
    sent, received = kernel_counts(big_run.pids[child], port=int(big_run.grpc[parent].rpartition(":")[2]))
    counts: Counts = Counter(scraped_bytes(big_run.http[child]))
    up, down = (total_bytes(counts, link, way, "child") for way in ("up", "down"))
    assert min(up, down) > 10_000_000
    assert up <= sent <= 1.02 * up
    assert down <= received <= 1.02 * down


def kernel_counts(pid: int, *, port: int) -> tuple[int, int]:
    """Bytes that the kernel sent and received on a process's connections to a local port."""
    shown = subprocess.run(
        ["ss", "-tinpHO", "state", "established", f"dport = :{port}"], capture_output=True, text=True, check=True
    )
    lines = [line for line in shown.stdout.splitlines() if f"pid={pid}," in line]
    assert lines, f"process {pid} has no connection to port {port} any more: {shown.stdout}"
    return field_sum(lines, "bytes_sent"), field_sum(lines, "bytes_received")


def field_sum(lines: list[str], name: str) -> int:
    return sum(int(found[1]) for line in lines if (found := re.search(rf"\b{name}:(\d+)", line)))
