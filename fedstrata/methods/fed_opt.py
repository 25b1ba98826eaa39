"""FedAvg in which an optimiser of the server moves the model by the mean update Δ of a round.

FedAvgM: T.-M. H. Hsu, H. Qi and M. Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019. FedAdagrad, FedYogi and FedAdam: S. J. Reddi et al., Adaptive Federated Optimization, ICLR 2021,
Algorithm 2. `fedstrata.optimisers` has the formulas.

Departure: the weight of a device in Δ is its number of examples.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from fedstrata.experiment.sections import (
    AdagradSettings,
    AdamSettings,
    AnyServerOptimiser,
    MomentumSettings,
    YogiSettings,
)
from fedstrata.methods.base import Facts, MethodSettings
from fedstrata.methods.fed_avg import FedAvg


class FedOpt(FedAvg):
    """Average as FedAvg does, and let an optimiser of the server apply the mean update."""

    optimiser: ClassVar[Callable[..., AnyServerOptimiser]]
    """Function that makes the settings of the server's optimiser from the method's options."""

    def __init__(self, options: Any, facts: Facts) -> None:
        super().__init__(options, facts)
        own = options.model_dump(exclude={"name", "server_learning_rate"})
        self.server_optimiser = self.optimiser(learning_rate=options.server_learning_rate, **own)

    def refuses(self) -> Mapping[str, str]:
        """Refuse other optimisers of servers, and averaged statistics of batch normalisation."""
        return {
            "training.gps_optimiser": "the method has its own optimiser of the server",
            "training.lps_optimiser": "the method has its own optimiser of the server",
            "averaged statistics": "an optimiser's step could move a variance of batch normalisation below 0",
        }


class FedAvgM(FedOpt):
    """Average as FedAvg does, and let the server apply the mean update with momentum."""

    class Options(MethodSettings):
        """Hold the settings of the server's momentum: v ← momentum · v + Δ, and the model moves by
        server_learning_rate · v.
        """

        server_learning_rate: float = Field(default=1.0, gt=0)
        """Learning rate of the server."""
        momentum: float = Field(default=0.9, ge=0, lt=1)
        """Share of the former v that is kept."""

    optimiser = staticmethod(partial(MomentumSettings, name="momentum"))


class FedAdagrad(FedOpt):
    """Average as FedAvg does, and let the server apply the mean update by Adagrad."""

    class Options(MethodSettings):
        """Hold the settings of the server's Adagrad, in which v ← v + Δ²."""

        server_learning_rate: float = Field(default=0.01, gt=0)
        """Learning rate of the server; a good one depends on the data set."""
        beta1: float = Field(default=0.0, ge=0, lt=1)
        """Share kept of the first moment: m ← beta1 · m + (1 − beta1) · Δ."""
        tau: float = Field(default=1e-3, gt=0)
        """Number added to √v; v starts at tau²."""

    optimiser = staticmethod(partial(AdagradSettings, name="adagrad"))


class FedYogi(FedOpt):
    """Average as FedAvg does, and let the server apply the mean update by Yogi."""

    class Options(FedAdagrad.Options):
        """Hold the settings of the server's Yogi, in which v ← v − (1 − beta2) · Δ² · sign(v − Δ²)."""

        beta1: float = Field(default=0.9, ge=0, lt=1)
        """Share kept of the first moment: m ← beta1 · m + (1 − beta1) · Δ."""
        beta2: float = Field(default=0.99, ge=0, lt=1)
        """1 − beta2 is the factor with which Δ² changes v."""

    optimiser = staticmethod(partial(YogiSettings, name="yogi"))


class FedAdam(FedOpt):
    """Average as FedAvg does, and let the server apply the mean update by Adam without bias correction."""

    class Options(FedAdagrad.Options):
        """Hold the settings of the server's Adam, in which v ← beta2 · v + (1 − beta2) · Δ²."""

        beta1: float = Field(default=0.9, ge=0, lt=1)
        """Share kept of the first moment: m ← beta1 · m + (1 − beta1) · Δ."""
        beta2: float = Field(default=0.99, ge=0, lt=1)
        """Share kept of the second moment."""

    optimiser = staticmethod(partial(AdamSettings, name="adam"))
