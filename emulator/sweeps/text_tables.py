"""Write the tables of a sweep as text: means and spreads, differences from the baseline, and bytes."""

from collections.abc import Callable, Sequence

from emulator.console.units import NO_VALUE
from emulator.results.measures import BEST, BEST_ROUND
from emulator.results.over_seeds import MEAN
from emulator.sweeps import worth
from emulator.sweeps.results import Difference, SweepResults

COSTS_SAID = "Bytes that devices sent and received"
FAIRNESS_SAID = "Fairness over devices"
BEST_SAID = "Best of the measured rounds, and the last round (Mean)"
WORTH_SAID = "Gain over training alone, device by device"
Table = worth.Table


def means(results: SweepResults) -> Table:
    """Return the main table: the mean ± standard deviation of each measure, with a row per cell and setting. Ratios are
    in percent.
    """
    return _spreads(results, results.measures)


def differences(results: SweepResults) -> Table:
    """Return a table with a row per cell and setting. A row has the differences from the baseline, computed seed by
    seed, and the number of seeds for which the cell is better.
    """
    baseline, names = results.sweep.baseline, results.measures
    rows = [
        [*place.words, *(_difference(results, results.difference(place, name), name) for name in names)]
        for place in results.sweep.places
        if baseline is not None and place.cell != baseline
    ]
    return [*results.head, *_headings(results, names)], rows


def titled(results: SweepResults) -> list[tuple[str, Table]]:
    """Return all tables except `means`, each with its title. Tables without values are left out."""
    baseline = results.sweep.baseline
    found = [] if baseline is None else [(f"Difference from {baseline}, seed by seed", differences(results))]
    found += [(BEST_SAID, _spreads(results, (BEST, MEAN, BEST_ROUND)))] if results.rounds else []
    found += [(FAIRNESS_SAID, _spreads(results, results.fairness))] if results.fairness else []
    gained = worth.table(results)
    found += [(WORTH_SAID, gained)] if gained else []
    return [*found, *([(COSTS_SAID, _spreads(results, results.costs))] if results.costs else [])]


def markdown(results: SweepResults) -> str:
    """Return all tables as Markdown."""
    is_number = results.of.is_number
    more = "".join(f"\n{title}:\n\n{as_markdown(given, is_number)}" for title, given in titled(results))
    chosen = set(results.test_sets.values()) - {"own"}
    said = f"\nMeasured on {results.measured_on}.\n" if chosen else ""
    return as_markdown(means(results), is_number) + said + more


def as_markdown(given: Table, is_number: Callable[[str], bool]) -> str:
    """Return a table as Markdown. Columns of numbers are aligned to the right."""
    head, rows = given
    rule = ["---:" if is_number(name) else "---" for name in head]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rows))


def _spreads(results: SweepResults, names: Sequence[str]) -> Table:
    rows = [
        [
            *place.words,
            str(sum((place, seed) in results.records for seed in results.sweep.seeds)),
            *(results.spread(place, name).said(results.of.named(name).form) for name in names),
        ]
        for place in results.sweep.places
    ]
    return [*results.head, "seeds", *_headings(results, names)], rows


def _headings(results: SweepResults, names: Sequence[str]) -> list[str]:
    return [results.of.named(name).heading(name) for name in names]


def _difference(results: SweepResults, difference: Difference | None, name: str) -> str:
    """Return a difference as text, such as +9.9 ± 2.0 (6/6). In this example, the cell is better for six of six
    seeds.
    """
    if difference is None or not difference.spread.count:
        return NO_VALUE
    said = difference.spread.said(results.of.named(name).form, sign="+")
    return f"{said} ({difference.better}/{difference.spread.count})"
