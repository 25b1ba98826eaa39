"""Measure how evenly a run serves its devices, and how much each device gains over training alone.

Worst tenth and variance: T. Li, M. Sanjabi, A. Beirami and V. Smith, *Fair Resource Allocation in Federated Learning*,
ICLR 2020. Jain's index: R. Jain, D. Chiu and W. Hawe, *A Quantitative Measure of Fairness*, 1984.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from emulator.results.read_record import RunRecord
from fedstrata.tasks import Metric

TENTH = 10


def worst_tenth(values: Sequence[float], metric: Metric) -> float | None:
    """Return the mean over the worst tenth of the devices. The number of these devices is rounded up."""
    worst_first = sorted(values, reverse=not metric.higher_is_better)
    return fmean(worst_first[: math.ceil(len(values) / TENTH)]) if values else None


def variance(values: Sequence[float]) -> float | None:
    """Return the variance over devices: the mean squared difference from the mean value."""
    return pvariance(values) if values else None


def jains_index(values: Sequence[float]) -> float | None:
    """Return Jain's index (Σx)² / (n Σx²). It is 1 if all devices have the same value, and 1/n if all devices but one
    have 0. If a value is below 0, or if all values are 0, return None. The order of the values does not change the
    result, not even in the last bit.
    """
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares and min(values) >= 0 else None


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Hold the gain of each device over training alone. A positive gain is an improvement. If lower values of the
    metric are better, as for an error, the gain is the decrease.
    """

    gains: Mapping[str, float]
    """Gain of each device by `SEED/DEVICE`, the seed of the run and the id of the device."""

    @property
    def losing(self) -> int:
        """The number of devices with a better value when they train alone."""
        return sum(gain < 0 for gain in self.gains.values())


def worth(pairs: Iterable[tuple[RunRecord, RunRecord]]) -> Worth:
    """Return the gains of devices over training alone. Each pair has a run, and another run with the same seed in which
    devices train alone.
    """
    found = [(run.summary.seed, device, gain) for run, alone in pairs for device, gain in _gains(run, alone)]
    return Worth(gains={f"{seed}/{device}": gain for seed, device, gain in found})


def _gains(run: RunRecord, alone: RunRecord) -> list[tuple[str, float]]:
    """Return the gain of each device that is measured in both runs."""
    sign = 1 if run.headline.higher_is_better else -1
    together, by_itself = (_measured(each) for each in (run, alone))
    return [(name, sign * (value - by_itself[name])) for name, value in together.items() if name in by_itself]


def _measured(run: RunRecord) -> Mapping[str, float]:
    return {name: value for name, value in run.summary.of_headline.devices.items() if value is not None}
