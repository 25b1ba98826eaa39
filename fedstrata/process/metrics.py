"""The metrics of a process, served at /metrics: bytes per link, rounds, updates.

Bytes are counted when messages are serialised and parsed (`fedstrata.rpc.counting`). They are never estimated.
"""

import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

LINK_LABELS = ("link", "direction", "kind", "end")
PHASES = ("enrolment", "relevance", "grouping", "training", "evaluation", "completed", "failed")
# Buckets in seconds, for rounds of small models on one core up to rounds of an hour on boards.
ROUND_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
STALENESS_BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True, kw_only=True)
class LinkKey:
    """Identify a count of bytes by link, direction, kind, and the end (child or parent) that counts."""

    link: str
    direction: str
    kind: str
    end: str


class LinkMeter(Collector):
    """Count the bytes of each `LinkKey`."""

    def __init__(self) -> None:
        self._bytes: defaultdict[LinkKey, list[int]] = defaultdict(lambda: [0])  # one count each, changed by `counter`
        self.questions: frozenset[str] = frozenset()  # names of questions with their own kind of bytes
        self._earlier: Counter[LinkKey] = Counter()  # the part of the counts from before this process
        self._is_counting = True

    def counter(self, key: LinkKey) -> Callable[[int], None]:
        """Return a function that adds a number of bytes to the count of `key`."""
        count = self._bytes[key]

        def add(size: int) -> None:
            if self._is_counting:
                count[0] += size

        return add

    def end(self) -> None:
        """Count no further bytes, because the run is over. For example, a pod that is replaced later enrols again, but
        these bytes are no part of the run.
        """
        self._is_counting = False

    def go_on_from(self, counts: Mapping[LinkKey, int]) -> None:
        """Add the counts that this process had before its restart. If this function is called again with larger counts,
        add only the difference.
        """
        for key, count in counts.items():
            more = max(0, count - self._earlier[key])
            self._earlier[key] += more
            self._bytes[key][0] += more

    def snapshot(self) -> Mapping[LinkKey, int]:
        """Return all counts so far."""
        counts = list(self._bytes.items())  # a copy, because other threads call this function
        return {key: count for key, [count] in counts if count}

    def total(self, link: str, direction: str, end: str) -> int:
        """Return the number of bytes of all kinds on one link, in one direction, counted at one end."""
        return sum(
            count
            for key, [count] in self._bytes.items()
            if (key.link, key.direction, key.end) == (link, direction, end)
        )

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Yield the counts as metrics of Prometheus."""
        family = CounterMetricFamily(
            "fedstrata_link_bytes", "Bytes of messages, counted when serialised and parsed.", labels=LINK_LABELS
        )
        for key, count in sorted(self.snapshot().items(), key=lambda item: str(item[0])):
            family.add_metric([key.link, key.direction, key.kind, key.end], count)
        yield family


OUTCOMES = ("accepted", "late", "rejected")  # possible outcomes of an update


class ProcessMetrics:
    """Hold the metrics of one process, in a separate registry of Prometheus."""

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self.registry = CollectorRegistry()
        self.links = LinkMeter()
        self.registry.register(self.links)
        ProcessCollector(registry=self.registry)  # processor time and memory, read at each scrape
        gauge, histogram = partial(Gauge, registry=self.registry), partial(Histogram, registry=self.registry)
        counter = partial(PrometheusCounter, registry=self.registry)
        about = "Open round, counted from 0: an LPS round at an LPS, a global round at the GPS."
        self._round = gauge("fedstrata_round", about, ["tier"])
        self._duration = histogram(
            "fedstrata_round_duration_seconds", "Length of a round.", ["tier"], buckets=ROUND_BUCKETS
        )
        about = "Age of the model of an update that an asynchronous round has taken, in LPS rounds."
        self._staleness = histogram("fedstrata_update_staleness_rounds", about, ["tier"], buckets=STALENESS_BUCKETS)
        updates = counter("fedstrata_updates", "Received updates by outcome.", ["tier", "outcome"])
        # All counts start at 0. Otherwise Prometheus would see no increase when the first update is counted. They are
        # kept, because looking up a count takes longer than counting.
        self._outcomes = {o: updates.labels(tier, o) for o in OUTCOMES if tier != "device"}
        about = "Calls that a process refused because of the caller, and uploads that it gave up."
        self._refused = counter("fedstrata_refused", about, ["reason"])
        self._devices = gauge("fedstrata_devices", "At the GPS: devices by state.", ["state"])
        self._measured: dict[str, Gauge] = {}  # gauges by metric of the task
        self._loss = gauge(
            "fedstrata_loss", "At the GPS: mean loss of the same model on the same examples.", ["lps_id"]
        )
        self._run = _RunMetrics(self.registry if tier == "gps" else None)

    def certificate(self, end: Callable[[], float]) -> None:
        """Show when the certificate of this process ends. At each scrape, `end` returns this time, in seconds since
        1970.
        """
        about = "Unix time at which the certificate of this process ends."
        Gauge("fedstrata_certificate_end_timestamp_seconds", about, registry=self.registry).set_function(end)

    def state(self, folder: Path) -> None:
        """Show how much of the file system of the state folder is free."""
        about = "Free share of the file system that has the state of this process."
        gauge = Gauge("fedstrata_state_free_ratio", about, registry=self.registry)
        gauge.set_function(lambda: _free_ratio(folder))

    def run(self, run_id: str, *, experiment: str, method: str, global_rounds: int) -> None:
        """Set the metrics of the run: id, experiment, method and number of global rounds. Only the GPS calls this."""
        self._run.info.labels(run_id, experiment, method).set(1)
        self._run.global_rounds.set(global_rounds)

    def phase(self, phase: str) -> None:
        """Set the metric for the phase of the run."""
        for other in PHASES:
            self._run.phase.labels(other).set(other == phase)

    def refused(self, reason: str) -> None:
        """Count a call that was refused because of the caller's identity, rights or number of calls. Also count an
        upload that took too long. `reason` is a label of the count.
        """
        self._refused.labels(reason).inc()

    def progressed(self) -> None:
        """Note that the run has made progress now."""
        self._run.progressed.set_to_current_time()

    def waits(self, seconds: Mapping[str, float], awaited: int) -> None:
        """Set the metrics for the longest waits of the run, in seconds by device or LPS. `awaited` is the number of all
        devices and LPSs that the run waits for.
        """
        for who in self._run.named - set(seconds):
            self._run.waits.remove(who)
        for who, waited_s in seconds.items():
            self._run.waits.labels(who).set(waited_s)
        self._run.named = set(seconds)
        self._run.awaited.set(awaited)

    def round_opened(self, number: int) -> None:
        self._round.labels(self.tier).set(number)

    def round_closed(self, seconds: float) -> None:
        self._duration.labels(self.tier).observe(seconds)

    def taken(self, staleness: Iterable[int]) -> None:
        """Observe the staleness of updates that an asynchronous round has taken."""
        for rounds in staleness:
            self._staleness.labels(self.tier).observe(rounds)

    def update(self, outcome: str) -> None:
        """Count an update that was accepted, late or rejected."""
        self._outcomes[outcome].inc()

    def devices(self, states: Mapping[str, int]) -> None:
        """Set the metric for the number of devices in each state."""
        for state, count in states.items():
            self._devices.labels(state).set(count)

    def evaluated(self, lps_id: str, gauges: Mapping[str, str], measured: Mapping[str, float | None]) -> None:
        """Set the gauges for the loss and the other measured values of a cluster. `gauges` has the name of each value's
        gauge, and `measured` has the values.
        """
        for name, gauge in gauges.items():
            if name not in self._measured:
                about = f"At the GPS: {name} of a cluster's last measured model on held-out examples."
                self._measured[name] = Gauge(f"fedstrata_{gauge}", about, ["lps_id"], registry=self.registry)
            if (value := measured[name]) is not None:
                self._measured[name].labels(lps_id).set(value)
        if (loss := measured["loss"]) is not None:
            self._loss.labels(lps_id).set(loss)


def _free_ratio(folder: Path) -> float:
    """Return the free share of a folder's file system, from 0 to 1. If the folder cannot be read, return NaN."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return math.nan
    return found.free / found.total


class _RunMetrics:
    """Hold the metrics of the whole run, which only the GPS shows."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        gauge = partial(Gauge, registry=registry)
        about = "At the GPS: 1, with the run as labels."
        self.info = gauge("fedstrata_run_info", about, ["run_id", "experiment", "method"])
        self.global_rounds = gauge("fedstrata_global_rounds", "At the GPS: number of global rounds in the experiment.")
        self.phase = gauge("fedstrata_phase", "At the GPS: 1 for the current phase, 0 for the others.", ["phase"])
        about = "At the GPS: Unix time of the last progress: a device enrolled, a round ended, or a phase began."
        self.progressed = gauge("fedstrata_progress_timestamp_seconds", about)
        self.progressed.set_to_current_time()
        about = "At the GPS: devices and LPSs that the run has awaited for over five seconds."
        self.awaited = gauge("fedstrata_awaited", about)
        about = "At the GPS: the ten longest waits for a device or LPS."
        self.waits = gauge("fedstrata_waits_seconds", about, ["who"])
        self.named: set[str] = set()
