"""Define on which data a sweep compares candidates when it tunes."""

from dataclasses import dataclass
from typing import Protocol

from emulator.sweeps.tune_section import Overrides, TuneSettings


class Selection(Protocol):
    """Define which runs measure a candidate. Their main measure decides, and is never reported as a test."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of each candidate's runs."""

    @property
    def changes(self) -> Overrides:
        """The changes to each candidate's experiment."""


@dataclass(frozen=True)
class TuningSeeds:
    """Compare candidates on tests of seeds that are not reported."""

    seeds: tuple[int, ...]

    @property
    def changes(self) -> Overrides:
        return {}


def selection_of(tune: TuneSettings) -> Selection:
    """Return the selection that a sweep file asks for."""
    return TuningSeeds(tune.seeds)
