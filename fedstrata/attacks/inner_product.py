"""The opposite of the mean update.

Cong Xie et al., "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019, section 4.
"""

from collections.abc import Iterable

from fedstrata.attacks.base import Attack, Known
from fedstrata.experiment.attacks import AttackSettings, Positive
from fedstrata.tensors import Flat


class InnerProduct(Attack):
    """Send the mean of the known updates with the opposite sign, times a factor."""

    class Options(AttackSettings):
        times: Positive = 0.1
        """The paper's factor ε. A small factor deceives rules that measure distances, a large one the mean."""

    options: Options

    def collude(self, known: Known, liars: int, children: int) -> Iterable[Flat]:
        for updates in known():
            yield updates.mean(0, dtype="f8") * -self.options.times
