"""Bytes are counted where messages are serialised, and all who count agree: both ends, the record, the kernel."""

import json
import re
import shutil
import subprocess
from collections import Counter

import pytest

from tests.support.programs import BigRun, FinishedRun, events, scraped_bytes

LINKS = ("device-gps", "device-lps", "lps-gps")
Counts = Counter[tuple[str, str, str, str]]  # bytes by link, direction, kind and end


@pytest.fixture(scope="module", params=[1, 4], ids=["one device process", "four device processes"])
def finished(request: pytest.FixtureRequest, cli_runs: dict[int, FinishedRun]) -> FinishedRun:
    return cli_runs[request.param]


def counted_by_all(run: FinishedRun) -> Counts:
    """What the processes of a run had counted when they stopped, added up."""
    counts: Counts = Counter()
    stopped = [event for log in (run.folder / "logs").iterdir() for event in events(log) if event["event"] == "stopped"]
    assert len(stopped) == len(list((run.folder / "logs").iterdir()))
    for event in stopped:
        for link, direction, kind, end, count in event["bytes"]:
            counts[link, direction, kind, end] += count
    return counts


def test_the_records_bytes_are_the_sum_of_what_the_parents_counted(finished: FinishedRun) -> None:
    counts = counted_by_all(finished)
    recorded = json.loads((finished.folder / "summary.json").read_text())["bytes"]
    assert recorded == {link: {way: total(counts, link, way, "parent") for way in ("up", "down")} for link in LINKS}
    assert all(recorded[link][way] > 0 for link in LINKS for way in ("up", "down"))


def test_both_ends_of_every_link_count_the_same(finished: FinishedRun) -> None:
    counts = counted_by_all(finished)
    at_children = {key[:3]: count for key, count in counts.items() if key[3] == "child" and count}
    at_parents = {key[:3]: count for key, count in counts.items() if key[3] == "parent" and count}
    assert at_children == at_parents


def test_the_last_status_and_the_record_say_the_same_bytes(finished: FinishedRun) -> None:
    *_, last, summary = finished.printed
    assert last["event"] == "status"
    assert summary["event"] == "summary"
    assert last["bytes"] == summary["summary"]["bytes"]


@pytest.mark.runs
def test_the_processes_serve_the_counts_that_the_record_adds_up(big_run: BigRun) -> None:
    counts: Counts = Counter()
    for address in big_run.http.values():
        counts.update(scraped_bytes(address))
    assert big_run.summary["bytes"] == {
        link: {way: total(counts, link, way, "parent") for way in ("up", "down")} for link in LINKS
    }
    children = {key[:3]: count for key, count in counts.items() if key[3] == "child" and count}
    assert children == {key[:3]: count for key, count in counts.items() if key[3] == "parent" and count}


@pytest.mark.runs
@pytest.mark.skipif(not shutil.which("ss"), reason="needs ss of iproute2, which shows the kernel's counts")
@pytest.mark.parametrize(("child", "parent", "link"), [("device", "lps", "device-lps"), ("lps", "gps", "lps-gps")])
def test_the_kernel_counts_the_same_within_two_percent(big_run: BigRun, child: str, parent: str, link: str) -> None:
    sent, received = kernel_counts(big_run.pids[child], port=int(big_run.grpc[parent].rpartition(":")[2]))
    counts: Counts = Counter(scraped_bytes(big_run.http[child]))
    up, down = (total(counts, link, way, "child") for way in ("up", "down"))
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


def total(counts: Counts, link: str, direction: str, end: str) -> int:
    return sum(count for key, count in counts.items() if (key[0], key[1], key[3]) == (link, direction, end))
