"""Read a search file: an experiment, the choices that may vary, a target, and the resource that the plan saves.

docs/tutorial/choose-a-topology.md has an example and the keys.
"""

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from emulator.planner.place import PlaceSettings, with_places
from emulator.planner.resources import Resource
from emulator.sweeps.file import Sweep, read_document, sweep_of
from fedstrata.clock.clocks import clock_of
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.error_lines import one_line
from fedstrata.experiment.sections import Settings
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.methods import make_method, trained_examples_of

MOST_CANDIDATES = 2_000
TAKEN = {"rounds", "models_trained", "plan", *Resource, *(f"measured_{name}" for name in Resource)}  # of plan.csv
SWEEP_KEYS = ("base", "seeds", "vary")  # of a search file, with the meaning that they have in a sweep file


class Limits(Settings):
    """Hold how much of each resource a run may use until it reaches the target. A resource without a value has no
    limit.
    """

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
    place: PlaceSettings | None = None  # which device is at which LPS; None: as in the experiments

    @field_validator("vary")
    @classmethod
    def _few_candidates(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := TAKEN.intersection(value):
            raise ValueError(f"an axis cannot be called {min(taken)}, a column of plan.csv; give another name")
        count = math.prod(len(choices) for choices in value.values() if isinstance(choices, Sized))
        if count > MOST_CANDIDATES:
            raise ValueError(f"{count:,} combinations are more than {MOST_CANDIDATES:,}; give fewer choices")
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
        said = one_line(error, lambda _: f"unknown key; a search has {known} (docs/tutorial/choose-a-topology.md)")
        raise ExperimentError(f"{path}: {said}") from None
    sweep = sweep_of({key: document[key] for key in SWEEP_KEYS}, name=path.stem, where=str(path), beside=path.parent)
    _check_predictable(sweep, path)
    if file.place is not None:
        sweep = with_places(sweep, file.place, file.aim, where=str(path))
    text = yaml.safe_dump({**document, "base": read_yaml(sweep.text)["base"]}, sort_keys=False)
    return Search(file=file, sweep=sweep, text=text)


def _check_predictable(sweep: Sweep, path: Path) -> None:
    """Check that the costs of each candidate can be predicted, and that its global models are measured."""
    for run in sweep.runs:
        if said := _unpredictable(run.experiment):
            raise ExperimentError(f"{path}: {', '.join(run.place.choices)}: {said}")
    if len({run.experiment.training.global_rounds for run in sweep.runs}) > 1:
        raise ExperimentError(
            f"{path}: training.global_rounds is how long a training may last, not a choice; set it only in the base"
        )


def _unpredictable(experiment: Experiment) -> str:
    """Return why the planner cannot predict an experiment. If it can, return an empty text."""
    training, method = experiment.training, make_method(experiment)
    reasons = {
        f"clock is {experiment.clock}, but only the virtual clock predicts times; set clock: virtual": not clock_of(
            experiment
        ).has_timeline,
        "rounds ask only some devices, so nobody measures the target; set training.evaluate_all_every, such as 1": (
            training.evaluate_all_every is None and not training.asks_all(experiment.device_count)
        ),
        "only the boards know their examples; give another partition than local": experiment.partition.is_local,
        "predictions do not know which devices miss a deadline; leave deadlines out": (
            experiment.deadlines.lps.deadline_s is not None
        ),
        "predictions do not follow a schedule; leave schedule out": bool(experiment.schedule),
        f"method {experiment.method.name} finds the number of clusters in the run, and bytes depend on it; set it "
        "with method.clusters, or choose another method": not method.clusters_known,
        f"method {experiment.method.name} cannot say on how many examples devices train; choose another method": (
            trained_examples_of(method, 1, 0) is None
        ),
    }
    return next((said for said, is_so in reasons.items() if is_so), "")
