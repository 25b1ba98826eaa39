"""The report on privacy, for the record and `fedstrata check`: ε, δ, the values that are protected, and the values that
are not.
"""

from fedstrata.experiment import Experiment
from fedstrata.privacy.updates import UpdateBudget, budget_of

RESEARCH = "noise for research: anybody with the experiment file can remove it, so it protects nothing"
EXAMPLE = "one example of a device, replaced by any other"
DEVICE = "all examples of a device, replaced by any others"
NEVER_COVERED = ("losses and hits", "numbers of examples")
DIGESTS = "digests of the state that devices keep"


def not_covered(experiment: Experiment) -> tuple[str, ...]:
    """Return the kinds of values that leave devices without noise."""
    privacy = experiment.privacy
    if privacy is None or privacy.updates is None:
        return ("updates", *NEVER_COVERED)
    return (*NEVER_COVERED, DIGESTS)


class EpsilonSpent:
    """Compute ε of the updates that a run has released so far. If no update was released since the last call, return
    the last result.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._budget, self._training = budget_of(experiment), experiment.training
        self._last = 0, 0.0  # number of releases, and their ε

    def after(self, global_rounds: int, *, is_grouped: bool = True) -> float | None:
        """Return ε after `global_rounds` completed global rounds. The updates of the next round, which is open, are
        included. Before the clusters are known (`is_grouped` is false), no update is released. Return None if updates
        carry no noise.
        """
        if self._budget is None:
            return None
        begun = min(global_rounds + 1, self._training.global_rounds) if is_grouped else 0
        releases = self._budget.releases_in(begun * self._training.lps_rounds_per_global_round)
        if releases != self._last[0]:
            self._last = releases, self._budget.epsilon_after(releases)
        return self._last[1]


def of_sums(experiment: Experiment, budget: UpdateBudget) -> float | None:
    """Return the ε that holds against an observer who sees only sums of updates. Return None if LPSs see each
    update.
    """
    least = experiment.least_in_sum
    return None if least == 1 else budget.epsilon_after(budget.releases, least)


def privacy_lines(experiment: Experiment) -> list[str]:
    """Return lines of text about the private values, the sense in which they are private, and all other values."""
    privacy, budget, said = experiment.privacy, budget_of(experiment), []
    if privacy is None:
        return []
    if privacy.profiles is not None:
        said.append(f"profiles: ε {privacy.profiles.epsilon:g}, δ {privacy.profiles.delta:g}, once, for {EXAMPLE}")
    if budget is not None:
        said += _update_lines(experiment, budget)
    said.append(f"not covered: {', '.join(not_covered(experiment))}")
    if privacy.noise == "research":
        said.append(RESEARCH)
    return said


def _update_lines(experiment: Experiment, budget: UpdateBudget) -> list[str]:
    settings, least = budget.settings, experiment.least_in_sum
    whole = f"δ {settings.delta:g}, in all rounds together (at most {budget.releases} of a device), for {DEVICE}"
    noise = f"each device adds noise of {budget.deviation:.3g} to each weight of an update of length {settings.clip:g}"
    if settings.covers == "sum":
        other = f"against anybody who sees a single update: ε {budget.epsilon_after(budget.releases, 1):.4g}"
        return [f"sums of {least} updates or more: ε {budget.epsilon:.4g}, {whole}", other, noise]
    said = [f"each update, against anybody who sees it: ε {budget.epsilon:.4g}, {whole}", noise]
    if (against_sums := of_sums(experiment, budget)) is not None:
        said.insert(1, f"against anybody who sees only sums of {least} updates or more: ε {against_sums:.4g}")
    return said
