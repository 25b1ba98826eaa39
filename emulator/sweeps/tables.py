"""The tables of a sweep as text: means and spreads, differences to the baseline, and bytes."""

from collections.abc import Sequence

from emulator.console.units import NO_VALUE
from emulator.results.comparison import Spread
from emulator.sweeps.results import Difference, SweepResults

COSTS_SAID = "Bytes that devices sent and received"
Table = tuple[list[str], list[list[str]]]  # header, rows


def means(results: SweepResults) -> Table:
    """Return a table with a row per cell and setting: mean ± standard deviation of each measure, shares in percent."""
    return _spreads(results, results.measures)


def costs(results: SweepResults) -> Table:
    """Return a table with a row per place: mean ± standard deviation of the bytes that devices have sent and
    received.
    """
    return _spreads(results, results.costs)


def differences(results: SweepResults) -> Table:
    """Return a table with a row per cell and setting: differences from the baseline, seed by seed, and how many are
    better.
    """
    baseline, names = results.sweep.baseline, results.measures
    rows = [
        [*place.words, *(_difference(results, results.difference(place, name), name) for name in names)]
        for place in results.sweep.places
        if baseline is not None and place.cell != baseline
    ]
    return [*results.head, *_headings(results, names)], rows


def markdown(results: SweepResults) -> str:
    """Return all tables as Markdown."""
    text = _markdown(results, means(results))
    if results.sweep.baseline is not None:
        text += f"\nMinus {results.sweep.baseline}, seed by seed:\n\n{_markdown(results, differences(results))}"
    return text + (f"\n{COSTS_SAID}:\n\n{_markdown(results, costs(results))}" if results.costs else "")


def _spreads(results: SweepResults, names: Sequence[str]) -> Table:
    rows = [
        [
            *place.words,
            str(sum((place, seed) in results.records for seed in results.sweep.seeds)),
            *(_spread(results, results.spread(place, name), name) for name in names),
        ]
        for place in results.sweep.places
    ]
    return [*results.head, "seeds", *_headings(results, names)], rows


def _headings(results: SweepResults, names: Sequence[str]) -> list[str]:
    return [results.of.named(name).heading(name) for name in names]


def _spread(results: SweepResults, spread: Spread, name: str, *, sign: str = "") -> str:
    form = results.of.named(name).form
    return NO_VALUE if spread.mean is None else form.said(spread.mean, spread.deviation, sign=sign)


def _difference(results: SweepResults, difference: Difference | None, name: str) -> str:
    """Return the difference in the form +9.9 ± 2.0 (6/6): better than the baseline in six of six pairs."""
    if difference is None or not difference.spread.count:
        return NO_VALUE
    return f"{_spread(results, difference.spread, name, sign='+')} ({difference.better}/{difference.spread.count})"


def _markdown(results: SweepResults, given: Table) -> str:
    head, rows = given
    rule = ["---:" if results.of.is_number(name) else "---" for name in head]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rows))
