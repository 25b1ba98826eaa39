"""Record the series that alerts look at, of runs that are well and of runs that are not: files in recorded/.

    python -m tests.chart.record_series          # 25 minutes: runs of eight minutes, four at once

Each run is of real processes on this machine, scraped every five seconds as Prometheus would; a file holds its series
in promtool's notation, with time counted from the first scrape, and when what is wrong began;
test_alerts.py judges them.
"""

import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import URLError

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.programs import Program, http_get

HERE = Path(__file__).parent
EVERY_S = 5
LENGTH_S = 480
AT_ONCE = 4
WANTED = {
    "fedstrata_run_info", "fedstrata_progress_timestamp_seconds", "fedstrata_phase", "fedstrata_waits_seconds",
    "fedstrata_updates_total",
}  # fmt: skip
PROGRESS = "fedstrata_progress_timestamp_seconds"
EXPERIMENT = """
name: recorded
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 2, examples_per_device: 60}
model: {name: mlp, hidden: [16]}
method: {name: oracle}
training: {global_rounds: ROUNDS, lps_rounds_per_global_round: 1, batch_size: 20}
MORE
"""


class Recorded:
    """One run, its programs and what was scraped of them."""

    def __init__(self, folder: Path, experiment: str, stack: ExitStack) -> None:
        self.began: float | None = None  # when what is wrong began
        self._folder, self._stack = folder, stack
        self._ports: dict[str, str] = {}
        self._pages: dict[str, str] = {}
        self._lives = 0
        self._series: dict[str, list[str]] = {}
        self._scrapes = 0
        folder.mkdir()
        (folder / "experiment.yaml").write_text(experiment)
        self._start = time.time()

    def program(self, module: str, name: str, *words: str) -> Program:
        """Start one of the run's programs; `name` is where it was before, if it was."""
        self._lives += 1
        common = ("--experiment", str(self._folder / "experiment.yaml"), "--state", str(self._folder / name))
        log = self._folder / f"{name}.{self._lives}.log"
        found = self._stack.enter_context(Program(module, *common, *words, log=log))
        said = found.addresses() if module != "device" else {}
        if module == "gps":
            self._ports["gps"] = said["grpc"]
        if "http" in said:
            self._pages[name] = said["http"]
        return found

    def gps(self) -> Program:
        return self.program("gps", "gps", *(("--listen", self._ports["gps"]) if "gps" in self._ports else ()))

    def lps(self, number: int) -> Program:
        return self.program("lps", f"lps-{number}", "--gps", self._ports["gps"], "--lps-id", f"lps-{number}")

    def devices(self, indexes: str) -> Program:
        return self.program("device", f"devices-{indexes}", "--gps", self._ports["gps"], "--devices", indexes)

    def all_but(self, devices: str) -> Program:
        """A GPS, which is returned, two LPSs, and devices."""
        gps = self.gps()
        self.lps(0)
        self.lps(1)
        self.devices(devices)
        return gps

    def value(self, name: str, **labels: str) -> float:
        """A metric of the GPS as it is now; none is zero."""
        for sample in _samples(self._pages["gps"]):
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
        return 0.0

    def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert self.seconds < LENGTH_S, "it never came to that"
            time.sleep(0.2)

    def until_round(self, number: int) -> None:
        self.until(lambda: self.global_round >= number or self.is_over)

    @property
    def global_round(self) -> int:
        return int(self.value("fedstrata_round", tier="gps"))

    @property
    def is_over(self) -> bool:
        return self.seconds > LENGTH_S - EVERY_S

    def pause(self, seconds: float) -> None:
        """Let time go by; what is recorded are runs in which it does."""
        time.sleep(max(0.0, min(seconds, LENGTH_S - self.seconds)))

    @property
    def seconds(self) -> float:
        return time.time() - self._start

    def goes_wrong(self) -> None:
        self.began = self.seconds

    def follow(self) -> None:
        """Scrape until the time is over."""
        while self.seconds < LENGTH_S:
            self._scrape()
            self._scrapes += 1
            time.sleep(max(0.0, self._scrapes * EVERY_S - self.seconds))

    def _scrape(self) -> None:
        found: dict[str, str] = {}
        for instance, address in list(self._pages.items()):
            for sample in _samples(address):
                if sample.name in WANTED:
                    name = _named(sample.name, sample.labels | {"instance": instance})
                    found[name] = self._relative(sample.name, sample.value)
        for name in found.keys() - self._series.keys():
            self._series[name] = ["_"] * self._scrapes
        for name, values in self._series.items():
            had = bool(values) and values[-1] not in {"_", "stale"}
            values.append(found.get(name, "stale" if had else "_"))

    def _relative(self, name: str, value: float) -> str:
        return f"{value - self._start if name == PROGRESS and value else value:.10g}"

    def told(self) -> dict[str, object]:
        series = {name: " ".join(_runs(values)) for name, values in sorted(self._series.items())}
        return {"began_s": None if self.began is None else round(self.began), "series": series}


def _samples(address: str) -> Iterator[Sample]:
    """What a program's page says now; nothing while it is away."""
    with suppress(URLError, OSError):
        for family in text_string_to_metric_families(http_get(address, "/metrics")[1]):
            yield from family.samples


def _named(name: str, labels: dict[str, str]) -> str:
    return name + "{" + ",".join(["OF", *(f'{label}="{value}"' for label, value in sorted(labels.items()))]) + "}"


def _runs(values: list[str]) -> list[str]:
    """In promtool's notation: what stays for n more scrapes is written once."""
    told: list[str] = []
    place = 0
    while place < len(values):
        more = 0
        while place + more + 1 < len(values) and values[place + more + 1] == values[place]:
            more += 1
        value = values[place]
        told.append(value if not more else f"_x{more + 1}" if value == "_" else f"{value}x{more}")
        place += more + 1
    return told


# --- runs that are well ---------------------------------------------------------------------------


def devices_that_enrol_one_by_one(run: Recorded) -> None:
    run.all_but("0")
    for index in range(1, 5):
        run.pause(12)
        run.devices(str(index))


def a_gps_restarted_after_the_end_of_its_run(run: Recorded) -> None:
    gps = run.all_but("0-4")
    run.until(lambda: run.value("fedstrata_phase", phase="completed") == 1)
    run.pause(60)
    _killed(gps)
    run.pause(20)
    run.gps()


def a_gps_killed_and_back_in_training(run: Recorded) -> None:
    gps = run.all_but("0-4")
    run.until_round(3)
    _killed(gps)
    run.pause(30)
    run.gps()


def slow_boards(run: Recorded) -> None:
    run.all_but("0-2")
    slow = run.devices("3-4").process
    run.until_round(1)
    while not run.is_over:
        slow.send_signal(signal.SIGSTOP)
        run.pause(20)
        slow.send_signal(signal.SIGCONT)
        run.until_round(1 + run.global_round)


def a_device_that_comes_back(run: Recorded) -> None:
    run.all_but("0-2")
    gone = run.devices("3-4")
    run.until_round(3)
    _killed(gone)
    run.pause(20)
    run.devices("3-4")


# --- runs that are not ----------------------------------------------------------------------------


def no_gps(run: Recorded) -> None:
    gps = run.all_but("0-4")
    run.until_round(3)
    run.goes_wrong()
    _killed(gps)


def a_stall_in_enrolment(run: Recorded) -> None:
    run.all_but("0-3")
    run.goes_wrong()


def a_stall_in_the_first_round(run: Recorded) -> None:
    run.all_but("0-3")
    gone = run.devices("4")
    run.until(lambda: run.value("fedstrata_phase", phase="training") == 1)
    run.goes_wrong()
    _killed(gone)


def a_device_that_is_gone(run: Recorded) -> None:
    run.all_but("0-3")
    gone = run.devices("4")
    run.until_round(3)
    run.goes_wrong()
    _killed(gone)


def a_run_that_fails(run: Recorded) -> None:
    run.goes_wrong()
    run.all_but("0-3")


def updates_that_are_refused(run: Recorded) -> None:
    run.goes_wrong()
    run.all_but("0-4")


def _killed(program: Program) -> None:
    program.process.kill()
    program.process.wait()


ENDLESS = {"ROUNDS": "1000000"}
WELL: dict[Callable[[Recorded], None], dict[str, str]] = {
    devices_that_enrol_one_by_one: ENDLESS,
    a_gps_restarted_after_the_end_of_its_run: {"ROUNDS": "20"},
    a_gps_killed_and_back_in_training: ENDLESS,
    slow_boards: ENDLESS,
    a_device_that_comes_back: ENDLESS,
}
SICK: dict[Callable[[Recorded], None], dict[str, str]] = {
    no_gps: ENDLESS,
    a_stall_in_enrolment: ENDLESS,
    a_stall_in_the_first_round: ENDLESS,
    a_device_that_is_gone: ENDLESS,
    a_run_that_fails: {"ROUNDS": "20", "MORE": "deadlines: {enrolment: {deadline_s: 60}}"},
    updates_that_are_refused: {
        **ENDLESS, "oracle": "fedavg", "devices: 2, examples_per_device: 60": "devices: 2, examples_per_device: 300",
        "MORE": "deadlines: {lps: {quorum_ratio: 0.3}, gps: {quorum_ratio: 0.5}}\nbounds: {max_update_norm: 0.15}",
    },
}  # fmt: skip


def _record(story: Callable[[Recorded], None], changes: dict[str, str], folder: Path) -> dict[str, object]:
    text = EXPERIMENT
    for name, value in {"MORE": "", **changes}.items():
        text = text.replace(name, value)
    with ExitStack() as stack:
        run = Recorded(folder, text, stack)
        following = threading.Thread(target=run.follow)
        following.start()
        try:
            story(run)
        finally:
            following.join()
        return run.told()


def main() -> None:
    """Record the stories that are named, or all."""
    stories = {story.__name__: (story, changes) for story, changes in (WELL | SICK).items()}
    chosen = sys.argv[1:] or list(stories)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = {name: pool.submit(_record, *stories[name], Path(folder) / name) for name in chosen}
        for name, job in jobs.items():
            path = HERE / "recorded" / f"{name}.json"
            path.write_text(json.dumps(job.result(), indent=1) + "\n")
            print(path.name)


if __name__ == "__main__":
    main()
