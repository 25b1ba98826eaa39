"""Choose which candidates to train, and which one is the plan. Nothing here trains, reads or writes.

Candidates that train the same models need only one training. For untrained candidates, the moment at which they reach
the target is predicted, in global rounds. Its logarithm is a multiple of the logarithm of a device's work in a global
round, plus a sum over axes, fitted by Bayesian ridge regression (MacKay 1992). The fit also uses the moments at which
trainings reached parts of the target, so trainings that miss the target are not useless. For each untrained candidate,
assume that its moment is two standard deviations before the prediction. The planner next trains the candidate that is
then the cheapest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from emulator.planner.learning import Choices, learning_axes
from emulator.planner.resources import Amounts, Resource
from emulator.sweeps.file import Place

BATCH = 4  # trainings between two predictions; the same on every machine, so that every machine finds the same plan
Floats = NDArray[np.float64]
DIGITS = 6  # of predictions and of compared amounts, so that the last bits of a processor change no plan
SHARES = (0.5, 0.7, 0.85, 0.95, 1.0)  # parts of the target, see `Metric.is_reached`
BY_AXES = 0.2  # how much axes may count in the prediction; the work may count 1


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Describe a candidate: its place in the sweep of all candidates, the digest of its models (`models_digest`), how
    much of each resource a global round uses, and on how many examples a device trains in a global round.
    """

    place: Place
    models: str
    costs: Amounts
    work: float

    @property
    def choices(self) -> Choices:
        """The choice on each axis."""
        return dict(self.place.setting)

    @property
    def label(self) -> str:
        """The choices as one line of text."""
        return ", ".join(self.place.choices)

    def needs(self, rounds: float) -> Amounts:
        """Return how much of each resource this number of global rounds uses."""
        return {name: rounds * cost for name, cost in self.costs.items()}


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Hold when a candidate's trainings reached the target, as means over their seeds.

    `moments` has a number for each part of the target in `SHARES`: the moment between two global rounds at which the
    metric reached the part, if it changes evenly between rounds. Numbers are infinite if a training missed the part.
    """

    rounds: float  # the number of global rounds until the target
    moments: Sequence[float]

    @classmethod
    def nothing(cls) -> "Reached":
        """Return when trainings reached the target of which one has diverged: they missed every part of it."""
        return cls(rounds=math.inf, moments=(math.inf,) * len(SHARES))


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Hold the number of global rounds until the target: from a training, or predicted. A prediction also has the
    number for a moment two standard deviations before the predicted moment.
    """

    number: float  # infinite: a training did not reach the target
    least: float
    is_trained: bool


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """Hold the candidates of a search, and the results of the trainings so far by `Candidate.models`."""

    candidates: Sequence[Candidate]
    aim: Resource
    limits: Mapping[Resource, float]
    most_rounds: int  # global rounds of a training
    trained: Mapping[str, Reached] = field(default_factory=dict)

    @cached_property
    def by_models(self) -> dict[str, list[Candidate]]:
        """All candidates, grouped by the digest of their models. In each group, the cheapest candidate is first."""
        found: dict[str, list[Candidate]] = {}
        for each in sorted(self.candidates, key=lambda each: self._order(each.costs)):
            found.setdefault(each.models, []).append(each)
        return found

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes that change models."""
        return learning_axes([(each.choices, each.models) for each in self.candidates])

    @cached_property
    def rounds(self) -> dict[str, Rounds]:
        """The rounds until the target, trained or predicted, by the digest of models. Before the first training, the
        mapping is empty.
        """
        trained = self.trained.items()
        found = {name: Rounds(number=each.rounds, least=each.rounds, is_trained=True) for name, each in trained}
        names, waiting = list(found), [name for name in self.by_models if name not in found]
        if not names or not waiting:
            return found
        # A run ends with a whole round, some time after the moment.
        later = [each.rounds - each.moments[-1] for _, each in trained if math.isfinite(each.rounds)]
        rest = fmean(later) if later else 0.5
        logs = zip(*self._predicted(names, waiting), strict=True)
        for name, (mean, deviation) in zip(waiting, logs, strict=True):
            number, least = (max(1.0, round(math.exp(log) + rest, DIGITS)) for log in (mean, mean - 2 * deviation))
            found[name] = Rounds(number=number, least=least, is_trained=False)
        return found

    def _predicted(self, names: Sequence[str], waiting: Sequence[str]) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the logarithm of the moment at which waiting models reach the target.
        `names` were trained.
        """
        inputs, shares = self._inputs([*names, *waiting]), np.eye(len(SHARES))
        reached = [
            (np.concatenate((inputs[row], shares[share])), math.log(moment))
            for row, name in enumerate(names)
            for share, moment in enumerate(self.trained[name].moments)
            if math.isfinite(moment)
        ]
        if not reached:  # nothing is known but that the target is far
            return np.full(len(waiting), math.log(self.most_rounds)), np.ones(len(waiting))
        known, logs = (np.array(each) for each in zip(*reached, strict=True))
        asked = np.hstack((inputs[len(names) :], np.tile(shares[-1], (len(waiting), 1))))
        return _regressed(known, logs, asked)

    def _inputs(self, names: Sequence[str]) -> Floats:
        """Return a row per model: the logarithm of its work, standardised, and a number above 0 for each of its choices
        on axes that change models.
        """
        firsts = [self.by_models[name][0] for name in names]
        work = np.log([each.work for each in firsts])
        pairs = list(dict.fromkeys((axis, each.choices[axis]) for axis in self.axes for each in firsts))
        chosen = [[BY_AXES * (each.choices[axis] == choice) for axis, choice in pairs] for each in firsts]
        return np.column_stack(((work - work.mean()) / (work.std() or 1.0), np.array(chosen).reshape(len(names), -1)))

    def next(self, most: int) -> list[Candidate]:
        """Return the candidates to train next: at most `most`, and at most `BATCH`. The list is empty if no untrained
        candidate can be the plan.

        Until every choice has been trained once, the list has candidates with untrained choices. Later it has
        candidates that may be the cheapest.
        """
        count, best = min(most, BATCH), self.best
        if unseen := self._unseen(count):
            return unseen
        limit = best.costs[self.aim] * self.rounds[best.models].number if best is not None else math.inf
        may_win = [
            (each.costs[self.aim] * rounds.least, number, each)
            for number, (name, rounds) in enumerate(self.rounds.items())
            if not rounds.is_trained and (each := self._cheapest(name, rounds.least)) is not None
        ]
        return [each for costs, _, each in sorted(may_win, key=lambda way: way[:2])[:count] if costs < limit]

    def _unseen(self, count: int) -> list[Candidate]:
        """Return candidates that keep the limits for a round and have choices that no training has had, the most of
        them first.
        """
        seen = {pair for name in self.trained for pair in self._pairs(name)}
        ways = {name: self._cheapest(name, 1.0) for name in self.by_models if name not in self.trained}
        waiting, found = {name: each for name, each in ways.items() if each is not None}, list[Candidate]()
        while waiting and len(found) < count:
            name = max(waiting, key=lambda name: len(self._pairs(name) - seen))
            if self._pairs(name) <= seen and (self.trained or found):
                break
            seen |= self._pairs(name)
            found.append(waiting.pop(name))
        return found

    def _pairs(self, name: str) -> set[tuple[str, str]]:
        choices = self.by_models[name][0].choices
        return {(axis, choices[axis]) for axis in self.axes}

    def _cheapest(self, name: str, rounds: float) -> Candidate | None:
        """Return the cheapest candidate with these models that keeps the limits. If none does, return None."""
        return next((each for each in self.by_models[name] if self.keeps_limits(each, rounds)), None)

    def keeps_limits(self, candidate: Candidate, rounds: float) -> bool:
        """Return whether a candidate keeps all limits with this number of global rounds."""
        needs = candidate.needs(rounds)
        return all(needs[name] <= most for name, most in self.limits.items())

    @cached_property
    def ranking(self) -> list[tuple[Candidate, Rounds]]:
        """All candidates that can reach the target within the limits, the cheapest first. If two candidates need
        equally much of the aim, the candidate that needs less of the other resources is first.
        """
        found = [
            (each, rounds)
            for each in self.candidates
            if (rounds := self.rounds.get(each.models)) is not None
            and math.isfinite(rounds.number)
            and self.keeps_limits(each, rounds.number)
        ]
        return sorted(found, key=lambda pair: self._order(pair[0].needs(pair[1].number)))

    def _order(self, needs: Amounts) -> tuple[float, ...]:
        return tuple(map(shortened, (needs[self.aim], *needs.values())))

    @property
    def best(self) -> Candidate | None:
        """The cheapest candidate with trained models. None if no training reached the target within the limits."""
        return next((each for each, rounds in self.ranking if rounds.is_trained), None)


def shortened(amount: float) -> float:
    """Return an amount with as many significant digits as amounts are compared with."""
    return float(f"{amount:.{DIGITS}g}")


def trained_until_found(
    state: SearchState, most: int, train: Callable[[Sequence[Candidate]], Mapping[str, Reached]]
) -> tuple[SearchState, list[Candidate]]:
    """Train candidates until no untrained candidate can be the plan, or until `most` are trained. Return the last
    state, and the trained candidates in the order of training. `train` trains some candidates, and returns their
    entries of `SearchState.trained`.
    """
    trained: list[Candidate] = []
    while wanted := state.next(most - len(trained)):
        state = replace(state, trained={**state.trained, **train(wanted)})
        trained += wanted
    return state, trained


def _regressed(known: Floats, logs: Floats, inputs: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of the logarithm of the moment for each row of `inputs`."""
    from sklearn.linear_model import BayesianRidge

    means, deviations = BayesianRidge().fit(known, logs).predict(inputs, return_std=True)
    return np.round(means, DIGITS), np.round(deviations, DIGITS)
