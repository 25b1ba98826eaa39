"""Multi-label: any number of labels per example."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from pydantic import Field

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import DataError, ExperimentError
from fedstrata.tasks.base import Metric, Sum, Task, TaskSettings
from fedstrata.tasks.histograms import counted, histogram_sums, ranking

if TYPE_CHECKING:
    from torch import Tensor

BINS = 128


class MultiLabel(Task):
    """Learn which of several labels an example has, by binary cross-entropy of each label.

    Targets are float32 of 0 and 1, shape (n, labels), and outputs are scores before the sigmoid, of the same shape. In
    all metrics, each pair of example and label is counted once.
    """

    class Options(TaskSettings):
        threshold: float = Field(default=0.5, gt=0, lt=1)
        """Smallest probability with which a label is predicted."""

    metrics = (
        Metric(name="f1", title="F1", unit="percent", about="harmonic mean of precision and recall"),
        Metric(name="auroc", title="AUROC", unit="percent", about="area under the ROC curve, from a histogram"),
    )
    sums = (
        Sum(name="hits", is_count=True),
        Sum(name="false_alarms", is_count=True),
        Sum(name="misses", is_count=True),
        *histogram_sums(BINS),
    )

    def check(self, info: DatasetInfo) -> None:
        if info.num_classes or len(info.target_shape) != 1:
            raise ExperimentError(
                f"task multi_label needs targets of 0 and 1, one per label: set data.target_shape to [labels], not to "
                f"{list(info.target_shape)}, and remove data.num_classes"
            )

    def output_shape(self, info: DatasetInfo) -> tuple[int, ...]:
        return info.target_shape

    def targets(self, examples: Examples) -> NDArray[Any]:
        found = super().targets(examples)
        if (wrong := (found < 0) | (found > 1)).any():
            raise DataError(f"task multi_label has the target {found[wrong][0]:g}; write 0 or 1 for each label")
        return found

    def loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(outputs, targets, reduction="none").flatten(1).mean(1)

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        probabilities, is_there = outputs.double().sigmoid(), targets > 0.5
        is_said = probabilities >= self.options.threshold
        counts = (is_said & is_there, is_said & ~is_there, ~is_said & is_there)
        return (*(float(count.sum()) for count in counts), *counted(probabilities, is_there, BINS))

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        hits, false_alarms, misses, *histogram = sums
        of = 2 * hits + false_alarms + misses
        return {"f1": 2 * hits / of if of else None, "auroc": ranking(histogram)}
