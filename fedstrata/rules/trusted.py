"""A mean that weighs each update by the agreement of its direction with a trusted child's update.

Xiaoyu Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021, Algorithm 2.
"""

from collections.abc import Collection, Mapping

import numpy as np
from pydantic import Field

from fedstrata.errors import ExperimentError, RunStoppedError
from fedstrata.experiment.sections import RuleSettings
from fedstrata.rules.products import ByProducts, Numbers, Updates

ABSENT = "a round may lack the trusted children"


class Trusted(ByProducts):
    """Scale each update to the norm of the reference, and take the mean. The weight of an update is its cosine with the
    reference, or 0 if the cosine is negative. The reference is the mean update of the trusted children.

    In the paper, the server trains the reference on its own examples, and leaves it out of the mean. Here an ordinary
    device has these examples, and takes part.
    """

    class Options(RuleSettings):
        children: tuple[str, ...] = Field(min_length=1)
        """Trusted devices, such as `[device-000]`, or trusted LPSs, such as `[lps-0]`; each LPS needs one."""

    options: Options

    def refuses(self) -> Mapping[str, str]:
        scaling = "a factor above 1 could move a variance of batch normalisation below 0"
        absent = dict.fromkeys(("training.participation", "quorum below 1", "schedule.leave", "schedule.move"), ABSENT)
        return {"averaged statistics": scaling, **absent}

    def check(self, children: Collection[str]) -> None:
        for child in self.options.children:
            if child not in children:
                known = ", ".join([*children][:8])
                raise ExperimentError(
                    f"rule trusted: no child {child!r:.80} takes part from the first round on; choose from {known}"
                )

    def factors(self, updates: Updates) -> Numbers:
        trusted = [row for row, child in enumerate(updates.children) if child in self.options.children]
        if not trusted:
            raise RunStoppedError(
                f"rule trusted: no trusted child sends these updates, only {', '.join(updates.children[:8])}; name one "
                "of them in the option children, or choose another rule"
            )
        to_reference = updates.products_with(trusted).mean(axis=0)
        norm = np.sqrt(to_reference[trusted].mean())
        shrunk = np.divide(norm, updates.norms, out=np.zeros(len(updates.norms)), where=updates.norms > 0)
        scores = np.maximum(to_reference, 0) * shrunk  # the cosines, times the squared norm of the reference
        factors: Numbers = shrunk * scores / (scores.sum() or 1.0)
        return factors

    def withstands(self, children: int) -> int:
        return max(0, children - len(self.options.children))
