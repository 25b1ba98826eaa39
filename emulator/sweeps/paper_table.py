"""Write the table of a paper, with a row per cell and a column per setting. An entry is the mean ± deviation over
seeds, and the best entries are bold.

The table is written as Markdown and as LaTeX. The paired tests follow the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from emulator.console.units import NO_VALUE
from emulator.results.over_seeds import Spread
from emulator.sweeps import paired_tests
from emulator.sweeps.file import Place
from emulator.sweeps.results import SweepResults
from emulator.sweeps.selection import Tuned
from emulator.sweeps.text_tables import as_markdown

PAIRS_SAID = (
    "Differences between cells, paired over n seeds, with two-sided p-values. Holm's correction is for all pairs of a "
    "setting. With n seeds, Wilcoxon's p is at least 2/2ⁿ."
)
TEX = str.maketrans({
    **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", NO_VALUE: "--", "²": "$^2$",
    "ⁿ": "$^n$",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PaperCell:
    """Hold the text of one entry of the table."""

    text: str
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """Hold the table: its heading, and a row per cell of the sweep."""

    said: str
    head: tuple[str, ...]
    rows: tuple[tuple[PaperCell, ...], ...]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rows = [[f"**{cell.text}**" if cell.is_best else cell.text for cell in row] for row in self.rows]
        return f"{self.said}\n\n{as_markdown((list(self.head), rows), lambda name: name != self.head[0])}"

    def latex(self) -> str:
        """Return the table as LaTeX."""
        rows = [
            [rf"\textbf{{{tex(cell.text)}}}" if cell.is_best else tex(cell.text) for cell in row] for row in self.rows
        ]
        return latex(self.said, [*map(tex, self.head)], rows, "l" + "r" * (len(self.head) - 1))


def tex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return text.translate(TEX)


def latex(said: str, head: Sequence[str], rows: Sequence[Sequence[str]], columns: str) -> str:
    """Return a table as LaTeX with a caption. The texts of `head` and `rows` are already LaTeX."""
    lines = [" & ".join(row) + r" \\" for row in (head, *rows)]
    body = [
        r"\begin{table}", r"\centering", rf"\caption{{{tex(said)}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
        lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(body) + "\n"


def paper_table(results: SweepResults) -> PaperTable:
    """Return the table of the main measure by setting. If the sweep has a single setting, return the table of all
    measures.
    """
    settings, cells = results.settings, list(dict.fromkeys(place.cell for place in results.sweep.places))
    if len(settings) > 1:
        measure = results.of.named(results.main)
        head = [", ".join(choice for _, choice in setting) for setting in settings]
        columns = [_column(results, cells, setting, results.main) for setting in settings]
        what = f"{results.of.metric.label}, {measure.heading(results.main)}, by {', '.join(results.sweep.axes)}"
    else:
        head = [results.of.named(name).heading(name) for name in results.measures]
        columns = [_column(results, cells, settings[0], name) for name in results.measures]
        what = "Final models"
    seeds = len(results.sweep.seeds)
    said = (
        f"{what}: mean ± sample standard deviation over {seeds} seed{'s' if seeds > 1 else ''}. The best mean is bold."
    )
    rows = [(PaperCell(text=cell), *(column[index] for column in columns)) for index, cell in enumerate(cells)]
    return PaperTable(said=said, head=("cell", *head), rows=tuple(rows))


def _column(
    results: SweepResults, cells: Sequence[str], setting: tuple[tuple[str, str], ...], name: str
) -> list[PaperCell]:
    measure = results.of.named(name)
    spreads: list[Spread] = []
    for cell in cells:
        values = results.values(Place(cell=cell, setting=setting), name)
        spreads.append(Spread.over([values.get(seed) for seed in results.sweep.seeds]))
    means = [spread.mean for spread in spreads if spread.mean is not None]
    best = (max if measure.higher_is_better else min)(means) if len(set(means)) > 1 else None
    return [
        PaperCell(text=spread.said(measure.form), is_best=best is not None and spread.mean == best)
        for spread in spreads
    ]


def tuned_table(tuned: Tuned) -> tuple[list[str], list[list[str]]]:
    """Return the chosen values as a table, with the same rows as the sweep's table."""
    keys = list(tuned.settings.grid)
    return ["cell", *keys], [[label, *(str(own[key]) for key in keys)] for label, own in tuned.chosen.items()]


def markdown(results: SweepResults) -> str:
    """Return the table, the tuned values and the paired tests as Markdown."""
    head, rows = paired_tests.table(results)
    tuned = results.sweep.tuned
    chosen = f"\n{tuned.said}\n\n{as_markdown(tuned_table(tuned), lambda name: name != 'cell')}" if tuned else ""
    tests = f"\n{PAIRS_SAID}\n\n{as_markdown((head, rows), partial(_is_number, results))}" if rows else ""
    return paper_table(results).markdown() + chosen + tests


def as_latex(results: SweepResults) -> str:
    """Return the table, the tuned values and the paired tests as LaTeX, for the package booktabs."""
    head, rows = paired_tests.table(results)
    tuned, chosen = results.sweep.tuned, ""
    if tuned is not None:
        keys, values = tuned_table(tuned)
        chosen = "\n" + latex(
            tuned.said, [*map(tex, keys)], [[*map(tex, row)] for row in values], "l" + "r" * (len(keys) - 1)
        )
    columns = "".join("r" if _is_number(results, name) else "l" for name in head)
    tests = "\n" + latex(PAIRS_SAID, [*map(tex, head)], [[*map(tex, row)] for row in rows], columns) if rows else ""
    return "% \\usepackage{booktabs}\n" + paper_table(results).latex() + chosen + tests


def _is_number(results: SweepResults, heading: str) -> bool:
    return heading not in (*results.sweep.axes, "cell", "other")
