"""A little is enough.

Gilad Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019, Algorithm 3.
"""

from collections.abc import Iterable
from statistics import NormalDist

from fedstrata.attacks.base import Attack, Known
from fedstrata.experiment.attacks import AttackSettings, Positive
from fedstrata.tensors import Flat


class ALittleIsEnough(Attack):
    """Send the mean of the known updates minus z standard deviations, element by element. With a small z, the lie looks
    like one of the honest updates.
    """

    class Options(AttackSettings):
        z: Positive | None = None
        """Number of standard deviations; without this key the paper's largest number, which is 0 with few attackers."""

    options: Options

    def collude(self, known: Known, liars: int, children: int) -> Iterable[Flat]:
        z = self.options.z or largest_z(liars, children)
        for updates in known():
            yield updates.mean(0, dtype="f8") - z * updates.std(0, dtype="f8")


def largest_z(liars: int, children: int) -> float:
    """Return the largest z that hides the lie: the liars and the honest updates that are farther from the mean than the
    lie are together a majority. If no z above 0 hides the lie, return 0.
    """
    honest, supporters = children - liars, max(1, children // 2 + 1 - liars)
    share = (honest - supporters) / honest if honest else 0.0
    return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0
