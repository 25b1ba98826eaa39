"""The results as tables in a terminal."""

from rich.console import Console
from rich.table import Table

from benchmarks.suite.results import Results, Row, number, spread


def print_results(results: Results, console: Console) -> None:
    """Print the machine, the rows with ratios and aims, the cost by size, and the notes on missing measurements."""
    machine = results.machine
    console.print(
        f"{machine['date']}, {machine['cores']} × {machine['processor']}, {machine['memory_gb']} GB, "
        f"Python {machine['python']}, commit {machine['commit']}"
    )
    for name in ("versions", "peers"):
        told = ", ".join(f"{package} {version}" for package, version in machine[name].items())
        console.print(f"{name}: {told or 'none'}")
    if results.rows:
        console.print(rows_table(results))
    if results.points:
        console.print(points_table(results))
    for note in results.notes:
        console.print(f"note: {note}", markup=False)


def rows_table(results: Results) -> Table:
    """Return a table with one row per comparison: medians, with the range over repeats."""
    table = Table(title="ratios within this run; medians, range over repeats", title_justify="left")
    for column in ("part", "work", "unit", "fedstrata", "beside", "beside us", "ratio", "aim", "", "load"):
        table.add_column(column, overflow="fold")
    for row in results.rows:
        load = "–".join(f"{value:g}" for value in results.loads.get(row.part, ()))
        table.add_row(
            row.part, row.measured, row.unit, spread(row.ours), row.other, spread(row.theirs) if row.theirs else "",
            spread(row.ratios) if row.ratios else "", str(row.aim or ""), verdict(row), load,
        )  # fmt: skip
    return table


def verdict(row: Row) -> str:
    """Return whether the aim is met."""
    return {None: "", True: "met", False: "missed"}[row.is_met]


def points_table(results: Results) -> Table:
    """Return a table with one row per size."""
    load = "–".join(f"{value:g}" for value in results.loads.get("growth", ()))
    table = Table(title=f"cost of a global round by size (load {load})", title_justify="left")
    for column in ("by", "devices", "model MB", "LPSs", "s a round", "CPU s: devices", "LPSs", "GPS", "emulator"):
        table.add_column(column)
    for column in ("peak MB: LPS", "GPS"):
        table.add_column(column)
    for point in results.points:
        cpu = [number(point.cpu_s[tier]) for tier in ("device", "lps", "gps", "emulator")]
        peaks = [number(point.peak_mb.get(tier, 0)) for tier in ("lps", "gps")]
        sizes = [str(point.devices), number(point.model_mb), str(point.lps)]
        table.add_row(point.axis, *sizes, number(point.wall_s), *cpu, *peaks)
    return table
