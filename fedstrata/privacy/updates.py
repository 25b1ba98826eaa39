"""Updates under differential privacy: a device scales its update down to a norm of at most `clip`, and adds noise.

ε holds for a change of all data of one device. Two updates of norm at most `clip` differ by at most 2 · `clip`. Every
device has weight one in means.

Sources: McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018, for
clipped updates of equal weight. Dong, Roth, Su, Gaussian Differential Privacy, JRSS-B 84 (2022), for T releases, which
reveal as much as one release with 1/√T of the noise. Balle & Wang, ICML 2018, for the noise of one release.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.experiment import Experiment
from fedstrata.experiment.privacy import UpdatePrivacy
from fedstrata.methods import make_method
from fedstrata.methods.cohort import Cohorts, cohorts
from fedstrata.noise import Noise, epsilon_of, noise_multiplier_of, on_grid
from fedstrata.tensors.layout import Flat

ROUNDING = 1e-9  # an update clipped to `clip` may be longer by this share, because float64 rounds
FARTHEST = 13.0  # number of standard deviations that noise never exceeds
FLOAT32_BITS, SUM_BITS = 24, 32  # sent values are multiples that float32 holds and that exact sums add without rounding
PIECE = 1 << 18  # number of elements that are processed at once
MOST_DRAWS = 200_000  # limit of drawn cohorts (some seconds); in longer runs ε counts every device in each round


@dataclass(frozen=True, kw_only=True)
class UpdateBudget:
    """Compute how much noise devices add to their updates, and the resulting ε."""

    settings: UpdatePrivacy
    rounds: int  # number of LPS rounds in the whole run
    devices: int  # least number of devices with noise in the covered values; 1 if single updates are covered
    cohorts: Cohorts | None = None  # devices that each round asks; None: ε assumes that each round asks all

    @property
    def releases(self) -> int:
        """The largest number of updates that one device releases in the whole run."""
        return self.releases_in(self.rounds)

    def releases_in(self, lps_rounds: int) -> int:
        """Return the largest number of updates that one device releases in the first `lps_rounds` LPS rounds."""
        if self.cohorts is None:
            return lps_rounds
        return self.cohorts.most[lps_rounds - 1] if lps_rounds else 0

    @cached_property
    def multiplier(self) -> float:
        """The noise multiplier: the standard deviation of the noise divided by the sensitivity. The noise is on the
        protected values, an update or a sum of updates. The sensitivity is 2 · `clip`, because one device can change
        these values by at most this norm.
        """
        settings = self.settings
        if settings.noise_multiplier is not None:
            return settings.noise_multiplier / 2
        return math.sqrt(self.releases) * noise_multiplier_of(settings.epsilon or 0.0, settings.delta)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise that a device adds to each weight."""
        return self.multiplier * 2 * self.settings.clip * (1 + ROUNDING) / math.sqrt(self.devices)

    @property
    def reach(self) -> float:
        """The largest absolute value that a device can send."""
        return self.settings.clip + FARTHEST * self.deviation

    @property
    def grid(self) -> float:
        """One divided by the step between the values that a device can send. All these values are exact in float32."""
        return 2.0 ** min(SUM_BITS, FLOAT32_BITS - math.ceil(math.log2(self.reach)))

    @cached_property
    def epsilon(self) -> float:
        """ε of the whole run."""
        return self.epsilon_after(self.releases)

    def check_round(self, device_index: int, lps_round: int) -> None:
        """Check that ε was computed for an update of this device in this round. Raises PayloadError if not, because the
        update would reveal more than ε says. The device then refuses the LPS's request.
        """
        is_of_run = 0 <= lps_round < self.rounds
        if not is_of_run or (self.cohorts is not None and device_index not in self.cohorts.asked[lps_round]):
            raise PayloadError(
                f"the LPS asks for an update in round {lps_round + 1} of {self.rounds}, but this device takes no part "
                "in it, and ε counts no update there"
            )

    def epsilon_after(self, releases: int, devices: int | None = None) -> float:
        """Return ε after a device has released this many updates. `devices` is the number of devices that have added
        noise to each protected value, which is an update or a sum of updates. By default it is `self.devices`.
        """
        if not releases:
            return 0.0
        share = (devices or self.devices) / self.devices / min(releases, self.releases)
        found = epsilon_of(self.multiplier * math.sqrt(share), self.settings.delta)
        is_whole = devices is None and releases >= self.releases
        return self.settings.epsilon or found if is_whole else found


def budget_of(experiment: Experiment) -> UpdateBudget | None:
    """Return the budget of noise and ε for the updates of an experiment. If updates carry no noise, return None."""
    settings = experiment.privacy.updates if experiment.privacy is not None else None
    if settings is None:
        return None
    return UpdateBudget(
        settings=settings,
        rounds=experiment.training.lps_rounds,
        devices=experiment.least_in_sum if settings.covers == "sum" else 1,
        cohorts=_cohorts(experiment),
    )


def _cohorts(experiment: Experiment) -> Cohorts | None:
    """Return the cohort of each round: the devices that the LPS asks for an update. This is possible before the run if
    the seed alone decides the cohorts. Return None if other things may change them, such as a schedule or newcomers.
    Also return None if every round asks all devices, or if there would be more than `MOST_DRAWS` random draws.
    """
    training, devices = experiment.training, experiment.device_count
    decides = (experiment.topology, experiment.newcomers, experiment.deadlines.enrolment.deadline_s)
    if (
        training.participation is None
        or devices * training.lps_rounds > MOST_DRAWS
        or experiment.schedule
        or any(each is not None for each in decides)
        or make_method(experiment).clusters_known != 1
    ):
        return None
    return cohorts(devices, training.participation, experiment.seed, training.lps_rounds)


def weight_of(experiment: Experiment, num_examples: int) -> int:
    """Return the weight of a device in a mean: its number of examples, or 1 if updates carry noise."""
    return 1 if experiment.privacy is not None and experiment.privacy.updates is not None else num_examples


def private_update(update: Flat, budget: UpdateBudget, noise: Noise, *, device_index: int, lps_round: int) -> Flat:
    """Return the update that a device sends, shape (size,). The update is limited to norm `clip` and rounded to the
    grid, and noise is added.

    An update that is not finite is replaced by zeros, because what a device sends must not show whether training
    diverged.

    Raises:
        PayloadError: the device is not allowed to send an update in this round.
    """
    budget.check_round(device_index, lps_round)
    scale = _scale(update, budget.settings.clip)
    if scale is None:
        update, scale = np.zeros_like(update), 1.0
    released = hashlib.sha256()
    for _, counts in _on_grid(update, scale, budget.grid):
        released.update(counts.tobytes())
    key = noise.key(lps_round, released.digest())
    noised = np.empty_like(update)
    for number, (start, counts) in enumerate(_on_grid(update, scale, budget.grid)):
        drawn = on_grid(key + number.to_bytes(8, "little"), len(counts), budget.deviation, budget.grid)
        noised[start : start + len(counts)] = (counts + drawn) / budget.grid
    return noised


def _scale(update: Flat, clip: float) -> float | None:
    """Return the factor that limits an update's norm to `clip`; None for an update that is not finite."""
    pieces = (update[start : start + PIECE] for start in range(0, len(update), PIECE))
    length = math.sqrt(sum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces))
    if not math.isfinite(length):
        return None
    return min(1.0, clip / length) if length else 1.0


def _on_grid(update: Flat, scale: float, grid: float) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Multiply an update by `scale`, and yield it piece by piece: the position of each piece, and its values as
    multiples of 1 / `grid`. Values are rounded towards zero, so that the norm cannot grow.
    """
    for start in range(0, len(update), PIECE):
        piece = update[start : start + PIECE].astype(np.float64)
        yield start, np.trunc(piece * (scale * grid)).astype(np.int64)
