"""Test whether two cells of a sweep differ: paired over seeds, for each pair of cells in a setting.

Wilcoxon's test needs no normal distribution, but with n seeds its p is at least 2/2ⁿ. The correction for several tests
is from S. Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, 1979.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from emulator.console.units import NO_VALUE
from emulator.results.over_seeds import Spread
from emulator.sweeps.file import Place
from emulator.sweeps.results import Difference, SweepResults

EQUAL = 1e-9  # relative to the largest difference: only rounding
Table = tuple[list[str], list[list[str]]]  # (header, rows)
COLUMNS = (
    "cell", "other", "measure", "pairs", "difference_mean", "difference_std", "better", "p_t", "p_holm", "p_wilcoxon",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """Hold the difference between two cells in one setting, and its two-sided p-values.

    A p-value is None if it is not defined: with fewer than two seeds, or if all differences are equal. `p_holm` is the
    p-value of the t-test, corrected for all pairs of the setting.
    """

    place: Place
    other: Place
    difference: Difference
    p_t: float | None
    p_wilcoxon: float | None
    p_holm: float | None = None


def paired_tests(results: SweepResults) -> list[PairedTest]:
    """Return the tests of the main measure for all pairs of cells, setting by setting."""
    found: list[PairedTest] = []
    for setting in results.settings:
        places = [place for place in results.sweep.places if place.setting == setting]
        tests = [_test(results, *pair) for pair in combinations(places, 2)]
        corrected = holm([test.p_t for test in tests])
        found += [
            replace(test, p_holm=p) for test, p in zip(tests, corrected, strict=True) if test.difference.spread.count
        ]
    return found


def _test(results: SweepResults, place: Place, other: Place) -> PairedTest:
    own, theirs = results.values(place, results.main), results.values(other, results.main)
    pairs = [own[seed] - theirs[seed] for seed in own if seed in theirs]
    sign = 1 if results.of.named(results.main).higher_is_better else -1
    difference = Difference(spread=Spread.over(pairs), better=sum(sign * pair > 0 for pair in pairs))
    p_t, p_wilcoxon = p_values(pairs)
    return PairedTest(place=place, other=other, difference=difference, p_t=p_t, p_wilcoxon=p_wilcoxon)


def p_values(pairs: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the p-values of the paired t-test and of Wilcoxon's signed-rank test. `pairs` are differences by seed."""
    if len(pairs) < 2 or max(pairs) - min(pairs) <= EQUAL * max(map(abs, pairs)):
        return None, None
    from scipy.stats import ttest_1samp, wilcoxon

    return float(ttest_1samp(pairs, 0.0).pvalue), float(wilcoxon(pairs).pvalue)


def holm(values: Iterable[float | None]) -> list[float | None]:
    """Return p-values, corrected for the number of tests. Undefined p-values stay undefined, and are not included in
    the number of tests.
    """
    found = list(values)
    order = sorted((p, index) for index, p in enumerate(found) if p is not None)
    corrected, least = list[float | None]([None] * len(found)), 0.0
    for rank, (p, index) in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p))
        corrected[index] = least
    return corrected


def table(results: SweepResults) -> Table:
    """Return a table with a row per pair of cells and setting. Cells without a common seed are left out."""
    measure = results.of.named(results.main)
    head = [
        *results.sweep.axes, "cell", "other", "n", measure.heading("Difference"), "better", "p (t)", "p (t, Holm)",
        "p (Wilcoxon)",
    ]  # fmt: skip
    rows = [
        [
            *test.place.words[1:], test.place.cell, test.other.cell, str(test.difference.spread.count),
            test.difference.spread.said(measure.form, sign="+"), str(test.difference.better),
            *map(_said, (test.p_t, test.p_holm, test.p_wilcoxon)),
        ]
        for test in paired_tests(results)
    ]  # fmt: skip
    return head, rows


def csv_text(results: SweepResults) -> str:
    """Return all tests as CSV with all digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*results.sweep.axes, *COLUMNS])
    writer.writerows(_rows(results))
    return text.getvalue()


def _rows(results: SweepResults) -> Iterator[list[object]]:
    column = results.of.named(results.main).column
    for test in paired_tests(results):
        spread = test.difference.spread
        yield [
            *test.place.words[1:], test.place.cell, test.other.cell, column, spread.count, spread.mean,
            spread.deviation, test.difference.better, test.p_t, test.p_holm, test.p_wilcoxon,
        ]  # fmt: skip


def _said(p: float | None) -> str:
    if p is None:
        return NO_VALUE
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"
