"""Read a search file: an experiment, what may vary, a target, and what the plan saves (docs/plan.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from emulator.planner.resources import Resource
from emulator.sweeps.file import Sweep, read_document, sweep_of
from fedstrata.clock.clocks import clock_of
from fedstrata.errors import ExperimentError
from fedstrata.experiment.error_lines import one_line
from fedstrata.experiment.sections import Settings
from fedstrata.experiment.yaml_files import read_yaml

MOST_CANDIDATES = 10_000
ROUNDS_KEY = "training.global_rounds"
SWEEP_KEYS = ("base", "seeds", "vary")  # of a search file, with the meaning that they have in a sweep file


class Limits(Settings):
    """Hold what a run may use at most until it reaches the target. Without a value there is no limit."""

    seconds: float | None = Field(default=None, gt=0)  # of virtual time
    device_bytes: float | None = Field(default=None, gt=0)  # of all devices, in both directions
    lps_gps_bytes: float | None = Field(default=None, gt=0)  # between LPSs and the GPS, in both directions
    joules: float | None = Field(default=None, gt=0)  # of all devices

    @property
    def given(self) -> dict[Resource, float]:
        """The limits that the file sets."""
        return {Resource(name): value for name, value in self if value is not None}


class SearchFile(Settings):
    """Hold and check the keys of a search file. `base` and `vary` are checked as in a sweep file."""

    base: str | dict[str, Any]
    vary: dict[str, Any] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    aim: Resource
    target: float  # of the main metric
    trainings: int = Field(default=20, ge=1, le=1000)  # candidates that are trained at most
    limits: Limits = Limits()

    @field_validator("vary")
    @classmethod
    def _rounds_are_the_limit(cls, value: dict[str, Any]) -> dict[str, Any]:
        if ROUNDS_KEY in value:
            raise ValueError(f"{ROUNDS_KEY} is how long a training may last, not a choice; set it in the base")
        return value

    @model_validator(mode="after")
    def _a_seed_once(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds has a seed twice; remove one")
        return self


@dataclass(frozen=True, kw_only=True)
class Search:
    """Hold a search: its file, and its candidates as the runs of a sweep. The planner trains some of these runs."""

    file: SearchFile
    sweep: Sweep
    text: str  # the file's content, with the experiment in place of the base's name


def load_search(path: Path) -> Search:
    """Return the search in a file. Every candidate's experiment is checked.

    Raises:
        ExperimentError: the file cannot be read, or has a value that is not allowed. If the value belongs to a
            candidate, the message names the candidate.
    """
    document = read_document(path, "search file")
    if not isinstance(document, Mapping):
        raise ExperimentError(f"{path} must be a mapping of keys to values, not {type(document).__name__}")
    try:
        file = SearchFile.model_validate(document)
    except ValidationError as error:
        known = ", ".join(SearchFile.model_fields)
        said = one_line(error, lambda _: f"unknown key; a search has {known} (docs/plan.md)")
        raise ExperimentError(f"{path}: {said}") from None
    sweep = sweep_of({key: document[key] for key in SWEEP_KEYS}, name=path.stem, where=str(path), beside=path.parent)
    if len(sweep.places) > MOST_CANDIDATES:
        raise ExperimentError(
            f"{path}: vary has {len(sweep.places):,} combinations, but a search has at most {MOST_CANDIDATES:,}; give "
            "fewer choices"
        )
    _check_predictable(sweep, path)
    text = yaml.safe_dump({**document, "base": read_yaml(sweep.text)["base"]}, sort_keys=False)
    return Search(file=file, sweep=sweep, text=text)


def _check_predictable(sweep: Sweep, path: Path) -> None:
    """Check that the costs of each candidate can be predicted, and that its global models are measured."""
    for run in sweep.runs:
        training = run.experiment.training
        if training.evaluate_all_every is None and not training.asks_all(run.experiment.device_count):
            raise ExperimentError(
                f"{path}: {run.place.label} asks only some devices in a round, so nobody measures the target; set "
                "training.evaluate_all_every in the base, such as 1"
            )
        if not clock_of(run.experiment).has_timeline:
            raise ExperimentError(
                f"{path}: {run.place.label} has clock: {run.experiment.clock}, but only the virtual clock predicts "
                "times; set clock: virtual in the base"
            )
        if run.experiment.partition.is_local:
            raise ExperimentError(
                f"{path}: {run.place.label} has a local partition, so only the boards know their examples; give "
                "another partition"
            )
