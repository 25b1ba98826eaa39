"""Read published tables from files. A file has a sweep, the value that the paper reports for each cell, and the points
in which the sweep's data and settings differ from the paper's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from emulator.shipped.share import EXPERIMENTS
from emulator.sweeps.file import Place, Sweep, read_document, sweep_of
from fedstrata.errors import ExperimentError
from fedstrata.experiment.error_lines import one_line
from fedstrata.experiment.sections import Settings

TABLES = EXPERIMENTS / "published"
SECTION = "published"  # a key in addition to the keys of a sweep
TABLE = "published.yaml"  # the file in the folder of a reproduced table
LARGEST = 1e12  # the largest number that a published value may have


class Published(Settings):
    """Hold the section `published` of a table's file."""

    title: str
    """Title of the table on its page."""
    paper: str
    """Authors, title and year of the paper."""
    source: str
    """Number of the table in the paper, and which of its rows and columns are reproduced."""
    read: tuple[str, ...] = Field(min_length=1)
    """Places from which the values and settings were read."""
    measure: str = "Mean"
    """Measure that the paper reports, named as a column of a sweep's tables."""
    decimals: int = Field(default=2, ge=0, le=6)
    """Number of decimals of the published values."""
    differs: tuple[str, ...] = ()
    """Differences from the paper in data or settings."""
    remarks: tuple[str, ...] = ()
    """Contradictions between the published values, or with other papers."""
    values: dict[str, Any] = Field(min_length=1)
    """Published values, nested by the choices of the axes and then by cell. A value is a mean, or `[mean, standard
    deviation]`.
    """


@dataclass(frozen=True, kw_only=True)
class Value:
    """Hold a published value in the unit of the paper. Most published values are percentages."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Hold a published table: its sweep, its published values, and facts about the paper."""

    name: str
    about: Published
    sweep: Sweep
    values: Mapping[Place, Value]
    document: Mapping[str, Any]  # the file's content

    def with_seeds(self, seeds: Sequence[int]) -> "PublishedTable":
        """Return the same table with other seeds."""
        return _table({**self.document, "seeds": list(seeds)}, self.name, self.name)


def tables() -> list[PublishedTable]:
    """Return all published tables that come with Fedstrata."""
    return [load_table(path) for path in sorted(TABLES.glob("*.yaml"))]


def find_table(name: str) -> PublishedTable:
    """Return the published table with this name. If the name is unknown, raise ExperimentError with the most similar
    names.
    """
    known = {path.stem: path for path in sorted(TABLES.glob("*.yaml"))}
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise ExperimentError(f"no published table is called {name!r}; {hint}")
    return load_table(known[name])


def load_table(path: Path) -> PublishedTable:
    """Return the published table in a file.

    Raises:
        ExperimentError: the file cannot be read, has a value that is not allowed, or gives a published value for a cell
            that the sweep does not have.
    """
    return _table(read_document(path, "table"), path.stem, str(path))


def _table(document: Any, name: str, where: str) -> PublishedTable:
    if not isinstance(document, Mapping) or SECTION not in document:
        raise ExperimentError(f"{where} has no section {SECTION}; add it to the keys of a sweep")
    try:
        about = Published.model_validate(document[SECTION])
    except ValidationError as error:
        said = one_line(error, lambda _: f"unknown key; there are {', '.join(Published.model_fields)}")
        raise ExperimentError(f"{where}: {SECTION}: {said}") from None
    sweep = sweep_of({k: v for k, v in document.items() if k != SECTION}, name=name, where=where, beside=TABLES)
    values = dict(_values(about.values, sweep, where))
    own = {**yaml.safe_load(sweep.text), SECTION: document[SECTION]}
    return PublishedTable(name=name, about=about, sweep=sweep, values=values, document=own)


def _values(given: Any, sweep: Sweep, where: str, choices: tuple[str, ...] = ()) -> Iterator[tuple[Place, Value]]:
    """Yield each published value with its place in the table.

    `given` is a nested mapping: one level per axis of the sweep, and then one level for the cells. `choices` are the
    keys above `given`, and `where` begins error messages.
    """
    if not isinstance(given, Mapping):
        raise ExperimentError(f"{where}: values of {', '.join(choices)} must be a mapping of names, not {given!r:.80}")
    for key, found in given.items():
        if len(choices) < len(sweep.axes):
            yield from _values(found, sweep, where, (*choices, str(key)))
            continue
        place = Place(cell=str(key), setting=tuple(zip(sweep.axes, choices, strict=True)))
        if place not in sweep.places:
            raise ExperimentError(f"{where}: values name {place.label}, which is not in the sweep; correct the name")
        yield place, _value(found, f"{where}: {place.label}")


def _value(given: Any, where: str) -> Value:
    numbers = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not 1 <= len(numbers) <= 2 or not all(type(n) in (int, float) and abs(n) <= LARGEST for n in numbers):
        raise ExperimentError(f"{where}: a value is a mean, or [mean, standard deviation], not {given!r:.80}")
    return Value(mean=float(numbers[0]), deviation=float(numbers[1]) if len(numbers) == 2 else None)


def selected(sweep: Sweep, cells: Sequence[str] = (), seeds: Sequence[int] = ()) -> Sweep:
    """Return the part of a sweep with these cells and seeds. If `cells` is empty, all cells are taken. If `seeds` is
    empty, all seeds are taken.

    An entry of `cells` is a cell, or a cell and its choices, such as `fedavg/dirichlet`; `*` matches any text.

    Raises:
        ExperimentError: no run has this cell or seed.
    """
    names = {place: "/".join(place.words) for place in sweep.places}
    for pattern in cells:
        if not any(_fits(name, pattern) for name in names.values()):
            raise ExperimentError(f"--cells {pattern}: no cell has this name; there are {', '.join(names.values())}")
    places = {place for place, name in names.items() if not cells or any(_fits(name, p) for p in cells)}
    return sweep.only(run for run in sweep.runs if run.place in places and (not seeds or run.seed in seeds))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")
