"""The live page in a browser: from before the first device to the end of the run, without a reload."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedstrata.page import Feed, PageApp
from fedstrata.process.http import StatusServer
from fedstrata.process.metrics import ProcessMetrics
from tests.support.window import Page

Browser = Callable[..., Page]
WIDTHS = (400, 1600)
TEN = """
name: ten
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 6, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 4, examples_per_device: 60}
method: {name: one_shot, clusters: 2}
training: {global_rounds: 100, lps_rounds_per_global_round: 2, batch_size: 16}
"""
THOUSAND = """
name: thousand
partition:
  kind: tasks
  minority_ratio: 0
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 600, examples_per_device: 1}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 400, examples_per_device: 1}
model: {name: mlp, hidden: [8]}
method: {name: random, clusters: 8}
training: {global_rounds: 4, lps_rounds_per_global_round: 2, batch_size: 4}
"""


@dataclass(frozen=True)
class Started:
    """A run of this machine, and where its page is."""

    pid: int
    url: str

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Its devices, which are all in one process, stand still meanwhile."""
        while (devices := self._devices()) is None:
            time.sleep(0.01)
        os.kill(devices, signal.SIGSTOP)
        yield
        os.kill(devices, signal.SIGCONT)

    def _devices(self) -> int | None:
        family = [self.pid]
        with suppress(FileNotFoundError):  # a thread or a process that has ended meanwhile
            for parent in family:
                for task in Path(f"/proc/{parent}/task").iterdir():
                    for pid in (task / "children").read_text().split():
                        if b"\0-m\0device\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                            return int(pid)
                        family.append(int(pid))
        return None


@contextmanager
def a_run(folder: Path, experiment: str) -> Iterator[tuple[Started, Callable[[], dict[str, Any]]]]:
    """`fedstrata run --page` as it starts, and a call that waits for the end and gives the summary."""
    file = folder / "experiment.yaml"
    file.write_text(experiment)
    words = ("run", str(file), "--out", str(folder / "run"), "--page", "--json", "--device-processes", "1")
    with subprocess.Popen([sys.executable, "-m", "emulator", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = map(json.loads, process.stdout)
            url = next(event["url"] for event in told if event["event"] == "page")
            yield Started(process.pid, url), lambda: next(e["summary"] for e in told if e["event"] == "summary")
        finally:
            process.terminate()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("experiment", [TEN, THOUSAND], ids=["10 devices", "1000 devices"])
def test_a_page_follows_a_run_from_before_its_first_round_to_its_end(
    browser: Browser, tmp_path: Path, experiment: str
) -> None:
    pages = [browser(width) for width in WIDTHS]
    with a_run(tmp_path, experiment) as (run, ended):
        with run.held_up():
            for page in pages:
                page.open(run.url)
                page.until("document.querySelector('section svg')")
        summary = ended()
    for page, width in zip(pages, WIDTHS, strict=True):
        page.until("document.body.dataset.phase === 'completed'")
        phases = page.run("return window.phases")
        assert phases[0] == "enrolment", phases
        assert phases.index("training") < phases.index("completed"), phases
        assert page.fact("Mean accuracy").replace("\u00a0", " ") == f"{100 * summary['accuracy']['mean']:.1f} %"
        assert page.fact("Devices").replace("\u202f", "") == str(summary["devices"])
        marks = page.run("return document.querySelectorAll('section svg g > title').length")
        assert marks >= summary["devices"]
        assert all(sha[:12] in page.text for sha in summary["model_sha256"].values())
        assert page.run("return document.scrollingElement.scrollWidth") <= width
        assert page.console == []
        assert page.asked == {run.url.removeprefix("http://").rstrip("/")}


class Gps:
    """What of a GPS a page sees: a feed, and the server that may go away and come back."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.address = "127.0.0.1:0"

    @contextmanager
    def served(self) -> Iterator[str]:
        server = StatusServer(self.address, ProcessMetrics("gps").registry, lambda: True, PageApp(self.feed))
        self.address = server.address
        with server:
            yield f"http://{self.address}/"
            self.feed.close()
            self.feed = Feed()


def state(**changes: Any) -> dict[str, Any]:
    """A run of two devices, in training."""
    known: dict[str, Any] = {
        "experiment": "name: two\n",
        "summary/run_id": "two-1", "summary/name": "two", "summary/status": "running", "summary/devices": 2,
        "summary/clusters": {"lps-0": ["a", "b"]}, "summary/method": "fedavg", "summary/seed": 0, "summary/rounds": 1,
        "live/phase": "training", "live/has_record": False, "live/global_round": 1, "live/global_rounds": 4,
        "live/seconds": 60, "live/seconds_left": 180, "live/device_ids": ["a", "b"], "live/states": "gg",
        "live/waits": [],
    }  # fmt: skip
    return known | changes


HOSTILE = "<img src=x onerror=\"document.title='ran'\">"


def test_names_are_shown_as_text_whatever_they_hold(browser: Browser) -> None:
    gps = Gps()
    with gps.served() as url:
        page = browser(1600).open(url)
        gps.feed.publish(
            state(**{
                "summary/name": HOSTILE, "summary/method": HOSTILE, "summary/clusters": {HOSTILE: [HOSTILE, "b"]},
                "summary/clusters_rule": HOSTILE, "summary/device_tasks": {HOSTILE: HOSTILE, "b": "other"},
                "summary/excluded": [{"device": HOSTILE, "from": "round 1", "reason": HOSTILE}],
                "live/device_ids": [HOSTILE, "b"], "live/waits": [{"name": HOSTILE, "what": HOSTILE, "seconds": 9}],
                "relevance": {
                    "ids": [HOSTILE, "b"], "branches": [], "cut": None, "block": 1, "cells": "/wD//w==", "within": None,
                    "between": None,
                },
                "experiment": HOSTILE,
            }),
            [("x", [1, 1, HOSTILE, 2, 20, 0.5, 0.9, 0.1, 10, 20])],
        )  # fmt: skip
        page.until("document.body.dataset.phase === 'training'")
        page.run("document.querySelector('details').open = true")
        page.until("document.querySelector('details table')")
        assert page.text.count(HOSTILE) >= 8
        assert page.run("return document.querySelectorAll('img').length") == 0
        assert page.run("return document.title").endswith("Fedstrata run")
        assert page.console == []


def test_a_page_comes_back_by_itself_when_the_gps_does(browser: Browser) -> None:
    gps = Gps()
    with gps.served() as url:
        page = browser(1600).open(url)
        gps.feed.publish(state())
        page.until("document.body.dataset.phase === 'training'")
    page.until("document.body.innerText.includes('not connected')")
    with gps.served():
        gps.feed.publish(state(**{"live/phase": "evaluation"}))
        page.until("document.body.dataset.phase === 'evaluation'")
        assert page.run("return window.opened")
        assert "not connected" not in page.text


@pytest.mark.parametrize("width", WIDTHS)
def test_whom_the_run_waits_for_and_the_time_left_are_said(browser: Browser, width: int) -> None:
    gps = Gps()
    waits = [{"name": "b", "what": "its update of round 3 of lps-0", "seconds": 65}]
    with gps.served() as url:
        page = browser(width).open(url)
        gps.feed.publish(state(**{"live/waits": waits}))
        page.until("document.body.dataset.phase === 'training'")
        assert "Waits for b (its update of round 3 of lps-0, 1 min" in page.text
        assert "training, global round 1 of 4 done" in page.text
        assert "left" in page.text
        assert page.faults() == []


def test_how_far_devices_lie_apart_is_shown_of_each_round_and_at_the_end_of_each_device(browser: Browser) -> None:
    gps = Gps()
    with gps.served() as url:
        page = browser(1600).open(url)
        gps.feed.publish(state(), [("x", [1, 1, "lps-0", 2, 20, 0.5, 0.9, 0.1, 10, 20, 0.8, 0.95])])
        page.until("document.querySelector('svg[aria-label^=\"Devices in the newest round\"]')")
        said = page.run("return document.querySelector('svg[aria-label^=\"Devices in\"]').ariaLabel").replace(
            "\u00a0", " "
        )
        assert said == "Devices in the newest round. lps-0 from 80.0 % to 95.0 %"
        gps.feed.publish(state(**{"summary/device_accuracy": {"a": 0.75, "b": 1.0}}))
        page.until("document.querySelector('svg[aria-label^=\"Accuracy by device\"]')")
        assert "From 75.0 % to 100.0 % over 2 devices" in page.run(
            "return document.querySelector('svg[aria-label^=\"Accuracy by device\"]').ariaLabel"
        ).replace("\u00a0", " ")
        assert page.console == []
