"""Regression: the targets of each example are numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import ExperimentError
from fedstrata.tasks.base import Metric, Sum, Task, TaskSettings

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-12  # a smaller variance, as a share of the mean square, is rounding: float32 targets have 7 digits


class Regression(Task):
    """Learn numbers. Metrics are computed over all numbers of all examples together."""

    class Options(TaskSettings):
        loss: Literal["squared", "absolute", "huber"] = "squared"
        """Loss of a number: its squared or absolute error, or Huber's loss with delta 1."""

    metrics = (
        Metric(name="rmse", title="RMSE", higher_is_better=False, about="root of the mean squared error"),
        Metric(name="mae", title="MAE", higher_is_better=False, about="mean absolute error"),
        Metric(name="r2", title="R²", about="share of the targets' variance that is explained"),
    )
    sums = (
        Sum(name="values", is_count=True),
        Sum(name="squared_error"),
        Sum(name="absolute_error"),
        Sum(name="target", least=-math.inf),
        Sum(name="squared_target"),
    )

    def check(self, info: DatasetInfo) -> None:
        if info.num_classes:
            raise ExperimentError(
                f"task regression learns numbers, but the data have {info.num_classes} labels; remove "
                "data.num_classes, or choose task classification"
            )

    def output_shape(self, info: DatasetInfo) -> tuple[int, ...]:
        return info.target_shape or (1,)

    def loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the loss of each example, shape (n,). It is the mean over the numbers of the example."""
        from torch.nn import functional

        given, reduction = outputs.reshape(targets.shape), "none"
        if self.options.loss == "squared":
            losses = functional.mse_loss(given, targets, reduction=reduction)
        elif self.options.loss == "absolute":
            losses = functional.l1_loss(given, targets, reduction=reduction)
        else:
            losses = functional.huber_loss(given, targets, reduction=reduction)
        return losses.reshape(len(targets), -1).mean(1)

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        targets = targets.double()
        error = outputs.reshape(targets.shape).double() - targets
        parts = (error.square(), error.abs(), targets, targets.square())
        return (float(targets.numel()), *(part.sum().item() for part in parts))

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        values, squared, absolute, target, squared_target = sums
        variation = squared_target - target**2 / values
        return {
            "rmse": math.sqrt(squared / values),
            "mae": absolute / values,
            "r2": 1 - squared / variation if variation > ROUNDING * squared_target else None,
        }
