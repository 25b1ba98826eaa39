"""Compare finished runs: a row per run, and the mean and spread over the seeds of each experiment and method."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.console.units import NO_VALUE, decimal, human_bytes, human_seconds
from emulator.results.curves import metric_over_time
from emulator.results.made_with import software_apart
from emulator.results.over_seeds import (
    MEAN,
    Comparison,
    Form,
    Group,
    Spread,
    groups_of,
    headlines_of,
    measured_of,
    settings_apart,
)
from emulator.results.read_record import RunRecord, load_record
from emulator.results.report.comparison_figure import draw_comparison
from emulator.results.report.virtual_time import write_metric_over_time
from emulator.results.weights import wrong_models
from fedstrata.errors import DataError, OutputError
from fedstrata.experiment.links import LINKS
from fedstrata.process.quoting import printable
from fedstrata.tasks import Metric

if TYPE_CHECKING:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

Cells = dict[str, str]  # a row of a table: text by column


def compare(folders: Sequence[Path], output: Path | None = None) -> Comparison:
    """Compare the records in `folders`. If `output` is given, write compare.csv, compare.png and compare.svg into this
    folder.

    Raises:
        DataError: no folder was given, or a record is missing or malformed.
        OutputError: the output cannot be written.
    """
    places = dict.fromkeys(folder.resolve() for folder in folders)  # a folder that is given twice counts once
    if not places:
        raise DataError("nothing to compare; give the folders of at least one run")
    runs = tuple(load_record(place) for place in places)
    tasks = tuple(dict.fromkeys(task for run in runs for task in run.summary.of_headline.tasks or ()))
    comparison = Comparison(runs=runs, groups=groups_of(runs), tasks=tasks)
    if output is not None:
        _write(comparison, output)
    return comparison


def show(comparison: Comparison, console: "Console") -> None:
    """Print the runs, their groups and notes. If the table of runs is too wide for the console, it is split into two
    tables.
    """
    from rich.text import Text

    results = [{**_who(run), **_results(run, comparison.tasks)} for run in comparison.runs]
    costs = [{**_who(run), **_costs(run)} for run in comparison.runs]
    both = _table("Runs", [left | right for left, right in zip(results, costs, strict=True)])
    if _widths(console, both).maximum <= console.width:
        _print(console, both)
    else:
        _print(console, _table("Runs: results", results))
        _print(console, _table("Runs: bytes by link, and time", costs))
    groups = [_group_cells(group, comparison.tasks) for group in comparison.groups]
    if groups:
        _print(console, _table("Mean ± sample standard deviation over seeds", groups))
    for line in _notes(comparison.runs):
        console.print(Text(printable(line)), soft_wrap=True)


def _notes(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield notes about the runs: which settings and versions differ, which runs have bit-identical models,
    which models are damaged, and which runs used different kernels.
    """
    names = dict(zip((run.folder for run in runs), _parts_apart([run.folder for run in runs]), strict=True))
    by_weights, by_kernels = dict[str, list[str]](), dict[str, list[str]]()
    damaged = {run.folder: list(wrong_models(run)) for run in runs}
    for run in runs:
        if run.summary.model_sha256 and not damaged[run.folder]:
            by_weights.setdefault(" ".join(sorted(run.summary.model_sha256.values())), []).append(names[run.folder])
        if run.summary.kernels:
            by_kernels.setdefault(", ".join(sorted(run.summary.kernels)), []).append(names[run.folder])
    for key, values in {**settings_apart(runs), **software_apart(runs)}.items():
        told = "; ".join(f"{value}: {', '.join(names[run.folder] for run in own)}" for value, own in values.items())
        yield f"{key} differs. {told}"
    if equal := [", ".join(alike) for alike in by_weights.values() if len(alike) > 1]:
        yield f"Equal weights, to the bit: {'; '.join(equal)}"
    yield from (f"Damaged: {said}" for found in damaged.values() for said in found)
    if len(by_kernels) > 1:
        told = "; ".join(f"{kernels}: {', '.join(alike)}" for kernels, alike in by_kernels.items())
        yield f"Computed by different kernels, so bits may differ even with equal settings: {told}"


def _who(run: RunRecord) -> Cells:
    status = {} if run.summary.status == "completed" else {"status": run.summary.status}
    return {"experiment": run.name, **status, "method": run.summary.method, "seed": str(run.summary.seed)}


def _results(run: RunRecord, tasks: Sequence[str]) -> Cells:
    summary = run.summary
    form = Form.of(run.headline)
    measured = {f"{task} {form.unit}": Spread.over([measured_of(run, task)]).said(form) for task in (MEAN, *tasks)}
    ari = decimal(summary.adjusted_rand_index)
    return {"clusters": str(len(summary.clusters)), "ARI": ari, **measured}


def _costs(run: RunRecord) -> Cells:
    counted = run.summary.bytes
    links = {str(link): human_bytes(counted[link].total) if link in counted else NO_VALUE for link in LINKS}
    virtual = run.summary.virtual
    return {
        **links,
        "wall time": human_seconds(run.summary.total_seconds),
        **({"virtual time": human_seconds(virtual.seconds)} if virtual is not None else {}),
    }


def _group_cells(group: Group, tasks: Sequence[str]) -> Cells:
    who = {"experiment": group.name, "method": group.method}
    what = {"settings": group.variant} if group.variant else {}
    form = Form.of(group.headline)
    measured = {f"{task} {form.unit}": group.measured(task).said(form) for task in (MEAN, *tasks)}
    ari = decimal(group.adjusted_rand_index().mean)
    return {**who, **what, "seeds": str(len(group.seeds)), "ARI": ari, **measured}


def _table(title: str, rows: Sequence[Cells]) -> "Table":
    """Return a table with a column for each key that any row has. If all rows have the same experiment, the title names
    the experiment.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    first = ("experiment", "status", "method", "settings")
    names = {row["experiment"] for row in rows}
    if len(names) == 1:
        title = f"{title} · {names.pop()}"
        rows = [{key: cell for key, cell in row.items() if key != "experiment"} for row in rows]
    look: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "collapse_padding": True}
    table = Table(title=Text(printable(title)), box=SIMPLE_HEAD, pad_edge=False, **look)
    columns = sorted(dict.fromkeys(key for row in rows for key in row), key=lambda key: (*first, key).index(key))
    # Text of a record is shown as it is, never as markup or as a command to the terminal.
    cells = [[Text(printable(row.get(key, ""))) for key in columns] for row in rows]
    for key, *column in zip(columns, *cells, strict=True):
        heading = Text(printable(key))
        width = 12 if key in ("experiment", "settings") else max(map(len, (heading, *column)))
        table.add_column(heading, justify="left" if key in first else "right", overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*row)
    return table


def _widths(console: "Console", table: "Table") -> "Measurement":
    """Return the smallest and the largest useful width of a table on a console."""
    return console.measure(table, options=console.options.update(width=10_000))


def _print(console: "Console", table: "Table") -> None:
    """Print a table in the console's width. If the console is too narrow, use the table's smallest width, so that no
    column is cut.
    """
    table.width = max(_widths(console, table).minimum, min(console.width, _widths(console, table).maximum))
    console.print(table, crop=False)


def _write(comparison: Comparison, output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "compare.csv").write_text(_csv_text(comparison), encoding="utf-8", newline="")
        draw_comparison(comparison, output)
        curves = _curves(comparison.runs)
        if curves:
            write_metric_over_time(curves, headlines_of(comparison.runs)[0], output)
    except OSError as error:
        raise OutputError(f"cannot write the comparison to {output}: {error.strerror}") from None


def _curves(runs: Sequence[RunRecord]) -> dict[str, list[tuple[float, float]]]:
    """Return the main metric over virtual time, for each run on the virtual clock. The runs are named by what
    distinguishes them. Runs with another main metric than the first run are left out.
    """
    first = headlines_of(runs)[0]
    timed = [(run, curve) for run in runs if run.headline == first and (curve := metric_over_time(run))]
    names = [f"{run.name}, {run.summary.method}, seed {run.summary.seed}" for run, _ in timed]
    own = names if len(set(names)) == len(names) else _parts_apart([run.folder for run, _ in timed])
    return {printable(label): curve for label, (_, curve) in zip(own, timed, strict=True)}


def _parts_apart(folders: Sequence[Path]) -> list[str]:
    """Return the folders as texts, shortened to what distinguishes them: path parts at the beginning and the end that
    all folders share are removed.
    """
    paths = [list(folder.parts) for folder in folders]
    for end in (0, -1):
        while all(len(parts) > 1 for parts in paths) and len({parts[end] for parts in paths}) == 1:
            for parts in paths:
                del parts[end]
    return ["/".join(parts) for parts in paths]


def _csv_text(comparison: Comparison) -> str:
    """Return the comparison as CSV with all digits: a `run` row for each run, then a `mean` and a `std` row for each
    group.
    """
    measures = [(metric, task) for metric in headlines_of(comparison.runs) for task in (MEAN, *comparison.tasks)]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    columns = [f"mean_{metric.name}" if task == MEAN else f"{metric.name}_{task}" for metric, task in measures]
    links = [f"{link}_{direction}_bytes" for link in LINKS for direction in ("up", "down")]
    head = ("row", "experiment", "variant", "method", "status", "seed", "runs", "clusters", "adjusted_rand_index")
    writer.writerow([*head, *columns, *links, "seconds", "virtual_seconds"])
    for run in comparison.runs:
        writer.writerow(_run_row(run, measures))
    for group in comparison.groups:
        own = [group.measured(task) if metric == group.headline else Spread.over([]) for metric, task in measures]
        spreads = [group.adjusted_rand_index(), *own]
        start = (group.name, group.variant, group.method, "completed", "", len(group.seeds), "")
        rest = [""] * (len(links) + 2)
        writer.writerow(["mean", *start, *(spread.mean for spread in spreads), *rest])
        writer.writerow(["std", *start, *(spread.deviation for spread in spreads), *rest])
    return text.getvalue()


def _run_row(run: RunRecord, measures: Sequence[tuple[Metric, str]]) -> list[object]:
    summary = run.summary
    links = [summary.bytes.get(link) for link in LINKS]
    head = ("run", run.name, "", summary.method, summary.status, summary.seed, 1, len(summary.clusters))
    counts = [count for link in links for count in ((link.up, link.down) if link else (None, None))]
    measured = [measured_of(run, task) if metric == run.headline else None for metric, task in measures]
    virtual_s = summary.virtual.seconds if summary.virtual is not None else None
    return [*head, summary.adjusted_rand_index, *measured, *counts, summary.total_seconds, virtual_s]
