"""ε of a run's updates so far: which rounds it counts, and how often it is worked out."""

import pytest

from fedstrata.noise import epsilon_of
from fedstrata.privacy.report import EpsilonSpent
from tests.unit.privacy.test_private_updates import budget, private


def test_epsilon_spent_counts_the_open_round_and_nothing_before_devices_are_grouped() -> None:
    spent = EpsilonSpent(private())
    assert spent.after(0, is_grouped=False) == 0
    found = [spent.after(done) for done in range(5)]
    assert found[0] == pytest.approx(budget().epsilon_after(2))
    assert found[3] == found[4] == 8
    assert EpsilonSpent(private("privacy=null")).after(2) is None


def test_epsilon_spent_is_worked_out_once_for_each_number_of_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[float] = []

    def counted(multiplier: float, delta: float) -> float:
        worked_out.append(multiplier)
        return epsilon_of(multiplier, delta)

    monkeypatch.setattr("fedstrata.privacy.updates.epsilon_of", counted)
    spent = EpsilonSpent(private())
    told = [spent.after(done) for done in (0, 0, 0, 1, 1)]
    assert (len(worked_out), len(set(told))) == (2, 2)
