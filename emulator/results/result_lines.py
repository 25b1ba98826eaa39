"""Print the result of a run in a few lines."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from emulator.console.console_tables import CLUSTERS_SHOWN, plain_table, traffic_table
from emulator.console.energy_text import energy_line
from emulator.console.units import counted, decimal, grouped, human_seconds, measured
from emulator.results.best_round import best_round, measured_rounds
from emulator.results.read_record import RunRecord
from fedstrata.process.quoting import printable
from fedstrata.record.summary import Summary, measured_on
from fedstrata.record.timeline import PARTS, Virtual


def print_result(record: RunRecord, report: Path, console: Console) -> None:
    """Print the main metric, the clusters, the bytes and the time of a run, and the paths of its files."""
    summary = record.summary
    took = f" in {human_seconds(summary.total_seconds)}" if summary.total_seconds is not None else ""
    console.print(Text(f"{printable(record.name)} {summary.status}{took}", style="bold"))
    metric, found = summary.headline, summary.of_headline
    if summary.mean is not None:
        console.print(metric_table(summary))
        console.print(f"{metric.name} is measured on {measured_on(summary)}", soft_wrap=True)
        if (rounds := measured_rounds(record)) and len(rounds) > 1:
            best = best_round(record, rounds)
            console.print(
                f"best of {counted(len(rounds), 'measured round')}: {measured(rounds[best], metric)} in global round "
                f"{best}; last: {measured(summary.mean, metric)}",
                soft_wrap=True,
            )
        if found.tasks:
            tasks = plain_table("task", numbers=[metric.name])
            for name, value in found.tasks.items():
                tasks.add_row(Text(printable(name)), measured(value, metric))
            console.print(tasks)
    console.print(traffic_table(summary.traffic))
    print_timing(summary, console)
    if summary.adjusted_rand_index is not None:
        console.print(f"adjusted Rand index  {decimal(summary.adjusted_rand_index)}")
    if summary.attacks is not None:
        of = len(summary.attacks.devices) + len(summary.attacks.lps)
        honest = measured(summary.attacks.honest[metric.name], metric)
        console.print(f"with attacks of {grouped(of)} devices or LPSs; {metric.name} of honest devices {honest}")
    if summary.excluded:
        excluded = {each.device for each in summary.excluded}  # devices and LPSs, each perhaps in several rounds
        console.print(f"excluded: {grouped(len(excluded))}; summary.json says which and why")
    places = (("record", record.folder), ("report", report), ("logs", record.folder / "logs"))
    for what, path in ((what, path) for what, path in places if path.exists()):
        console.print(Text(f"{what:<7} {path}"), soft_wrap=True)


def print_timing(summary: Summary, console: Console) -> None:
    """Print what a run with a clock has in addition: times and energy."""
    if summary.virtual is not None:
        console.print(virtual_table(summary.virtual))
    if summary.real is not None:
        within = f"{summary.real.links - summary.real.outside} of {summary.real.links}"
        console.print(
            f"real clock: {within} links and boards had their configured rates; see links.csv", soft_wrap=True
        )
    if summary.energy is not None:
        console.print(Text(printable(energy_line(summary.energy))), soft_wrap=True)


def metric_table(summary: Summary) -> Table:
    """Return a table with a row per cluster (its number of devices, and its final main metric), and the mean over
    clusters.
    """
    metric = summary.headline
    table = plain_table("LPS", numbers=["devices", metric.name])
    shown = list(summary.clusters)[:CLUSTERS_SHOWN]
    for lps_id in shown:
        devices = str(len(summary.clusters[lps_id]))
        table.add_row(Text(printable(lps_id)), devices, measured(summary.of_headline.clusters.get(lps_id), metric))
    if len(shown) < len(summary.clusters):
        table.add_row(f"and {len(summary.clusters) - len(shown)} more")
    table.add_row("mean", str(summary.devices), measured(summary.mean, metric), style="bold")
    return table


def virtual_table(virtual: Virtual) -> Table:
    """Return a table of virtual times. The row for global rounds has means over LPSs, and the row for LPS rounds has
    means over devices. If devices answered questions before training, the table also has a row for the questions.
    """
    table = plain_table(f"virtual time: {human_seconds(virtual.seconds)}", numbers=PARTS)
    if virtual.before.total:
        table.add_row("questions, a device", *(human_seconds(getattr(virtual.before, part)) for part in PARTS))
    for name, tier in (("global rounds, an LPS", virtual.gps), ("LPS rounds, a device", virtual.lps)):
        table.add_row(name, *(human_seconds(getattr(tier, part)) for part in PARTS))
    return table
