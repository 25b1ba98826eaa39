"""`privacy` of summary.json: what noise covered, with which ε and δ, and what it did not cover."""

from typing import Literal

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.experiment import Experiment
from fedstrata.privacy.report import DEVICE, EXAMPLE, not_covered, of_sums
from fedstrata.privacy.updates import UpdateBudget, budget_of
from fedstrata.record.tables import Amount


@checked_dataclass(frozen=True, kw_only=True)
class NoisedUpdates:
    """Noise on updates: ε of the whole run, and ε by when the run ended."""

    covers: Literal["update", "sum"]
    unit: str
    clip: Amount
    epsilon: Amount
    delta: Amount
    noise_multiplier: Amount
    noise_deviation: Amount
    releases: NonNegativeInt
    epsilon_of_updates: Amount
    epsilon_of_sums: Amount | None
    epsilon_spent: Amount | None


@checked_dataclass(frozen=True, kw_only=True)
class Privacy:
    """The noise of a run; without `updates` no updates were noised."""

    noise: Literal["research", "protection"]
    is_protection: bool
    is_repeatable: bool
    profiles: dict[str, float | int | str] | None  # the keys of the experiment's section, and `unit`
    not_covered: tuple[str, ...]
    updates: NoisedUpdates | None = None


def privacy_summary(experiment: Experiment, spent: float | None = None) -> Privacy | None:
    """Return what a record says of noise; None for an experiment without that section."""
    privacy, budget = experiment.privacy, budget_of(experiment)
    if privacy is None:
        return None
    return Privacy(
        noise=privacy.noise,
        is_protection=privacy.noise == "protection",
        is_repeatable=privacy.noise == "research",
        profiles=None if privacy.profiles is None else {**privacy.profiles.model_dump(), "unit": EXAMPLE},
        not_covered=not_covered(experiment),
        updates=None if budget is None else _updates(experiment, budget, spent),
    )


def _updates(experiment: Experiment, budget: UpdateBudget, spent: float | None) -> NoisedUpdates:
    settings = budget.settings
    return NoisedUpdates(
        covers=settings.covers,
        unit=DEVICE,
        clip=settings.clip,
        epsilon=budget.epsilon,
        delta=settings.delta,
        noise_multiplier=2 * budget.multiplier,
        noise_deviation=budget.deviation,
        releases=budget.releases,
        epsilon_of_updates=budget.epsilon_after(budget.releases, 1),
        epsilon_of_sums=of_sums(experiment, budget),
        epsilon_spent=spent,
    )
