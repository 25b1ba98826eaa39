"""Properties of devices over time: how long they compute, when the schedule makes them leave, and to which LPS they
belong.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np

from fedstrata.experiment import Experiment
from fedstrata.experiment.schedule import ScheduleEntry
from fedstrata.methods import Moment, make_method
from fedstrata.streams.homes import asks_in_training

SPREAD, EXPONENTIAL = 0x73707264, 0x6578706F  # "sprd", "expo": addresses that only these draws use


class Boards:
    """Calculate the times that devices take to compute, in nanoseconds."""

    def __init__(self, experiment: Experiment) -> None:
        self._seed, self._compute = experiment.seed, experiment.compute
        self._factors = self._compute.factors() if self._compute is not None else {}
        self._per_example: dict[int, Fraction] = {}
        self._answers_trained = asks_in_training(make_method(experiment)) is Moment.TRAINED

    def compute_ns(self, index: int, lps_round: int, examples: int) -> int:
        """Return how long a device computes in an LPS round. `examples` is the number of examples on which the device
        trains in the round.
        """
        compute = self._compute
        if compute is None:
            return 0
        busy = self.training_ns(index, examples) + (compute.minimum or 0)
        if compute.exponential is not None:
            draws = np.random.default_rng([self._seed, EXPONENTIAL, lps_round, index])
            busy += round(draws.exponential(compute.exponential))
        return busy

    def training_ns(self, index: int, examples: int) -> int:
        """Return how long a device trains on this many examples, without the settings `minimum` and `exponential` of
        the section `compute`.
        """
        if self._compute is None or self._compute.per_example is None:
            return 0
        if index not in self._per_example:
            self._per_example[index] = self._compute.per_example * self._factor(index)
        return round(self._per_example[index] * examples)

    def answering_ns(self, index: int, lps_round: int, examples: int) -> int:
        """Return how long a device computes for its answer in an LPS round. `examples` is the number of examples on
        which the device trains for the answer.
        """
        if self._answers_trained:
            return self.compute_ns(index, lps_round, examples)
        return self.training_ns(index, examples)

    def _factor(self, index: int) -> Fraction:
        """Return the time that a device takes for an example, divided by the time that the reference board takes. The
        number is rounded to a millionth, so that all machines calculate with the same number.
        """
        factor = self._factors.get(index, 1.0)
        if self._compute is not None and self._compute.spread is not None:
            normal = np.random.default_rng([self._seed, SPREAD, index]).standard_normal()
            factor *= float(np.exp(self._compute.spread.lognormal * normal))
        return Fraction(round(factor * 10**6), 10**6)


class Presence:
    """Hold the times at which the schedule makes devices leave and return."""

    def __init__(self, experiment: Experiment) -> None:
        self._away: dict[int, list[tuple[int, int | None]]] = {}  # begins and ends of absences; end None: for good
        for entry in _entries(experiment):
            if entry.leave is not None:
                until = None if entry.leave.for_ is None else entry.at + entry.leave.for_
                for index in entry.leave.devices:
                    self._away.setdefault(index, []).append((entry.at, until))

    @property
    def leaving(self) -> frozenset[int]:
        """The devices that the schedule makes leave, for a time or for good."""
        return frozenset(self._away)

    def back_ns(self, index: int, now_ns: int) -> int | None:
        """Return the first time from `now_ns` on at which a device is present. If the device never returns, return
        None.
        """
        for begin, until in self._away.get(index, ()):
            if begin <= now_ns and (until is None or now_ns < until):
                if until is None:
                    return None
                now_ns = until
        return now_ns

    def there(self, indexes: Iterable[int], now_ns: int) -> dict[int, int]:
        """Return the devices that take part in a round that begins at `now_ns`. The result maps each device's index to
        the time from which the device is present.

        All present devices take part. If no device is present, the first devices to return take part. If no device ever
        returns, the result is empty.
        """
        back = {index: at_ns for index in indexes if (at_ns := self.back_ns(index, now_ns)) is not None}
        first_ns = min(back.values(), default=now_ns)
        return {index: at_ns for index, at_ns in back.items() if at_ns == first_ns}


class Homes:
    """Hold the times at which the schedule moves devices to other LPSs."""

    def __init__(self, experiment: Experiment) -> None:
        self._moves = [entry for entry in _entries(experiment) if entry.move is not None]

    @property
    def moving(self) -> frozenset[int]:
        """The devices that the schedule moves."""
        return frozenset(index for entry in self._moves for index in entry.devices)

    def at(self, now_ns: int) -> Mapping[int, int]:
        """Return, by device, the index of the LPS to which the device belongs at `now_ns`. Only devices that the
        schedule has moved by then are included.
        """
        return {
            index: entry.move.home
            for entry in self._moves
            if entry.move is not None and entry.at <= now_ns
            for index in entry.devices
        }

    @property
    def times(self) -> list[int]:
        """Return the times at which devices are moved, in nanoseconds since training began, in ascending order."""
        return sorted({entry.at for entry in self._moves})


def devices_come_to_others(experiment: Experiment) -> bool:
    """Return whether an LPS can get further devices during training, because the schedule moves devices or the
    experiment has newcomers.
    """
    return bool(Homes(experiment).moving) or experiment.newcomers is not None


def _entries(experiment: Experiment) -> list[ScheduleEntry]:
    """Return the schedule in order of time. Without a clock, nothing is scheduled."""
    return sorted(experiment.schedule if experiment.clock != "none" else (), key=lambda entry: entry.at)
