"""Compare the resources that a plan predicts with the resources that a run of the planned experiment has used."""

import csv
from dataclasses import dataclass
from pathlib import Path

from emulator.console.units import NO_VALUE
from emulator.planner.costs import used_until
from emulator.planner.output import EXPERIMENT, SEARCH, TABLE
from emulator.planner.plan import reached_at
from emulator.planner.resources import Resource
from emulator.results.over_seeds import settings_of
from emulator.results.read_record import load_record
from fedstrata.errors import DataError
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.record.tables import read_text


@dataclass(frozen=True, kw_only=True)
class Against:
    """Hold the global rounds and resources until the target: as a plan predicts them, and as a run has used them."""

    target: float
    planned_rounds: float
    rounds: int
    planned: dict[Resource, float]
    used: dict[Resource, float]
    others: tuple[str, ...]  # settings that differ between the plan and the run, as sentences

    def rows(self) -> list[list[str]]:
        """Return a row for the global rounds and for each resource: its name, the plan's number, the run's number, and
        run divided by plan.
        """
        pairs = [("global rounds", f"{self.planned_rounds:.3g}", f"{self.rounds}", self.rounds / self.planned_rounds)]
        pairs += [
            (name.label, name.said(amount), name.said(self.used[name]), self.used[name] / amount)
            for name, amount in self.planned.items()
            if name in self.used and amount
        ]
        return [[name, planned, used, f"{ratio:.3f}"] for name, planned, used, ratio in pairs]


def is_plan(folder: Path) -> bool:
    """Return whether a folder has the result of a search (`write_plan`)."""
    return (folder / TABLE).is_file() and (folder / SEARCH).is_file()


def against(plan: Path, run: Path) -> Against:
    """Compare a plan with a run.

    Raises:
        DataError: a file of the plan or the record is missing or malformed, or the run missed the target.
    """
    try:
        target = float(read_yaml(read_text(plan / SEARCH))["target"])
        (row,) = [row for row in csv.DictReader(read_text(plan / TABLE).splitlines()) if row["plan"] == "1"]
        rounds = float(row["rounds"])
        planned = {name: float(row[name.value]) for name in Resource if row[name.value]}
        settings = settings_of(read_yaml(read_text(plan / EXPERIMENT)))
    except (AttributeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{plan} has no complete plan: {error}; do the search again") from None
    record = load_record(run)
    reached = reached_at(record, target)
    if reached is None:
        raise DataError(f"{run} did not reach the plan's target {target:g}, so there is nothing to compare")
    used = dict(used_until(record, reached))
    own = settings_of(record.experiment)
    others = tuple(
        f"{key} is {own.get(key, NO_VALUE)} in the run, but {settings.get(key, NO_VALUE)} in the plan"
        for key in sorted(own.keys() | settings.keys())
        if own.get(key) != settings.get(key) and key != "name"
    )
    return Against(target=target, planned_rounds=rounds, rounds=reached, planned=planned, used=used, others=others)
