"""Classification: one label per example, by cross-entropy."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import ExperimentError
from fedstrata.tasks.base import Metric, Sum, Task, TaskSettings

if TYPE_CHECKING:
    from torch import Tensor


class Classification(Task):
    """Learn one label per example. The model has one output per label, and the label with the largest output is its
    answer.
    """

    metrics: tuple[Metric, ...] = (Metric(name="accuracy", unit="percent", about="share of hits"),)
    sums: tuple[Sum, ...] = (Sum(name="correct", most=1, is_count=True),)
    labelled = True

    def __init__(self, options: TaskSettings | None = None) -> None:
        super().__init__(options or TaskSettings())

    def check(self, info: DatasetInfo) -> None:
        if not info.num_classes:
            raise ExperimentError(
                "task classification needs data.num_classes, the number of labels; add it, or set task.name to "
                "regression (for numbers), next_token, multi_label or reconstruction"
            )
        if info.target_shape:
            raise ExperimentError(
                f"task classification needs one label per example, but targets have shape {info.target_shape}; remove "
                "data.target_shape and write labels of shape (n,), or choose task next_token"
            )

    def output_shape(self, info: DatasetInfo) -> tuple[int, ...]:
        return (info.num_classes,)

    def loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none")

    def mean_loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the mean cross-entropy. Targets may also be distributions over the labels, shape (n, num_classes)."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets)

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        return (float((outputs.argmax(1) == targets).sum()),)

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        return {"accuracy": sums[0] / num_examples}


CLASSIFICATION = Classification()
