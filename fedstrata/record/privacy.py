"""The key `privacy` of summary.json: the values that noise protected, with ε and δ, and the values that it did not
protect.
"""

from typing import Literal

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.experiment import Experiment
from fedstrata.privacy.report import DEVICE, EXAMPLE, not_covered, of_sums
from fedstrata.privacy.updates import UpdateBudget, budget_of
from fedstrata.record.tables import Amount


@checked_dataclass(frozen=True, kw_only=True)
class NoisedUpdates:
    """Describe the noise on updates, with the resulting ε and δ."""

    covers: Literal["update", "sum"]
    """Scope of ε: each `update`, or only the `sum` of many."""
    unit: str
    """Unit of privacy: the data in which neighbouring data sets differ."""
    clip: Amount
    """Largest norm of an update. A longer update is scaled down to this norm."""
    epsilon: Amount
    """ε of the whole run that the experiment asks for."""
    delta: Amount
    """δ of every ε in this object."""
    noise_multiplier: Amount
    """Standard deviation of the noise on the covered values (see `covers`), divided by `clip`."""
    noise_deviation: Amount
    """Standard deviation of the noise that one device adds to each weight."""
    releases: NonNegativeInt
    """Largest number of updates that one device sends in the run."""
    epsilon_of_updates: Amount
    """ε of the whole run against a reader of single updates."""
    epsilon_of_sums: Amount | None
    """ε of the whole run against a reader of only the sums of masked updates; null without masks."""
    epsilon_spent: Amount | None
    """ε that the run has used by its end, including a global round that was still open."""


@checked_dataclass(frozen=True, kw_only=True)
class Privacy:
    """Describe the noise of a run: the key `privacy` of summary.json."""

    noise: Literal["research", "protection"]
    """Source of the noise: `research` is a function of the seed, `protection` is secret."""
    is_protection: bool
    """True if the noise protects devices, as with `protection`."""
    is_repeatable: bool
    """True if a second run of the same experiment file gives the same hashes."""
    profiles: dict[str, float | int | str] | None
    """Noise on profiles: the keys of the experiment's `privacy.profiles`, and `unit`, the data that ε protects. Null
    without this noise.
    """
    not_covered: tuple[str, ...]
    """Kinds of data that left devices without noise."""
    updates: NoisedUpdates | None = None
    """Noise on updates; absent if updates had none."""


def privacy_summary(experiment: Experiment, spent: float | None = None) -> Privacy | None:
    """Return the description of the noise of a run for the record. `spent` is the ε that the run has spent on updates.
    If the experiment has no section `privacy`, return None.
    """
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
