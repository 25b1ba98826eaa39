"""Write the page of a reproduced table: published values next to ours, differences from the paper, hashes and
versions.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from emulator.console.units import NO_VALUE
from emulator.reproduce.published import PublishedTable, Value
from emulator.results.over_seeds import Form, Spread
from emulator.sweeps import text_tables
from emulator.sweeps.file import Place
from emulator.sweeps.results import SweepResults
from fedstrata.record.summary import Summary

WITHIN, ABOVE, BELOW, UNJUDGED, NOT_RUN = "within 2 sd", "above", "below", "no deviation", "not run"
COUNTS = re.compile(r"^Of \d+ published values: (.+?)\.", re.MULTILINE)  # as `_counts` writes them
DIGEST_SHOWN = 16
WRITTEN = "Page written with "  # begins the last line, which depends on the machine


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Hold a published value and our value for the same cell. Both are in the paper's unit."""

    place: Place
    theirs: Value
    ours: Value | None
    seeds: int
    rounding: float
    """Largest error that rounding can cause in a published value."""

    @property
    def difference(self) -> float | None:
        return None if self.ours is None else self.ours.mean - self.theirs.mean

    @property
    def verdict(self) -> str:
        """The verdict on our value: within two standard deviations of the published value, above this range, or below
        it. The range also allows for the rounding of the published value.

        The standard deviation belongs to the difference of the two values, so its variance is the sum of both values'
        variances. An unknown variance is left out.
        """
        if self.ours is None or self.difference is None:
            return NO_VALUE
        known = [each for each in (self.theirs.deviation, self.ours.deviation) if each is not None]
        if not known:
            return UNJUDGED
        if abs(self.difference) <= 2 * math.hypot(*known) + self.rounding:
            return WITHIN
        return ABOVE if self.difference > 0 else BELOW


def compared(table: PublishedTable, results: SweepResults) -> list[Compared]:
    """Return all published values of a table. Each has our mean over the finished seeds next to it."""
    factor = Form.of(results.of.metric).factor
    return [
        Compared(
            place=place, theirs=theirs, ours=_in_their_unit(own, factor), seeds=own.count,
            rounding=0.5 * 10**-table.about.decimals,
        )
        for place, theirs in table.values.items()
        for own in [results.spread(place, table.about.measure)]
    ]  # fmt: skip


def _in_their_unit(own: Spread, factor: float) -> Value | None:
    if own.mean is None:
        return None
    return Value(mean=factor * own.mean, deviation=None if own.deviation is None else factor * own.deviation)


def comparison_rows(table: PublishedTable, results: SweepResults) -> tuple[list[str], list[list[str]]]:
    """Return the table that compares published values with ours: its head and its rows."""
    digits = table.about.decimals
    rows = [
        [
            *each.place.words, str(each.seeds), _said(each.theirs, digits),
            _said(each.ours, digits), _signed(each.difference, digits), each.verdict,
        ]
        for each in compared(table, results)
    ]  # fmt: skip
    return ["cell", *table.sweep.axes, "seeds", "theirs", "ours", "difference", "verdict"], rows


def _said(value: Value | None, digits: int) -> str:
    if value is None:
        return NO_VALUE
    spread = "" if value.deviation is None else f" ± {value.deviation:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def _signed(value: float | None, digits: int) -> str:
    return NO_VALUE if value is None else f"{value:+.{digits}f}".replace("-", "−")


def section(table: PublishedTable, results: SweepResults, made_with: Mapping[str, str]) -> str:
    """Return the section of the page about one table, as Markdown. Only the last line of the section depends on the
    machine.
    """
    about = table.about
    head, rows = comparison_rows(table, results)
    right = {"seeds", "theirs", "ours", "difference"}
    parts = [
        f"## {about.title}\n\n{about.paper}. {about.source}.\n",
        f"```\nfedstrata reproduce {table.name}\n```\n",
        f"{_counts(compared(table, results))} The measure is `{results.of.named(about.measure).column}`.\n",
        text_tables.as_markdown((head, rows), right.__contains__),
        *_list("What differs", about.differs),
        *_list("Remarks", about.remarks),
        *(
            f"**{title}**\n\n{text_tables.as_markdown(found, results.of.is_number)}"
            for title, found in _fairness(results)
        ),
        f"**Runs**\n\n{text_tables.as_markdown(_runs(results), lambda _: False)}",
        *_list("Read in", about.read),
        WRITTEN + ", ".join(f"{what} {said}" for what, said in {**made_with, **_kernels(results)}.items()) + ".\n",
    ]
    return "\n".join([f"<!-- results of {table.name} -->\n", *parts, "<!-- end of results -->\n"])


def _fairness(results: SweepResults) -> list[tuple[str, text_tables.Table]]:
    wanted = (text_tables.FAIRNESS_SAID, text_tables.WORTH_SAID)
    return [(title, given) for title, given in text_tables.titled(results) if title in wanted]


def _counts(cells: list[Compared]) -> str:
    found = Counter(each.verdict for each in cells)
    said = [f"{found[verdict]} {verdict}" for verdict in (WITHIN, ABOVE, BELOW, UNJUDGED) if found[verdict]]
    missing = [f"{found[NO_VALUE]} {NOT_RUN}"] if found[NO_VALUE] else []
    return f"Of {len(cells)} published values: {', '.join([*said, *missing])}."


def tally(sections: Iterable[str]) -> str:
    """Return a line that adds up the verdict counts in all sections."""
    found = Counter[str]()
    for counts in COUNTS.findall("\n".join(sections)):
        for count in counts.split(", "):
            number, verdict = count.split(" ", 1)
            found[verdict] += int(number)
    said = [f"{found[verdict]} {verdict}" for verdict in (WITHIN, ABOVE, BELOW, UNJUDGED, NOT_RUN) if found[verdict]]
    return f"Of {found.total()} published values in all tables: {', '.join(said)}."


def _list(title: str, items: tuple[str, ...]) -> Iterator[str]:
    if items:
        yield f"**{title}**\n\n" + "".join(f"- {item}\n" for item in items)


def _runs(results: SweepResults) -> tuple[list[str], list[list[str]]]:
    """Return the table of runs: its head, and a row per run with the digest of the run's models."""
    rows = [
        [*run.place.words, str(run.seed), f"`{models_digest(record.summary)[:DIGEST_SHOWN]}`"]
        for run in results.sweep.runs
        if (record := results.records.get((run.place, run.seed))) is not None
    ]
    return ["cell", *results.sweep.axes, "seed", "models"], rows


def models_digest(summary: Summary) -> str:
    """Return one SHA-256 over all models of a run. These are the models of clusters and the models that stay on
    devices.
    """
    digest = hashlib.sha256()
    for kind, models in (("cluster", summary.model_sha256), ("device", summary.personal_sha256)):
        for name, sha256 in sorted(models.items()):
            digest.update(f"{kind} {name} {sha256}\n".encode())
    return digest.hexdigest()


def _kernels(results: SweepResults) -> dict[str, str]:
    found = sorted({kernel for record in results.records.values() for kernel in record.summary.kernels})
    return {"kernels of the runs": " ".join(found)} if found else {}
