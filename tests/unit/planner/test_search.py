"""The choice of trainings and of the plan, on costs and rounds that are made up here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emulator.planner.learning import learning_axes
from emulator.planner.output import pareto, summary
from emulator.planner.plan import Plan
from emulator.planner.resources import Resource
from emulator.planner.search import BATCH, SHARES, Candidate, Reached, SearchState, trained_until_found
from emulator.sweeps.file import Place

AXES = {"lps": (1, 2, 4, 8, 16), "steps": (1, 2, 4, 8, 10), "share": (0.25, 0.5, 0.75, 1.0), "link": ("lte", "wifi")}


def candidates(seconds: Callable[[Mapping[str, object]], float]) -> list[Candidate]:
    """Return a candidate for each combination. Only the link changes no models."""
    found = []
    for values in product(*AXES.values()):
        choices = dict(zip(AXES, values, strict=True))
        place = Place(cell="base", setting=tuple((axis, str(value)) for axis, value in choices.items()))
        models = str([choices[axis] for axis in ("lps", "steps", "share")])
        costs = {Resource.SECONDS: seconds(choices), Resource.DEVICE_BYTES: 1000.0 * float(str(choices["share"]))}
        work = float(str(choices["steps"]))
        found.append(Candidate(place=place, models=models, costs=costs, work=work))
    return found


def seconds_of(choices: Mapping[str, object]) -> float:
    return (1 + float(str(choices["steps"]))) * {"lte": 3.0, "wifi": 1.0}[str(choices["link"])]


def rounds_of(each: Candidate, noise: float, seed: int) -> float:
    """Return the true rounds of a candidate: a product over axes, and noise that depends on its models."""
    lps, steps, share = (float(each.choices[axis]) for axis in ("lps", "steps", "share"))
    drawn = np.random.default_rng([seed, *map(ord, each.models)]).normal()
    return max(1.0, round(80 * lps**0.1 * steps**-0.6 * share**-0.4 * math.exp(noise * drawn)))


def curve(rounds: float) -> Reached:
    """Return when the parts of the target are reached, if learning slows down towards the target, and if this happens
    in the middle of a round.
    """
    return Reached(rounds=rounds, moments=[(rounds - 0.5) * share**3 for share in SHARES])


def missed(rounds: float, share: float = 0.0) -> Reached:
    """Return the same for a training that ends after a part of the target."""
    moments = curve(rounds).moments
    known = [moment if each <= share else math.inf for each, moment in zip(SHARES, moments, strict=True)]
    return Reached(rounds=math.inf, moments=known)


def state(limits: Mapping[Resource, float] | None = None) -> SearchState:
    return SearchState(candidates=candidates(seconds_of), aim=Resource.SECONDS, limits=limits or {}, most_rounds=400)


def searched(start: SearchState, trainings: int, noise: float, seed: int) -> SearchState:
    seen: set[str] = set()

    def train(wanted: Sequence[Candidate]) -> dict[str, Reached]:
        assert len(wanted) <= BATCH
        assert not {each.models for each in wanted} & seen
        seen.update(each.models for each in wanted)
        return {each.models: curve(rounds_of(each, noise, seed)) for each in wanted}

    return trained_until_found(start, trainings, train)[0]


def test_an_axis_changes_models_if_two_candidates_that_differ_only_there_train_others() -> None:
    found = [({"a": a, "b": b, "c": c}, f"{a}{b if a == '1' else ''}") for a, b, c in product("12", "xy", "pq")]
    assert learning_axes(found) == ("a", "b")


def test_the_first_trainings_have_every_choice() -> None:
    first = state().next(20)
    second = replace(state(), trained={each.models: curve(50.0) for each in first}).next(20)
    seen = {pair for each in (*first, *second) for pair in each.choices.items() if pair[0] != "link"}
    assert seen == {(axis, str(value)) for axis, values in AXES.items() for value in values if axis != "link"}
    assert {each.choices["link"] for each in first} == {"wifi"}  # it changes only times, and this one is faster


def test_choices_of_a_candidate_beyond_the_limits_are_trained_in_other_candidates() -> None:
    """Of four candidates, (1, 1) exceeds the limit, so (1, 2) and (2, 1) have the choices that (2, 2) leaves."""
    four = {
        (each.choices["lps"], each.choices["steps"]): each
        for each in candidates(seconds_of)
        if {each.choices["lps"], each.choices["steps"]} <= {"1", "2"} and each.choices["share"] == "1.0"
    }
    costly = replace(four["1", "1"], costs={**four["1", "1"].costs, Resource.DEVICE_BYTES: 2000.0})
    found = [costly, *(each for pair, each in four.items() if pair != ("1", "1"))]
    start = replace(state({Resource.DEVICE_BYTES: 1000.0}), candidates=found)
    after = replace(start, trained={four["2", "2"].models: curve(50.0)})
    assert set(map(id, after.next(4))) == {id(four["1", "2"]), id(four["2", "1"])}


def test_candidates_that_differ_only_in_times_share_a_training() -> None:
    start = state()
    assert len(start.by_models) == 100
    assert all([each.choices["link"] for each in alike] == ["wifi", "lte"] for alike in start.by_models.values())
    (first, *_) = start.next(1)
    after = replace(start, trained={first.models: curve(12.0)})
    assert after.best is first
    slow = next(each for each in start.by_models[first.models] if each.choices["link"] == "lte")
    assert after.rounds[slow.models].number == 12.0
    assert slow.needs(12.0)[Resource.SECONDS] == pytest.approx(3 * first.needs(12.0)[Resource.SECONDS])


@pytest.mark.parametrize("seed", range(5))
def test_twenty_trainings_find_a_plan_that_is_nearly_the_best_of_two_hundred(seed: int) -> None:
    now = searched(state(), 20, noise=0.03, seed=seed)
    assert len(now.trained) <= 20
    true = {each.place: each.costs[Resource.SECONDS] * rounds_of(each, 0.03, seed) for each in now.candidates}
    assert now.best is not None
    assert true[now.best.place] <= 1.05 * min(true.values())


def test_without_noise_the_rounds_of_untrained_candidates_are_predicted() -> None:
    now = searched(state(), 20, noise=0.0, seed=0)
    errors = [abs(math.log(now.rounds[each.models].number / rounds_of(each, 0.0, 0))) for each in now.candidates]
    assert np.median(errors) < 0.05


def test_the_search_ends_when_no_other_candidate_can_win() -> None:
    now = searched(state(), 1000, noise=0.0, seed=0)
    assert len(now.trained) < len(now.by_models) / 2


def test_a_training_that_misses_the_target_is_no_plan_but_tells_how_fast_others_are() -> None:
    start = state()
    slow_ones = {
        each.models: missed(rounds_of(each, 0.0, 0), 0.85)
        for each in start.candidates
        if each.choices["steps"] in {"1", "2"}
    }
    one = next(each for each in start.candidates if each.models not in slow_ones)
    after = replace(start, trained={**slow_ones, one.models: curve(rounds_of(one, 0.0, 0))})
    assert after.best is not None
    assert after.best.models == one.models
    slow = next(
        each for each in start.candidates if each.choices["steps"] == one.choices["steps"] and each.models != one.models
    )
    assert after.rounds[slow.models].number == pytest.approx(rounds_of(slow, 0.0, 0), rel=0.15)


def test_a_search_goes_on_if_no_training_reaches_anything() -> None:
    now = state()
    for _ in range(4):
        wanted = now.next(4)
        assert wanted
        now = replace(now, trained={**now.trained, **{each.models: missed(9.0) for each in wanted}})
    assert now.best is None


def test_the_plan_keeps_limits_although_others_are_cheaper() -> None:
    free = searched(state(), 20, noise=0.0, seed=0).best
    assert free is not None
    most = 0.8 * free.needs(rounds_of(free, 0.0, 0))[Resource.DEVICE_BYTES]
    now = searched(state({Resource.DEVICE_BYTES: most}), 20, noise=0.0, seed=0)
    assert now.best is not None
    needs = now.best.needs(rounds_of(now.best, 0.0, 0))
    assert needs[Resource.DEVICE_BYTES] <= most
    assert needs[Resource.SECONDS] > free.needs(rounds_of(free, 0.0, 0))[Resource.SECONDS]
    assert not state({Resource.DEVICE_BYTES: 1.0}).next(4)


@pytest.mark.parametrize("noise", [0.0, 1e-15])
def test_of_equal_candidates_the_one_that_needs_less_of_the_rest_is_first(noise: float) -> None:
    """They are equal although one sum of floats has other last bits."""
    places = [Place(cell="base", setting=(("lps", name),)) for name in ("8", "1")]
    both = [
        Candidate(place=place, models="same", costs={Resource.SECONDS: time, Resource.LPS_GPS_BYTES: size}, work=1.0)
        for place, time, size in zip(places, (2.0 - noise, 2.0), (80.0, 10.0), strict=True)
    ]
    assert (both[0].costs[Resource.SECONDS] < 2.0) == (noise > 0)
    now = SearchState(candidates=both, aim=Resource.SECONDS, limits={}, most_rounds=9, trained={"same": curve(3.0)})
    assert now.best is both[1]
    assert replace(now, trained={}).next(1) == [both[1]]  # so the plan is what was trained
    assert [each.label for each, _ in now.ranking] == ["lps=1", "lps=8"]
    assert runner_up(now) == "runner-up: lps=8 needs as much time, and more bytes LPS–GPS"
    alike = [replace(each, costs={**each.costs, Resource.LPS_GPS_BYTES: 10.0}) for each in both]
    assert runner_up(replace(now, candidates=alike)).endswith(" needs as much time")


def runner_up(state: SearchState) -> str:
    """Return the sentence about the second-best candidate."""
    assert state.best is not None
    search: Any = SimpleNamespace(file=SimpleNamespace(seeds=(3,), place=None))
    return summary(Plan(search=search, state=state, best=state.best, trained=[state.best], measured={}))[-1]


def test_the_pareto_front_has_the_points_that_no_other_beats() -> None:
    assert pareto([(3, 1), (1, 5), (2, 5), (2, 3), (4, 1), (1, 6)]) == [(1, 5), (2, 3), (3, 1)]
