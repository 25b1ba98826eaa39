"""Define on which data a sweep compares candidates when it tunes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from emulator.sweeps.tune_section import VALIDATION_KEYS, Overrides, TuneSettings


class Selection(Protocol):
    """Define the runs in which candidates are measured. The main metric of these runs decides which candidate is
    chosen. It is not a test result of the sweep.
    """

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of each candidate's runs."""

    @property
    def changes(self) -> Overrides:
        """The changes to each candidate's experiment."""

    @property
    def said(self) -> str:
        """Sentences about the data on which candidates are compared."""


@dataclass(frozen=True)
class TuningSeeds:
    """Compare candidates on test examples, in runs with seeds that the table does not report."""

    seeds: tuple[int, ...]

    @property
    def changes(self) -> Overrides:
        return {}

    @property
    def said(self) -> str:
        return "These runs measure on tests of seeds that the table leaves out. They may overlap with its tests."


@dataclass(frozen=True)
class ValidationExamples:
    """Compare candidates on validation examples, a part of the devices' training examples.

    If the candidates' runs have the same seeds as the sweep's table, no validation example is a test example of the
    table.
    """

    seeds: tuple[int, ...]
    share: float

    @property
    def changes(self) -> Overrides:
        return dict(zip(VALIDATION_KEYS, ("validation", self.share), strict=True))

    @property
    def said(self) -> str:
        return (
            f"These runs measure on {100 * self.share:g} % of each device's training examples, on which they do not "
            "train. The table's runs train on all, except on a `partition.validation_share` of their own."
        )


def selection_of(tune: TuneSettings, reported: tuple[int, ...]) -> Selection:
    """Return the selection that a sweep file requests. `reported` has the seeds of the sweep's table."""
    if tune.validation_share is None:
        return TuningSeeds(tune.seeds)
    return ValidationExamples(tune.seeds or reported, tune.validation_share)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Hold the tuning of a sweep: the section `tune`, the runs in which candidates were compared, and the chosen values
    by row of the table.
    """

    settings: TuneSettings
    chosen_on: Selection
    chosen: Mapping[str, Overrides]

    @property
    def said(self) -> str:
        """The grid, the budget and the data in words."""
        grid = "; ".join(f"{key} from {', '.join(map(str, values))}" for key, values in self.settings.grid.items())
        seeds = self.chosen_on.seeds
        runs, names = self.settings.num_candidates * len(seeds), ", ".join(map(str, seeds))
        return f"Tuned: {grid}; {runs} runs per row, on seeds {names}. {self.chosen_on.said}"
