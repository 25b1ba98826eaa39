"""Group finished runs that differ only in their seed, and compute the mean and spread over the seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from emulator.console.units import NO_VALUE
from emulator.results.read_record import RunRecord
from fedstrata.experiment.keys_of_files import HASHED, with_files
from fedstrata.tasks import CLASSIFICATION, Metric

FREE_KEYS = ("seed", "data.folder", "data.download")  # keys in which the runs of one group may differ
MEAN = "Mean"  # cannot be a task, because names of tasks have small letters


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


@dataclass(frozen=True, kw_only=True)
class Form:
    """Describe how a number is written: its factor, its decimals and its unit. If `digits` is None, the number has four
    significant digits.
    """

    factor: float = 1.0
    digits: int | None = None
    unit: str = ""

    @classmethod
    def of(cls, metric: Metric) -> "Form":
        """Return the form in which a metric's values are written."""
        return cls(factor=100, digits=1, unit="%") if metric.is_percent else cls(unit=metric.label)

    def said(self, mean: float, deviation: float | None, *, sign: str = "") -> str:
        """Return a mean and its deviation as text, such as 73.5 ± 1.2. Negative numbers have the minus sign −, not a
        hyphen.
        """
        kind = ".4g" if self.digits is None else f".{self.digits}f"
        spread = "" if deviation is None else f" ± {self.factor * deviation:{kind}}"
        return f"{self.factor * mean:{sign}{kind}}{spread}".replace("-", "−")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Hold the mean and the sample standard deviation of the known values. `count` of `of` values are known. Without
    known values, mean and deviation are None. With a single known value, only the deviation is None.
    """

    mean: float | None
    deviation: float | None
    count: int
    of: int

    @classmethod
    def over(cls, values: Sequence[float | None]) -> "Spread":
        """Return the spread of the values that are not None."""
        found = known(values)
        mean = fmean(found) if found else None
        deviation = stdev(found) if len(found) > 1 else None
        return cls(mean=mean, deviation=deviation, count=len(found), of=len(values))

    def said(self, form: Form, *, sign: str = "") -> str:
        """Return mean and deviation as text without a unit, such as 91.0 ± 1.2. If some values are not known, the text
        says how many are: 91.0 (1 of 2).
        """
        if self.mean is None:
            return NO_VALUE
        part = f" ({self.count} of {self.of})" if self.count < self.of else ""
        return form.said(self.mean, self.deviation, sign=sign) + part


@dataclass(frozen=True, kw_only=True)
class Group:
    """Hold runs that differ only in their seed. `variant` is a text that distinguishes groups with the same name and
    method.
    """

    name: str
    method: str
    variant: str
    runs: tuple[RunRecord, ...]  # completed runs, one per seed

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.summary.seed for run in self.runs)

    @property
    def headline(self) -> Metric:
        """The main metric, by which the group's runs are compared."""
        return self.runs[0].headline

    def measured(self, task: str) -> Spread:
        """Return the spread of the main metric over the seeds. `task` is a true task, or `MEAN` for the mean over
        clusters.
        """
        return Spread.over([measured_of(run, task) for run in self.runs])

    def adjusted_rand_index(self) -> Spread:
        return Spread.over([run.summary.adjusted_rand_index for run in self.runs])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Hold a comparison of runs: the runs in the given order, their groups, and all true tasks."""

    runs: tuple[RunRecord, ...]
    groups: tuple[Group, ...]
    tasks: tuple[str, ...]


def measured_of(run: RunRecord, task: str) -> float | None:
    """Return a run's main metric. `task` is a true task, or `MEAN` for the mean over clusters."""
    if task == MEAN:
        return run.summary.mean
    return (run.summary.of_headline.tasks or {}).get(task)


def headlines_of(runs: Iterable[RunRecord]) -> tuple[Metric, ...]:
    """Return the different main metrics of some runs. If there are no runs, return the main metric of a
    classification.
    """
    return tuple(dict.fromkeys(run.headline for run in runs)) or CLASSIFICATION.metrics


def groups_of(runs: Sequence[RunRecord]) -> tuple[Group, ...]:
    """Return the completed runs, grouped by name, method and settings. If several runs of a group have the same seed,
    only the first is used.
    """
    settings = [settings_of(run.experiment) for run in runs]
    members: dict[tuple[str, str, frozenset[tuple[str, str]]], dict[int, RunRecord]] = {}
    for run, keys in zip(runs, settings, strict=True):
        if run.summary.status == "completed":
            group = members.setdefault((run.name, run.summary.method, frozenset(keys.items())), {})
            group.setdefault(run.summary.seed, run)
    groups = []
    for (name, method, own_keys), by_seed in members.items():
        alike = [other for *whose, other in members if whose == [name, method]]
        own = own_keys.difference(frozenset.intersection(*alike))
        variant = ", ".join(f"{key}={value}" for key, value in sorted(own, key=_names_first))
        groups.append(Group(name=name, method=method, variant=variant, runs=tuple(by_seed.values())))
    return tuple(groups)


def _names_first(setting: tuple[str, str]) -> tuple[bool, str]:
    """Sort settings by key. Names, such as training.gps_optimiser.name, come first, because they say the most."""
    key, _ = setting
    return not key.endswith(".name"), key


def settings_apart(runs: Sequence[RunRecord]) -> dict[str, dict[str, list[RunRecord]]]:
    """Return the settings that differ between runs, except name, method and seed. The result maps each such key to its
    values, and each value to the runs with this value. If only some runs have a file of the user's own code, this file
    is left out.
    """
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for run in runs:
        for key, value in settings_of(run.experiment).items():
            if key != "name" and key.partition(".")[0] != "method":
                found.setdefault(key, {}).setdefault(value, []).append(run)
    found = {key: values for key, values in found.items() if not key.startswith("files.") or len(values) > 1}
    return {key: values for key, values in sorted(found.items()) if list(values.values()) != [list(runs)]}


def settings_of(experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return all settings of an experiment in a record, including defaults, by dotted key such as
    `training.batch_size`. Keys that may differ within a group are left out, and so are the paths of files.
    """
    without_paths = with_files(experiment, HASHED, lambda section, name, _: {**section, name: None})
    return {key: value for key, value in _flat(without_paths).items() if key not in FREE_KEYS}


def _flat(node: Any, prefix: str = "") -> dict[str, str]:
    """Return nested mappings as dotted keys, with their values as text."""
    if not isinstance(node, Mapping):
        return {prefix: str(node)}
    flat: dict[str, str] = {}
    for key, child in node.items():
        flat.update(_flat(child, f"{prefix}.{key}" if prefix else str(key)))
    return flat
