"""Define the measures, such as the mean accuracy, that a sweep computes for each run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from emulator.results.best_round import best_round, measured_rounds
from emulator.results.device_costs import (
    bytes_in_all,
    bytes_of_training,
    bytes_repeated,
    bytes_until_grouped,
    bytes_until_nearly_final,
)
from emulator.results.fairness import jains_index, variance, worst_tenth
from emulator.results.over_seeds import MEAN, Form, known
from emulator.results.read_record import RunRecord
from fedstrata.record.summary import Measured
from fedstrata.tasks import Metric

# Names that no task can have, because names of tasks have small letters.
ARI, DEVICES, RECEIVED, NEWCOMERS = "ARI", "Devices", "Received", "Newcomers"
BEST, BEST_ROUND = "Best", "Best round"
WORST_TENTH, VARIANCE, JAIN = "Worst tenth", "Variance", "Jain"
INDEX, MEGABYTES = Form(digits=2), Form(factor=1e-6, digits=2, unit="MB")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Define one measure of a run: its column in table.csv, how the measure is computed, and how it is printed."""

    column: str
    of: Callable[[RunRecord], float | None]
    form: Form
    higher_is_better: bool = True

    def heading(self, name: str) -> str:
        """Return the heading of the measure's column with its unit."""
        return f"{name} {self.form.unit}".rstrip()


@dataclass(frozen=True)
class Measures:
    """Define the measures of runs with the main metric `metric`. Each measure has the name of its column in printed
    tables.

    For runs with another main metric, only the bytes and the adjusted Rand index have values.
    """

    metric: Metric

    @property
    def worst(self) -> str:
        """The name of the measure that gives the main metric of the worst device."""
        return "Lowest" if self.metric.higher_is_better else "Highest"

    @cached_property
    def results(self) -> Mapping[str, Measure]:
        """The measures of how good the final models and clusters of a run are: the main metric, and the adjusted Rand
        index. The index says how well the clusters agree with the true tasks.
        """
        name, of = self.metric.name, self._of
        return {
            ARI: Measure(column="adjusted_rand_index", of=lambda run: run.summary.adjusted_rand_index, form=INDEX),
            MEAN: of(f"mean_{name}", lambda values, _: values.clusters.get("mean")),
            DEVICES: of(f"device_mean_{name}", lambda values, _: _mean(values.devices.values())),
            self.worst: of(
                f"{self.worst.lower()}_{name}", lambda values, _: self.metric.worst(known(values.devices.values()))
            ),
            RECEIVED: of(f"received_{name}", lambda values, _: (values.received or {}).get("mean")),
            NEWCOMERS: of(
                f"newcomers_{name}", lambda values, run: _mean(map(values.devices.get, run.summary.newcomers))
            ),
        }

    @cached_property
    def fairness(self) -> Mapping[str, Measure]:
        """The measures of fairness: how much the main metric differs between devices."""
        name, metric = self.metric.name, self.metric
        squared = Form(factor=1e4, digits=1, unit="%²") if metric.is_percent else Form(unit=f"{metric.label}²")

        def over_devices(values: Measured, _: RunRecord) -> list[float]:
            return known(values.devices.values())

        tenth = self._of(f"worst_tenth_{name}", lambda *given: worst_tenth(over_devices(*given), metric))
        spread = self._of(f"variance_{name}", lambda *given: variance(over_devices(*given)))
        index = self._of(f"jains_index_{name}", lambda *given: jains_index(over_devices(*given)))
        return {
            WORST_TENTH: tenth,
            VARIANCE: replace(spread, form=squared, higher_is_better=False),
            JAIN: replace(index, form=Form(digits=3), higher_is_better=True),
        }

    @cached_property
    def rounds(self) -> Mapping[str, Measure]:
        """The measures of the best round: its main metric and its number. Only rounds after which all devices measured
        the model are compared. If a run has fewer than two such rounds, the measures have no values.
        """

        def best(values: Measured, run: RunRecord) -> float | None:
            rounds = measured_rounds(run)
            return rounds[best_round(run, rounds)] if len(rounds) > 1 else None

        def number(values: Measured, run: RunRecord) -> float | None:
            rounds = measured_rounds(run)
            return best_round(run, rounds) if len(rounds) > 1 else None

        of_round = self._of("best_round", number)
        return {
            BEST: self._of(f"best_{self.metric.name}", best),
            BEST_ROUND: replace(of_round, form=Form(digits=1), higher_is_better=False),
        }

    def named(self, name: str) -> Measure:
        """Return the measure with this name. If there is no such measure, `name` is the name of a true task, and the
        measure is the main metric on this task.
        """
        known = self.results.get(name) or self.fairness.get(name) or self.rounds.get(name) or COSTS.get(name)
        return known or self._of(f"{self.metric.name}_{name}", lambda values, _: (values.tasks or {}).get(name))

    def _of(self, column: str, of: Callable[[Measured, RunRecord], float | None]) -> Measure:
        def value(run: RunRecord) -> float | None:
            return of(run.summary.of_headline, run) if run.headline == self.metric else None

        return Measure(
            column=column, of=value, form=Form.of(self.metric), higher_is_better=self.metric.higher_is_better
        )

    def is_number(self, heading: str) -> bool:
        """Return whether the column with this heading contains numbers."""
        return heading in ("seeds", ARI, JAIN, BEST_ROUND) or heading.endswith(("%", "²", "MB", self.metric.label))


COSTS: Mapping[str, Measure] = {
    "until grouped": Measure(
        column="bytes_until_grouped", of=bytes_until_grouped, form=MEGABYTES, higher_is_better=False
    ),
    "until 95 %": Measure(
        column="bytes_until_95_percent", of=bytes_until_nearly_final, form=MEGABYTES, higher_is_better=False
    ),
    "training": Measure(column="training_bytes", of=bytes_of_training, form=MEGABYTES, higher_is_better=False),
    "repeated": Measure(column="repeated_bytes", of=bytes_repeated, form=MEGABYTES, higher_is_better=False),
    "in all": Measure(column="device_bytes", of=bytes_in_all, form=MEGABYTES, higher_is_better=False),
}


def _mean(values: Iterable[float | None]) -> float | None:
    found = known(values)
    return fmean(found) if found else None
