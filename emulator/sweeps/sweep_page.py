"""Write the results of a sweep: its tables, its figure, and a page with links to the report of every run."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from emulator.console.units import NO_VALUE, counted, measured
from emulator.results.measures import DEVICES
from emulator.results.over_seeds import MEAN, Form
from emulator.results.report.comparison_figure import Columns, Series, title_of
from emulator.results.report.framed import framed
from emulator.results.report.html_tables import Markup, html, table
from emulator.results.report.run_page import write_page
from emulator.results.report.style import inline_svg
from emulator.sweeps import text_tables, worth
from emulator.sweeps.file import Place, SweepRun
from emulator.sweeps.paper_files import write_paper_files
from emulator.sweeps.results import SweepResults
from fedstrata.errors import OutputError

PAGE, TABLE, GAINS = "index.html", "table.csv", "gains.csv"
CAPTIONS = {
    **dict.fromkeys((text_tables.FAIRNESS_SAID, text_tables.WORTH_SAID), "Over the completed seeds"),
    text_tables.BEST_SAID: "Of the rounds that all devices measured. The tests chose the best one, so it is too good",
    text_tables.COSTS_SAID: "Of all devices, in both directions. A dash: devices were grouped without answers, or "
    "nothing was measured",
}


def write_results(results: SweepResults, out: Path) -> None:
    """Write table.csv, table.md, figure.png, figure.svg and index.html. The same records give the same bytes.

    Also write the files for a paper, and gains.csv if devices train alone in some runs. The file table.csv is written
    last.

    Raises:
        OutputError: the files cannot be written.
    """
    figure = figure_of(results)
    try:
        (out / "table.md").write_text(text_tables.markdown(results), encoding="utf-8")
        if gains := worth.gains_csv(results):
            (out / GAINS).write_text(gains, encoding="utf-8", newline="")
        else:  # the sweep's file had a cell that trains alone before
            (out / GAINS).unlink(missing_ok=True)
        figure.write(out, "figure")
        write_paper_files(results, out)
        write_page(out / PAGE, render_page(results, figure))
        (out / TABLE).write_text(results.csv_text(), encoding="utf-8", newline="")
    except OSError as error:
        raise OutputError(f"cannot write the results to {out}: {error.strerror}") from None


def are_written(results: SweepResults, out: Path) -> bool:
    """Return whether the folder already has these results. Another process of the same sweep may have just written
    them.
    """
    try:
        has_table = (out / TABLE).read_bytes() == results.csv_text().encode()
        return has_table and html(results.sweep.text) in (out / PAGE).read_text(encoding="utf-8")
    except OSError:
        return False


def _heading(place: Place) -> str:
    return ", ".join(place.words[1:])


def figure_of(results: SweepResults) -> Columns:
    """Return the figure of the cells' main metric. If the sweep has a single setting, the figure shows the metric by
    true task. With several settings, it shows the mean for each setting.
    """
    metric, factor = results.of.metric, Form.of(results.of.metric).factor
    mean = results.main
    places = [place for place in results.sweep.places if results.values(place, MEAN)]
    if len(results.settings) == 1:
        names = _shown(results)
        series = [
            Series(label=place.cell, values={m: [*results.values(place, m).values()] for m in names})
            for place in places
        ]
        return Columns(title=title_of(metric), names=names, series=series, factor=factor)
    series = [
        Series(label=cell, values={_heading(p): [*results.values(p, mean).values()] for p in places if p.cell == cell})
        for cell in dict.fromkeys(place.cell for place in places)
    ]
    names = list(dict.fromkeys(_heading(place) for place in results.sweep.places))
    title = title_of(replace(metric, title=f"Mean {metric.name}"), f"by {', '.join(results.sweep.axes)}")
    return Columns(title=title, names=names, series=series, factor=factor)


def _shown(results: SweepResults) -> list[str]:
    """Return the names of the columns in the figure. They are the true tasks and the mean. Without true tasks, they are
    the mean over devices and the worst device.
    """
    tasks = [name for name in results.measures if name not in results.of.results]
    devices = [name for name in (DEVICES, results.of.worst) if name in results.measures]
    return [*tasks, MEAN] if tasks else devices or [MEAN]


def render_page(results: SweepResults, figure: Columns) -> str:
    """Return the sweep's page as HTML."""
    sweep = results.sweep
    done, seeds = len(results.records), ", ".join(map(str, sweep.seeds))
    missing = len(sweep.runs) - done
    said = f"{counted(len(sweep.places), 'row')} of the table, seeds {seeds}: {counted(done, 'run')} completed"
    return framed(
        "sweep",
        name=sweep.name,
        said=Markup(f'<p class="run">{html(said + (f", {missing} not" if missing else ""))}</p>'),
        figure=_figure(figure),
        table=_table(
            results,
            f"Mean ± sample standard deviation over seeds, on {results.measured_on}",
            text_tables.means(results),
        ),
        differences=Markup(f"{_differences(results)}{_others(results)}"),
        runs=_run_table(results),
        text=html(sweep.text),
    )


def _figure(figure: Columns) -> Markup:
    def draw(canvas: object) -> str:
        figure.draw(canvas)  # type: ignore[arg-type]  # a matplotlib figure
        return ", ".join(series.label for series in figure.series)

    return Markup(f"<figure>{inline_svg('measured', figure.title, figure.size, draw)}</figure>")


def _differences(results: SweepResults) -> Markup:
    if results.sweep.baseline is None:
        return Markup("")
    caption = (
        f"Difference from {results.sweep.baseline}, seed by seed, and the number of seeds in which the cell is better"
    )
    table = _table(results, caption, text_tables.differences(results))
    return Markup(f"<section><h2>Differences</h2>{table}</section>")


def _others(results: SweepResults) -> Markup:
    """Return the sections with the other tables: fairness, gains over training alone, and bytes."""
    found = [(title, given) for title, given in text_tables.titled(results) if title in CAPTIONS]
    shown = [f"<section><h2>{title}</h2>{_table(results, CAPTIONS[title], given)}</section>" for title, given in found]
    return Markup("".join(shown))


def _table(results: SweepResults, caption: str, given: text_tables.Table) -> Markup:
    head, rows = given
    numeric = "".join("1" if results.of.is_number(name) else "." for name in head)
    return table(caption, head, rows, numeric)


def _run_table(results: SweepResults) -> Markup:
    """Return a table with a row per cell and setting, and a column per seed. Each entry is the mean of a run's main
    metric, and links to the run's report.
    """
    sweep = results.sweep
    runs = {(run.place, run.seed): run for run in sweep.runs}
    rows = [
        [*place.words, *(_link(results, runs.get((place, seed))) for seed in sweep.seeds)] for place in sweep.places
    ]
    head = [*results.head, *(f"seed {seed}" for seed in sweep.seeds)]
    return table(
        f"Mean {results.of.metric.name} of each run", head, rows, "." * (1 + len(sweep.axes)) + "1" * len(sweep.seeds)
    )


def _link(results: SweepResults, run: SweepRun | None) -> Markup:
    record = results.records.get((run.place, run.seed)) if run is not None else None
    if run is None or record is None:
        return html(NO_VALUE)
    href = quote(f"{run.path.as_posix()}/report.html")
    return Markup(f'<a href="{href}">{html(measured(record.summary.mean, record.headline))}</a>')
