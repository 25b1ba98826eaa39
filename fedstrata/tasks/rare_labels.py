"""Classification that also measures the accuracy of rare labels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import ExperimentError
from fedstrata.experiment.partition import Labels
from fedstrata.tasks.base import Metric, Sum, TaskSettings
from fedstrata.tasks.classification import Classification

if TYPE_CHECKING:
    from torch import Tensor


class RareLabels(Classification):
    """Learn one label per example, as `classification` does. Servers do not know which labels devices have, so the
    experiment names the rare labels.
    """

    class Options(TaskSettings):
        labels: Labels
        """Rare labels: their examples have an accuracy of their own."""

    metrics = (
        *Classification.metrics,
        Metric(name="rare_accuracy", unit="percent", about="share of hits among examples with the rare labels"),
    )
    sums = (
        *Classification.sums,
        Sum(name="rare_correct", most=1, is_count=True),
        Sum(name="rare_examples", most=1, is_count=True),
    )

    def check(self, info: DatasetInfo) -> None:
        super().check(info)
        most = max(self.options.labels)
        if most >= info.num_classes:
            raise ExperimentError(
                f"task.labels: the data set has no label {most}; its labels go from 0 to {info.num_classes - 1}"
            )

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        is_hit = outputs.argmax(1) == targets
        is_rare = sum(targets == label for label in self.options.labels) > 0
        return float(is_hit.sum()), float((is_hit & is_rare).sum()), float(is_rare.sum())

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        correct, rare_correct, rare = sums
        return {**super().summarise([correct], num_examples), "rare_accuracy": rare_correct / rare if rare else None}
