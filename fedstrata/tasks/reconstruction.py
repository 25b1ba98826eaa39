"""Reconstruction: the targets are the inputs. The trained models can find examples that are unlike the other
examples.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import DataError
from fedstrata.tasks.base import Metric, Sum, Task, TaskSettings
from fedstrata.tasks.histograms import counted, histogram_sums, ranking

if TYPE_CHECKING:
    from torch import Tensor

BINS = 256
DECADES = (-8.0, 8.0)  # range of the histogram of errors, as powers of ten


class Reconstruction(Task):
    """Learn to reproduce the inputs, by the mean squared error. No targets are needed.

    If a column of the data marks anomalies, the area under the ROC curve says how well the errors find the anomalies.
    For this, the error of an example is its score. The area is computed from a histogram of the scores, with 16 bins
    per power of ten.
    """

    class Options(TaskSettings):
        anomalies: str | None = None
        """Column of the data that marks anomalies: 0 for a normal example, and any other number for an anomaly."""

    metrics = (
        Metric(name="mse", title="MSE", higher_is_better=False, about="mean squared error of the inputs"),
        Metric(name="auroc", title="AUROC", unit="percent", about="area under the ROC curve of the error"),
    )
    sums = (Sum(name="error"), *histogram_sums(BINS))

    def output_shape(self, info: DatasetInfo) -> tuple[int, ...]:
        return info.input_shape

    def targets(self, examples: Examples) -> NDArray[Any]:
        return examples.inputs

    def loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return (outputs - targets).square().flatten(1).mean(1)

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        import torch

        errors = self.loss(outputs, targets).double()
        if self.options.anomalies is None:
            return (errors.sum().item(), *[0.0] * (2 * BINS))
        is_anomaly = outputs.new_tensor(self._marks(examples, self.options.anomalies) != 0, dtype=torch.bool)
        low, high = DECADES
        scores = (errors.clamp(min=10**low).log10() - low) / (high - low)
        return (errors.sum().item(), *counted(scores, is_anomaly, BINS))

    def _marks(self, examples: Examples, column: str) -> NDArray[Any]:
        if column not in examples.columns:
            known = ", ".join(examples.columns) or "no columns"
            raise DataError(f"task.anomalies names the column {column!r}, but the data have {known}")
        return examples.columns[column]

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        error, *histogram = sums
        return {"mse": error / num_examples, "auroc": ranking(histogram)}
