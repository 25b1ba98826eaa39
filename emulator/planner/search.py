"""Choose which candidates to train, and which one is the plan. Nothing here trains, reads or writes.

Candidates that train the same models need only one training. For untrained candidates, the number of global rounds
until the target is predicted: its logarithm is a sum over axes, fitted by Bayesian ridge regression (MacKay 1992). The
fit also uses the rounds until parts of the target, so trainings that miss the target are not useless. For each
untrained candidate, assume that its number of rounds is two standard deviations below the prediction. The planner next
trains the candidate that is then the cheapest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from emulator.planner.learning import Choices, learning_axes
from emulator.planner.resources import Amounts, Resource
from emulator.sweeps.file import Place

BATCH = 4  # trainings between two predictions; the same on every machine, so that every machine finds the same plan
Floats = NDArray[np.float64]
DIGITS = 6  # of predictions, so that the last bits of a processor change no plan
SHARES = (0.5, 0.7, 0.85, 0.95, 1.0)  # parts of the target, see `Metric.is_reached`


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Describe a candidate: its place in the sweep of all candidates, the digest of its models (`models_digest`), and
    how much of each resource a global round uses.
    """

    place: Place
    models: str
    costs: Amounts

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
class Rounds:
    """Hold the number of global rounds until the target: from a training, or predicted. A prediction also has the
    standard deviation of the number's logarithm.
    """

    number: float  # infinite: a training did not reach the target
    deviation: float = 0.0
    is_trained: bool = True

    @property
    def least(self) -> float:
        """The number of rounds two standard deviations below the prediction, at least 1."""
        return max(1.0, self.number * math.exp(-2 * self.deviation))


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """Hold the candidates of a search, and the results of the trainings so far.

    `trained` maps `Candidate.models` to a list with the mean number of global rounds until each part of the target in
    `SHARES`. The number is infinite if a training missed the part.
    """

    candidates: Sequence[Candidate]
    aim: Resource
    limits: Mapping[Resource, float]
    most_rounds: int  # global rounds of a training
    trained: Mapping[str, Sequence[float]] = field(default_factory=dict)

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
        found = {name: Rounds(number=rounds[-1]) for name, rounds in self.trained.items()}
        names, waiting = list(found), [name for name in self.by_models if name not in found]
        if not names or not waiting:
            return found
        means, deviations = self._predicted(names, waiting)
        for name, mean, deviation in zip(waiting, means.tolist(), deviations.tolist(), strict=True):
            number = max(1.0, round(math.exp(mean), DIGITS))
            found[name] = Rounds(number=number, deviation=deviation, is_trained=False)
        return found

    def _predicted(self, names: Sequence[str], waiting: Sequence[str]) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the logarithm of the rounds of waiting models. `names` were trained."""
        inputs, shares = self._inputs([*names, *waiting]), np.eye(len(SHARES))
        reached = [
            (np.concatenate((inputs[row], shares[share])), math.log(rounds))
            for row, name in enumerate(names)
            for share, rounds in enumerate(self.trained[name])
            if math.isfinite(rounds)
        ]
        if not reached:  # nothing is known but that the target is far
            return np.full(len(waiting), math.log(self.most_rounds)), np.ones(len(waiting))
        known, logs = (np.array(each) for each in zip(*reached, strict=True))
        asked = np.hstack((inputs[len(names) :], np.tile(shares[-1], (len(waiting), 1))))
        return _regressed(known, logs, asked)

    def _inputs(self, names: Sequence[str]) -> Floats:
        """Return a row per model, with a 1 for each choice on an axis that changes models."""
        firsts = [self.by_models[name][0].choices for name in names]
        pairs = list(dict.fromkeys((axis, choices[axis]) for axis in self.axes for choices in firsts))
        return np.array([[float(choices[axis] == choice) for axis, choice in pairs] for choices in firsts])

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
        """Return candidates with choices that no training has had, the most of them first."""
        seen = {pair for name in self.trained for pair in self._pairs(name)}
        waiting, found = [name for name in self.by_models if name not in self.trained], list[Candidate]()
        while waiting and len(found) < count:
            name = max(waiting, key=lambda name: len(self._pairs(name) - seen))
            if self._pairs(name) <= seen and (self.trained or found):
                break
            waiting.remove(name)
            seen |= self._pairs(name)
            if (cheapest := self._cheapest(name, 1.0)) is not None:
                found.append(cheapest)
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
        return (needs[self.aim], *needs.values())

    @property
    def best(self) -> Candidate | None:
        """The cheapest candidate with trained models. None if no training reached the target within the limits."""
        return next((each for each, rounds in self.ranking if rounds.is_trained), None)


def trained_until_found(
    state: SearchState, most: int, train: Callable[[Sequence[Candidate]], Mapping[str, Sequence[float]]]
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
    """Return mean and standard deviation of the logarithm of rounds for each row of `inputs`."""
    from sklearn.linear_model import BayesianRidge

    means, deviations = BayesianRidge().fit(known, logs).predict(inputs, return_std=True)
    return np.round(means, DIGITS), np.round(deviations, DIGITS)
