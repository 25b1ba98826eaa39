"""Define the section `tune` of a sweep file: a grid of values, and the data on which one is chosen (docs/sweep.md)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from fedstrata.experiment.sections import Settings

Overrides = dict[str, Any]  # values by dotted key, as in --set
VALIDATION_KEYS = ("partition.tests", "partition.validation_share")  # of candidates that measure on validation examples


class TuneSettings(Settings):
    """Hold and check the keys of `tune`. The user does not set `chosen`: the sweep writes it into the file in its
    folder.
    """

    grid: dict[str, list[Any]] = Field(min_length=1)  # key of the experiment: values
    seeds: tuple[int, ...] = ()  # of each candidate's runs
    validation_share: float | None = Field(default=None, gt=0, lt=1)  # of training examples that candidates measure on
    chosen: dict[str, Overrides] | None = None  # by row of the table: its values

    @property
    def num_candidates(self) -> int:
        """The number of combinations of values."""
        return math.prod(map(len, self.grid.values()))

    @model_validator(mode="after")
    def _is_a_choice(self) -> Self:
        if empty := [key for key, values in self.grid.items() if not values]:
            raise ValueError(f"grid.{empty[0]} has no values; give at least two")
        if self.num_candidates < 2:
            raise ValueError("grid has one combination, so there is nothing to choose; give more values")
        if self.validation_share is None and not self.seeds:
            raise ValueError("candidates need data to measure on; give validation_share, such as 0.2, or seeds")
        return self

    def check(self, changed: Mapping[str, Iterable[str]], seeds: Iterable[int]) -> None:
        """Check that the rest of the sweep file sets no tuned key, and reports no seed of the tuning. `changed` maps
        each cell and axis to the keys that it changes. `seeds` are the reported seeds. Raises ValueError if a key is
        set twice, or a seed is used twice.
        """
        for where, keys in changed.items():
            for key in self.grid:
                if taken := [each for each in keys if _overlap(key, each)]:
                    raise ValueError(f"{where} sets {taken[0]}, but tune.grid chooses {key}; leave one of the two out")
            if self.validation_share is not None and (taken := [key for key in keys if key in VALIDATION_KEYS]):
                raise ValueError(
                    f"{where} sets {taken[0]}, but tune.validation_share does so; leave one of the two out"
                )
        if self.validation_share is None and (both := sorted(set(self.seeds).intersection(seeds))):
            raise ValueError(
                f"tune.seeds has {both[0]}, a seed of the table; give other seeds, or validation_share, such as 0.2"
            )


def _overlap(key: str, other: str) -> bool:
    """Return whether two dotted keys are the same, or one is a section of the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
