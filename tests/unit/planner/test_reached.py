"""When trainings reach a target: the whole number of rounds, and the moment between two measurements."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emulator.planner import plan
from emulator.planner.search import SHARES
from emulator.results.read_record import RunRecord
from fedstrata.tasks import Metric

CURVES = {"first": {2: 0.2, 4: 0.6, 6: 0.5, 8: 0.9}, "second": {2: 0.3, 4: 0.7, 6: 0.8, 8: 1.0}, "never": {2: 0.1}}


def record(name: str, *, higher_is_better: bool = True) -> RunRecord:
    return cast(Any, SimpleNamespace(name=name, headline=Metric(name="m", higher_is_better=higher_is_better)))


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(found: Any) -> dict[int, float]:
        sign = 1 if found.headline.higher_is_better else -1
        return {number: sign * value for number, value in CURVES[found.name].items()}

    monkeypatch.setattr(plan, "measured_rounds", rounds)


@pytest.mark.parametrize("target, number, moment", [(0.2, 2, 1.0), (0.5, 4, 3.5), (0.6, 4, 4.0), (0.8, 8, 7.5)])
def test_the_moment_is_on_the_line_between_two_measurements(target: float, number: int, moment: float) -> None:
    for is_higher in (True, False):  # a loss below zero is reached from above
        found, sign = record("first", higher_is_better=is_higher), 1 if is_higher else -1
        assert plan.reached_at(found, sign * target) == number
        assert plan.moment_of(found, sign * target, 1.0) == pytest.approx(moment)


def test_a_candidate_has_the_means_of_its_seeds() -> None:
    found = plan.reached_by([record("first"), record("second")], 0.8)
    assert found.rounds == 7.0
    assert found.moments[-1] == pytest.approx((7.5 + 6.0) / 2)
    assert list(found.moments) == sorted(found.moments)
    assert len(found.moments) == len(SHARES)


def test_if_one_seed_misses_the_target_so_does_the_candidate() -> None:
    found = plan.reached_by([record("first"), record("never")], 0.2)
    assert math.isinf(found.rounds)
    assert found.moments[0] == 1.0  # half of the target is reached by both in their first measured round
    assert math.isinf(found.moments[-1])
