"""Show the progress of a run in one of three displays: tables on a terminal, log lines, or JSON."""

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from emulator.console.console_tables import CLUSTERS_SHOWN, plain_table, traffic_table
from emulator.console.json_lines import print_json
from emulator.console.units import NO_VALUE, counted, decimal, human_seconds, measured
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import LINKS
from fedstrata.methods import uses_default
from fedstrata.process.child_processes import Restart
from fedstrata.process.quoting import printable
from fedstrata.record.summary import LinkBytes
from fedstrata.tasks import CLASSIFICATION, Metric
from fedstrata.v1 import gps_service_pb2 as pb

RESTARTS_SHOWN = 5
WAITS_SHOWN = 5


def traffic(status: pb.RunStatus) -> Mapping[str, LinkBytes]:
    """Return the bytes that have crossed each kind of link so far, up and down, as the parents counted them. The keys
    are `device-lps`, `lps-gps` and `device-gps`.
    """
    totals = {(link, direction): 0 for link in LINKS for direction in ("up", "down")}
    for entry in status.link_bytes:
        key = (entry.link, entry.direction)
        if entry.end == "parent" and key in totals:
            totals[key] += entry.bytes
    return {link: LinkBytes(up=totals[link, "up"], down=totals[link, "down"]) for link in LINKS}


def headline_of(status: pb.RunStatus) -> Metric:
    """Return the main metric of a run's task. Until a GPS has named a main metric, return the main metric of a
    classification.
    """
    said = status.headline
    if not said.name:
        return CLASSIFICATION.headline
    unit: Literal["percent", "plain"] = "percent" if said.is_percent else "plain"
    return Metric(name=said.name, title=said.title, unit=unit, higher_is_better=said.higher_is_better)


def mean_of(status: pb.RunStatus) -> float | None:
    """Return the unweighted mean of the main metric over the clusters that have measured it. If no cluster has measured
    it, return None.
    """
    values = [value for cluster in status.clusters if (value := _headline(cluster)) is not None]
    return sum(values) / len(values) if values else None


class Display:
    """Define how the progress of a run is shown. This base class shows only the address of the live page."""

    def open(self) -> AbstractContextManager[Any]:
        """Return a context manager. The display may draw while its block runs."""
        return nullcontext()

    def begins(self, experiment: Experiment) -> None:
        """Show, before the run's processes start, which settings the experiment leaves to defaults."""

    def show(self, status: pb.RunStatus) -> None:
        """Show a status."""

    def restarted(self, restart: Restart) -> None:
        """Show that a process died and is started again."""

    def page(self, url: str) -> None:
        """Show the address of the run's live page."""
        print(page_line(url), file=sys.stderr, flush=True)


class JsonLines(Display):
    """Print one JSON object per event, each on one line."""

    def show(self, status: pb.RunStatus) -> None:
        print_json({"event": "status"} | status_fields(status))

    def restarted(self, restart: Restart) -> None:
        print_json({"event": "restart", "process": restart.process, "cause": restart.cause, "count": restart.count})

    def page(self, url: str) -> None:
        print_json({"event": "page", "url": url})


class LogLines(Display):
    """Print a line for each phase and each global round, for output that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[str, int] | None = None
        self._waited: set[str] = set()

    def begins(self, experiment: Experiment) -> None:
        if uses_default(experiment):
            self._print(method_line(experiment))

    def show(self, status: pb.RunStatus) -> None:
        place = (status.phase, status.global_round)
        if place != self._last:
            self._last = place
            self._print(progress_line(status))
        waited = {wait.name for wait in status.waits}
        if waited - self._waited:
            self._print(waits_line(status))
        self._waited = waited

    def restarted(self, restart: Restart) -> None:
        self._print(restart_line(restart))

    def page(self, url: str) -> None:
        self._print(page_line(url))

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def method_line(experiment: Experiment) -> str:
    """Return a line that names the default method."""
    return f"method {experiment.method.name}: the default, because the experiment names none"


def can_draw_over(console: Console) -> bool:
    """Return whether lines of the console can be overwritten. This is true only for a real terminal. A notebook also
    claims to be a terminal, but cannot overwrite lines.
    """
    return console.is_terminal and console.file.isatty()


class LiveTables(Display):
    """Draw phase, rounds, clusters and bytes on a terminal, and update them in place."""

    def __init__(self, console: Console) -> None:
        self._status = pb.RunStatus(phase="starting")
        self._restarts: list[Restart] = []
        self._shown_at = time.monotonic()
        # Live draws when it is constructed, so this must follow the assignments above.
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=8, transient=True)

    def open(self) -> AbstractContextManager[Any]:
        return self._live

    def begins(self, experiment: Experiment) -> None:
        if uses_default(experiment):
            self._live.console.print(Text(method_line(experiment)), soft_wrap=True)

    def show(self, status: pb.RunStatus) -> None:
        self._status, self._shown_at = status, time.monotonic()

    def restarted(self, restart: Restart) -> None:
        self._restarts.append(restart)

    def page(self, url: str) -> None:
        self._live.console.print(Text(page_line(url)), soft_wrap=True)

    def _drawn(self) -> RenderableType:
        since_s = 0.0 if self._status.has_record else time.monotonic() - self._shown_at
        return drawn(self._status, self._restarts, seconds=self._status.seconds + since_s)


def progress_line(status: pb.RunStatus) -> str:
    """Return one line about a status: the phase and, in training, the global round and measured values."""
    parts = [printable(status.phase)]
    if status.phase == "training":
        parts.append(f"global round {status.global_round}/{status.global_rounds}")
        metric, mean = headline_of(status), mean_of(status)
        if mean is not None:
            parts.append(f"mean {metric.name} {measured(mean, metric)} after {_measured_rounds(status)}")
        parts += _so_far(status)
    if status.reason:
        parts.append(printable(status.reason))
    return ": ".join([parts[0], ", ".join(parts[1:])] if parts[1:] else parts)


def _measured_rounds(status: pb.RunStatus) -> str:
    """Return, as text, the global round after which the clusters had the models that were measured last: `round 1`,
    for example. If this round differs between clusters, return the first and the last, such as `rounds 1 to 3`.

    If some clusters have no measured model yet, the text also says how many have one.
    """
    found = [cluster.measured_round for cluster in status.clusters if _headline(cluster) is not None]
    first, last, count = min(found), max(found), len(status.clusters)
    rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
    return rounds if len(found) == count else f"{rounds} in {len(found)} of {counted(count, 'cluster')}"


def _so_far(status: pb.RunStatus) -> list[str]:
    """Return texts with the virtual time and the ε of a run so far. Values that the run does not have are left out."""
    parts = []
    if status.virtual_ns:
        parts.append(f"virtual time {human_seconds(status.virtual_ns / 1e9)}")
    if status.HasField("epsilon_spent"):
        parts.append(f"ε {status.epsilon_spent:.3g} spent")
    return parts


def waits_line(status: pb.RunStatus) -> str:
    """Return a line with the devices and LPSs for which the run waits. If it waits for nobody, return an empty text."""
    if not status.waits:
        return ""
    named = [f"{printable(w.name)} ({printable(w.what)}, {human_seconds(w.seconds)})" for w in status.waits]
    more = len(named) - WAITS_SHOWN
    return f"waits for {', '.join(named[:WAITS_SHOWN])}" + (f" and {more} more" if more > 0 else "")


def page_line(url: str) -> str:
    return f"page {url}"


def restart_line(restart: Restart) -> str:
    if restart.instead_of:
        return f"{restart.cause}; {restart.process} is started instead"
    return f"{restart.process} died by {restart.cause} and is started again (restart {restart.count})"


def drawn(status: pb.RunStatus, restarts: list[Restart], *, seconds: float) -> RenderableType:
    """Return the drawing of a status for a terminal. `seconds` is the time since the run began."""
    parts: list[RenderableType] = [_head(status, seconds)]
    if status.clusters:
        parts.append(_cluster_table(status))
    parts.append(traffic_table(traffic(status)))
    if status.waits:
        parts.append(Text(waits_line(status), style="yellow"))
    parts += [Text(restart_line(restart), style="yellow") for restart in restarts[-RESTARTS_SHOWN:]]
    return Group(*parts)


def _head(status: pb.RunStatus, seconds: float) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(status.global_rounds, 1), completed=status.global_round, width=30)
    rounds = f"global round {status.global_round}/{status.global_rounds}" if status.global_rounds else ""
    rounds = ", ".join([rounds, *_so_far(status)])
    states = ", ".join(f"{entry.devices} {printable(entry.state)}" for entry in status.devices)
    phase = Text(printable(status.phase), style="bold")
    grid.add_row(phase, bar, Text(rounds), Text(states), Text(human_seconds(seconds), style="dim"))
    return grid


def _cluster_table(status: pb.RunStatus) -> Table:
    metric = headline_of(status)
    table = plain_table("cluster", numbers=["devices", "LPS round", "loss", metric.name, "after round"])
    for cluster in status.clusters[:CLUSTERS_SHOWN]:
        table.add_row(
            Text(printable(cluster.home_id)),
            str(cluster.devices),
            str(cluster.lps_round),
            decimal(cluster.loss if cluster.is_evaluated else None),
            measured(_headline(cluster), metric),
            str(cluster.measured_round) if cluster.is_evaluated else NO_VALUE,
        )
    if len(status.clusters) > CLUSTERS_SHOWN:
        table.add_row(f"and {counted(len(status.clusters) - CLUSTERS_SHOWN, 'cluster')} more")
    return table


def status_fields(status: pb.RunStatus) -> dict[str, Any]:
    """Return a status as a mapping for JSON. Values that are not measured yet are null."""
    metric = headline_of(status)
    return {
        "run_id": status.run_id,
        "phase": status.phase,
        "reason": status.reason,
        "global_round": status.global_round,
        "global_rounds": status.global_rounds,
        "seconds": round(status.seconds, 3),
        "virtual_seconds": status.virtual_ns / 1e9 if status.virtual_ns else None,
        "epsilon_spent": status.epsilon_spent if status.HasField("epsilon_spent") else None,
        "lps_wanted": status.lps_wanted,
        "devices": {entry.state: entry.devices for entry in status.devices},
        "metric": {"name": metric.name, "unit": metric.unit, "higher_is_better": metric.higher_is_better},
        "clusters": [_cluster_fields(cluster, metric) for cluster in status.clusters],
        "waits": [{"name": w.name, "what": w.what, "seconds": round(w.seconds, 3)} for w in status.waits],
        "bytes": {link: {"up": bytes_.up, "down": bytes_.down} for link, bytes_ in traffic(status).items()},
    }


def _headline(cluster: pb.ClusterStatus) -> float | None:
    return cluster.headline if cluster.is_evaluated and cluster.HasField("headline") else None


def _cluster_fields(cluster: pb.ClusterStatus, metric: Metric) -> dict[str, Any]:
    return {
        "cluster_id": cluster.home_id,
        "devices": cluster.devices,
        "lps_round": cluster.lps_round,
        "measured_round": cluster.measured_round if cluster.is_evaluated else None,
        "loss": cluster.loss if cluster.is_evaluated else None,
        metric.name: _headline(cluster),
    }
