"""A task is a subclass of `Task` in one file, with a loss, sums and metrics.

A device compares a model's outputs with targets. It sends the sum of the losses of its examples, and the other sums of
the task. LPSs and the GPS add these sums without knowing the task. `summarise` computes metrics from the sums of one
device, or of all devices. Only `loss`, `mean_loss` and `measure` need torch.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray

from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.errors import DataError, PluginError
from fedstrata.experiment.sections import TaskSettings
from fedstrata.plugins import or_failed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LARGEST_METRIC", "Metric", "Sum", "Task", "TaskSettings", "measured"]

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
MOST_METRICS = 16
MOST_SUMS = 4096
Run = Callable[[Examples], "Tensor"]  # returns the model's outputs for examples
LARGEST_METRIC = 1e300  # a larger value counts as not measured, so that sums and means of metrics stay finite


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Describe a number that a task reports. Raises PluginError if the name or the unit is not allowed, or the title is
    too long.
    """

    name: str
    """Name in the record: small letters, digits and underscores."""
    unit: Literal["percent", "plain"] = "plain"
    """`percent`: a share in [0, 1], shown in percent. `plain`: any number."""
    higher_is_better: bool = True
    """Whether a higher value is better."""
    title: str = ""
    """Name for people; by default, the name with a capital letter."""
    about: str = field(default="", compare=False)
    """Description of the metric, in a few words. Metrics that differ only in it are equal."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.unit not in {"percent", "plain"} or len(self.title) > 40:
            raise PluginError(
                f"metric {self.name!r:.80} with unit {self.unit!r:.20}: the name must have small letters, digits and "
                "underscores, the unit must be percent or plain, and the title at most 40 characters"
            )

    @property
    def label(self) -> str:
        """The name of the metric in texts and figures."""
        return self.title or self.name.replace("_", " ").capitalize()

    @property
    def is_percent(self) -> bool:
        """True if values are shares, which are shown in percent."""
        return self.unit == "percent"

    @property
    def gauge(self) -> str:
        """The name of the metric at `/metrics`, without `fedstrata_`."""
        return f"{self.name}_ratio" if self.is_percent else self.name

    def worst(self, values: Iterable[float]) -> float | None:
        """Return the worst of some values. Without values, return None."""
        return (min if self.higher_is_better else max)(values, default=None)

    def is_reached(self, value: float, final: float, share: float) -> bool:
        """Return whether a value is nearly as good as the final value, see `part_of`."""
        part = self.part_of(final, share)
        return value >= part if self.higher_is_better else value <= part

    def part_of(self, final: float, share: float) -> float:
        """Return the value that is a part of the final value. If `share` is 0.95, it is 0.95 times the final accuracy,
        and 1 / 0.95 times the final error.
        """
        return final * share if self.higher_is_better == (final >= 0) else final / share

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest possible value."""
        return (0.0, 1.0) if self.unit == "percent" else (-LARGEST_METRIC, LARGEST_METRIC)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Describe a sum over examples: its name, and how much one example can add to it."""

    name: str
    """Name of the sum."""
    least: float = 0.0
    """Smallest number that one example can add."""
    most: float = math.inf
    """Largest number that one example can add."""
    is_count: bool = False
    """Whether the sum is a whole number."""

    def range(self, num_examples: int) -> tuple[float, float]:
        """Return the smallest and the largest possible sum over this many examples, with a tolerance for rounding."""
        room = 1.0 if self.is_count else 1 + 1e-9
        ends = (self.least, self.most) if num_examples else (0.0, 0.0)
        least, most = (min(max(room * num_examples * end, -LARGEST_METRIC), LARGEST_METRIC) for end in ends)
        return least, most


class Task:
    """Define a task. A subclass overrides the methods that differ. A task has no state except its options."""

    Options: ClassVar[type[TaskSettings]] = TaskSettings
    """The task's options, a subclass of `TaskSettings`. pydantic checks them."""
    metrics: tuple[Metric, ...] = ()
    """Metrics of the task. The first is the headline, by which devices and runs are compared."""
    sums: tuple[Sum, ...] = ()
    """Sums over examples, in addition to the sum of losses."""
    labelled: bool = False
    """True if each example has one label, and the model has one output per label. Some methods require this."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @property
    def headline(self) -> Metric:
        """The main metric, by which devices and runs are compared."""
        return self.metrics[0]

    def check(self, info: DatasetInfo) -> None:
        """Raise ExperimentError if the data do not fit the task."""

    def output_shape(self, info: DatasetInfo) -> tuple[int, ...]:
        """Return the shape of the model's outputs for one example."""
        raise NotImplementedError(f"{type(self).__name__} does not implement output_shape")

    def targets(self, examples: Examples) -> NDArray[Any]:
        """Return the targets of examples, shape (n, …). By default, these are the targets of the data. Raises DataError
        if the data have no targets.
        """
        if examples.targets is None:
            raise DataError(
                f"task {self.options.name} needs targets, and the data have none; choose task reconstruction"
            )
        return examples.targets

    def loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the loss of each example, shape (n,)."""
        raise NotImplementedError(f"{type(self).__name__} does not implement loss")

    def mean_loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the loss of a batch, which training minimises. By default, this is the mean of `loss`."""
        return self.loss(outputs, targets).mean()

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        """Return how much these examples add to each of `sums`, in the order of `sums`."""
        return ()

    def measure_with(self, run: Run, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        """Return the sums of `measure`. `run` takes examples and returns the model's outputs for them. So a task can
        also measure the model on examples other than `examples`.
        """
        return self.measure(outputs, targets, examples)

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        """Return the metrics by name, from sums over some examples. A metric without a value is None or absent."""
        raise NotImplementedError(f"{type(self).__name__} does not implement summarise")


def measured(task: Task, sums: Sequence[float], num_examples: int) -> dict[str, float | None]:
    """Return all metrics of a task by name, in the task's order. A metric without a value is None. Raises PluginError
    if the user's own task fails.
    """
    if not num_examples:
        return {metric.name: None for metric in task.metrics}
    with or_failed(f"task {task.options.name} failed in summarise:", task):
        found = task.summarise(tuple(sums), num_examples)
        return {metric.name: _in_range(metric, found.get(metric.name)) for metric in task.metrics}


def _in_range(metric: Metric, value: float | None) -> float | None:
    least, most = metric.range
    return float(value) if value is not None and least <= value <= most else None
