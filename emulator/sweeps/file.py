"""Read a sweep file: a base experiment, and the cells, settings and seeds of its runs (docs/sweep.md)."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from emulator.shipped.experiments import find_experiment
from emulator.sweeps.selection import Tuned, selection_of
from emulator.sweeps.tune_section import Overrides, TuneSettings
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.error_lines import one_line
from fedstrata.experiment.keys_of_files import FILE_KEYS, with_files
from fedstrata.experiment.sections import Settings
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.experiment_file import checked, overridden, override_of
from fedstrata.process.regular_files import check_regular
from fedstrata.store.own_code import with_digests

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,59}")  # of cells, axes and choices, which become names of folders
# The columns of table.csv, which follow the columns that name the cell and the choice on each axis
MEASURED: Mapping[str, type] = {
    "measure": str, "seeds": int, "mean": float, "std": float, "baseline": str, "pairs": int,
    "difference_mean": float, "difference_std": float, "better": int,
}  # fmt: skip
TEST_SET = "test_set"  # a further column, unless all runs measured on devices' own tests
TAKEN = {"cell", "seed", TEST_SET, *MEASURED}  # columns of a sweep's tables, which no axis may have as its name
MOST_RUNS = 100_000
LONGEST_FOLDER = 255  # characters in the name of a folder, on most file systems
BASE_CELL = "base"  # the only cell, if the file has no cells
Changes = Sequence[tuple[str, Any]]  # keys as in --set, with their values, in the order in which they are set


class SweepFile(Settings):
    """Hold and check the keys of a sweep file."""

    base: str | dict[str, Any]  # an experiment file beside this one, the name of an example, or an experiment
    seeds: tuple[int, ...] = Field(min_length=1)
    cells: dict[str, Overrides] = Field(default_factory=lambda: {BASE_CELL: Overrides()}, min_length=1)
    vary: dict[str, dict[str, Overrides]] = Field(default_factory=dict)  # axis: choice: overrides
    baseline: str | None = None  # the cell that the others are compared with
    tune: TuneSettings | None = None  # values that are chosen per row before the runs of the table
    rows: dict[str, Overrides] = Field(default_factory=dict)  # label of a row: overrides that win over cell and axes

    @field_validator("seeds")
    @classmethod
    def _once_each(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        twice = [seed for seed, count in Counter(value).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is given twice; remove one")
        return value

    @field_validator("cells", mode="before")
    @classmethod
    def _cell_without_changes(cls, value: Any) -> Any:
        return {name: own or {} for name, own in value.items()} if isinstance(value, Mapping) else value

    @field_validator("vary", mode="before")
    @classmethod
    def _named_choices(cls, value: Any) -> Any:
        return {key: _choices(key, given) for key, given in value.items()} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in (*self.cells, *self.vary, *(choice for axis in self.vary.values() for choice in axis)):
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot be a name; give at most 60 letters, digits and _ . + -, a letter or digit first"
                )
        if taken := TAKEN.intersection(self.vary):
            raise ValueError(
                f"an axis cannot be called {min(taken)}, because tables have this column; give another name"
            )
        if empty := [axis for axis, choices in self.vary.items() if not choices]:
            raise ValueError(f"vary.{empty[0]} has no values; give at least one, or remove this axis")
        runs = prod(map(len, (self.seeds, self.cells, *self.vary.values())))
        if runs > MOST_RUNS:
            raise ValueError(f"{runs:,} runs are more than {MOST_RUNS:,}; give fewer seeds, cells or choices")
        axes = (choice for axis in self.vary.values() for choice in axis.items())
        for where, own in (*self.cells.items(), *self.rows.items(), *axes):
            if "seed" in own:
                raise ValueError(f"{where} sets the seed; give all seeds in `seeds`")
        if self.baseline is not None and self.baseline not in self.cells:
            raise ValueError(f"baseline {self.baseline!r} is not a cell; there are {', '.join(self.cells)}")
        if self.rows and (unknown := self.rows.keys() - {place.label for place in self.places()}):
            raise ValueError(f"rows has {min(unknown)!r}, which is no row; give CELL, AXIS=CHOICE, …")
        if self.rows and self.tune is not None:
            raise ValueError("rows cannot be tuned; remove rows or tune")
        if self.tune is not None:
            keys = {f"vary.{axis}": [*chain(*choices.values())] for axis, choices in self.vary.items()}
            self.tune.check({**{f"cell {name}": own for name, own in self.cells.items()}, **keys}, self.seeds)
        return self

    def places(self) -> "list[Place]":
        """Return the rows of the sweep's table."""
        return [place for place, _ in _places(self)]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Identify a row of the sweep's table by its cell and its setting."""

    cell: str
    setting: tuple[tuple[str, str], ...] = ()  # (axis, choice) of every axis

    @property
    def label(self) -> str:
        return ", ".join((self.cell, *self.choices))

    @property
    def choices(self) -> tuple[str, ...]:
        """The setting as `axis=choice` texts."""
        return tuple(f"{axis}={choice}" for axis, choice in self.setting)

    @property
    def words(self) -> tuple[str, ...]:
        """The cell, followed by the choice of each axis."""
        return (self.cell, *(choice for _, choice in self.setting))


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """Describe one run of a sweep: its cell, its setting (one choice for each axis in `vary`), and its seed."""

    place: Place
    experiment: Experiment

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def label(self) -> str:
        return f"{self.place.label}, seed {self.seed}"

    @property
    def path(self) -> Path:
        """The path of the run's folder in the sweep's folder: runs/CELL/seed-3, or runs/CELL/AXIS=CHOICE,…/seed-3."""
        return Path("runs", self.place.cell, ",".join(self.place.choices), f"seed-{self.seed}")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Hold a sweep with all its runs. The runs are ordered by seed, so that every cell has its first result early."""

    name: str
    text: str  # the file's content, with the experiment in place of the base's name
    axes: tuple[str, ...]
    places: tuple[Place, ...]
    seeds: tuple[int, ...]
    baseline: str | None
    runs: tuple[SweepRun, ...]
    tuned: Tuned | None = None  # None: nothing was tuned

    def only(self, runs: Iterable[SweepRun]) -> "Sweep":
        """Return the part of the sweep with these runs. If no run belongs to the baseline's cell, the part has no
        baseline.
        """
        runs = tuple(runs)
        places, seeds = {run.place for run in runs}, {run.seed for run in runs}
        return replace(
            self,
            places=tuple(place for place in self.places if place in places),
            seeds=tuple(seed for seed in self.seeds if seed in seeds),
            baseline=self.baseline if any(place.cell == self.baseline for place in places) else None,
            runs=runs,
        )


def load_sweep(path: Path) -> Sweep:
    """Return the sweep in a file. Check each experiment, and check that no two cells are the same experiment.

    Raises:
        ExperimentError: the file is missing, is not YAML, or has a value that is not allowed. If the value belongs to a
            cell, the message names the cell.
    """
    document = read_document(path, "sweep file")
    name = path.stem if path.name != "sweep.yaml" else path.resolve().parent.name
    return sweep_of(document, name=name, where=str(path), beside=path.parent)


def read_document(path: Path, what: str) -> Any:
    """Return the content of a YAML file. Raises ExperimentError if the file cannot be read. `what`, such as "sweep
    file", names the file in the message.
    """
    try:
        check_regular(path)
        return read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ExperimentError(f"cannot read the {what} {path}: {said}; give the path of a {what}") from None
    except ValueError as error:
        raise ExperimentError(f"{path} {error}") from None


def is_sweep(path: Path) -> bool:
    """Return whether a file is a sweep file or a search file: only these have the key `base`."""
    if not path.is_file():
        return False
    try:
        document = read_document(path, "sweep file")
    except ExperimentError:
        return False
    return isinstance(document, Mapping) and "base" in document


def sweep_of(document: Any, *, name: str, where: str, beside: Path) -> Sweep:
    """Return the sweep that a document describes. `document` is the parsed content of a sweep file.

    If `base` is the path of a file, the path is relative to the folder `beside`. `where` names the document in error
    messages.

    Raises:
        ExperimentError: a value is missing or not allowed.
    """
    file = sweep_file(document, where)
    base = _base(file.base, beside, where)
    try:
        text = yaml.safe_dump({**document, "base": base}, sort_keys=False)
        plain = read_yaml(yaml.safe_dump(base))
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # of a document that was not read from a file
        said = " ".join(map(str, error.args))
        raise ExperimentError(f"{where}: {said}; give only texts, numbers, lists and mappings") from None
    tuned = _tuned(file, where)
    chosen = tuned.chosen if tuned else {}
    changes = {place: [*own, *chosen.get(place.label, {}).items()] for place, own in _places(file)}
    longest = max((",".join(place.choices) for place in changes), key=len)
    if len(longest) > LONGEST_FOLDER:
        raise ExperimentError(
            f"{where}: the folder {longest:.40}… would have a name of {len(longest)} characters, but {LONGEST_FOLDER} "
            "is the limit; give the axes or choices shorter names"
        )
    found = [_experiments(plain, own, file.seeds, f"{where}: {place.label}") for place, own in changes.items()]
    runs = [
        SweepRun(place=place, experiment=experiment)
        for of_seed in zip(*found, strict=True)
        for place, experiment in zip(changes, of_seed, strict=True)
    ]
    _refuse_equal(runs[: len(changes)], where)
    return Sweep(
        name=name,
        text=text,
        axes=tuple(file.vary),
        places=tuple(changes),
        seeds=file.seeds,
        baseline=file.baseline,
        runs=tuple(runs),
        tuned=tuned,
    )


def sweep_file(document: Any, where: str) -> SweepFile:
    """Return the keys of a sweep file. `where` names the document in error messages. Raises ExperimentError if a value
    is missing or not allowed.
    """
    if not isinstance(document, Mapping):
        raise ExperimentError(f"{where} must be a mapping of keys to values, not {type(document).__name__}")
    if "aim" in document:
        raise ExperimentError(f"{where} is a search file; give it to fedstrata plan")
    try:
        return SweepFile.model_validate(document)
    except ValidationError as error:
        known = ", ".join(SweepFile.model_fields)
        said = one_line(error, lambda _: f"unknown key; a sweep has {known} (docs/sweep.md)")
        raise ExperimentError(f"{where}: {said}") from None


def _tuned(file: SweepFile, where: str) -> Tuned | None:
    """Return what was tuned. Raises ExperimentError if values are not chosen yet, or not for every row."""
    if file.tune is None:
        return None
    if file.tune.chosen is None:
        raise ExperimentError(
            f"{where}: tune has chosen no values yet; give fedstrata sweep FILE --out DIR on this machine, and then "
            "DIR/sweep.yaml, which has them"
        )
    chosen, rows = file.tune.chosen, [place.label for place in file.places()]
    lacking = [(row, key) for row in (*rows, *chosen) for key in file.tune.grid if key not in chosen.get(row, {})]
    if lacking:
        row, key = lacking[0]
        raise ExperimentError(f"{where}: tune.chosen has no value of {key} for {row!r}; leave tune.chosen out")
    return Tuned(settings=file.tune, chosen_on=selection_of(file.tune, file.seeds), chosen=chosen)


def name_of(value: Any) -> str:
    """Return a value as text. In a list of choices, it is the name of the choice."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _choices(axis: str, given: Any) -> Any:
    """Return the choices of an axis by their names. `given` is a mapping of names to changes, or a list of values. For
    a list, the name of the axis is the key that gets these values.
    """
    if isinstance(given, Mapping):
        return {str(choice): own or {} for choice, own in given.items()}
    if not isinstance(given, Sequence) or isinstance(given, str):
        said = f"{axis} takes a list of values, or a mapping of names to overrides, not {given!r:.80}"
        raise ValueError(said)  # noqa: TRY004  # pydantic turns it into a ValidationError
    names = [name_of(value) for value in given]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{axis} has {twice[0]} twice")
    if any(isinstance(value, list | dict) for value in given):
        raise ValueError(
            f"{axis} has a list or mapping as a value; give each choice a name: {{NAME: {{{axis}: VALUE}}}}"
        )
    if wrong := [name for name in names if not NAME.fullmatch(name)]:
        raise ValueError(
            f"{axis} has the value {wrong[0]!r:.80}, which cannot be a name; give each choice a name: "
            f"{{NAME: {{{axis}: VALUE}}}}"
        )
    return {name: {axis: value} for name, value in zip(names, given, strict=True)}


def _places(file: SweepFile) -> Iterator[tuple[Place, Changes]]:
    """Yield each combination of a cell and a setting, with its changes to the base experiment. The changes of the cell
    follow those of the setting, and the changes in `rows` are last. So, if they change the same key or section, `rows`
    wins over the cell, and the cell wins over the setting.
    """
    for choices in product(*(axis.items() for axis in file.vary.values())):
        setting = tuple((axis, choice) for axis, (choice, _) in zip(file.vary, choices, strict=True))
        for cell, own in file.cells.items():
            place = Place(cell=cell, setting=setting)
            changes = (*(varied for _, varied in choices), own, file.rows.get(place.label, {}))
            yield place, [change for each in changes for change in each.items()]


def _base(given: str | dict[str, Any], beside: Path, where: str) -> dict[str, Any]:
    """Return the base experiment as a mapping with absolute paths. If `given` is a text, it names a file or an
    example.
    """
    if not isinstance(given, str):
        return _moved(given, beside.resolve())
    try:
        path = beside / given if (beside / given).is_file() else find_experiment(Path(given))
        document = read_yaml(path.read_text(encoding="utf-8"))
    except (ExperimentError, OSError, ValueError) as error:
        raise ExperimentError(f"{where}: base {given}: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ExperimentError(f"{where}: base {given} must be a mapping, not {type(document).__name__}")
    return _moved(document, path.parent.resolve())


def _moved(base: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the base experiment with absolute paths. In `base`, paths may be relative to `folder`."""
    return with_files(base, FILE_KEYS, lambda section, name, _: {**section, name: str(Path(folder, section[name]))})


def _experiments(base: dict[str, Any], changes: Changes, seeds: Sequence[int], where: str) -> list[Experiment]:
    """Return the experiment of a cell in a setting, once for each seed."""
    try:
        document = overridden(base, [override_of(key, value) for key, value in changes])
        found = [checked(document, Path(where).parent, seed) for seed in seeds]
        files = with_digests(found[0]).files
        return [each.model_copy(update={"files": files}) for each in found]
    except ExperimentError as error:
        raise type(error)(f"{where}: {str(error).removeprefix('--set ')}") from None


def _refuse_equal(runs: Sequence[SweepRun], where: str) -> None:
    """Check that no two runs have the same experiment. Raises ExperimentError if they have, for instance because two
    cells are equal.
    """
    seen: dict[str, str] = {}
    for run in runs:
        digest = run.experiment.model_copy(update={"name": "same"}).digest
        if digest in seen:
            raise ExperimentError(
                f"{where}: {seen[digest]!r} and {run.place.label!r} are the same experiment; leave one out"
            )
        seen[digest] = run.place.label
