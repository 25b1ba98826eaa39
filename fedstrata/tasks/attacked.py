"""A task that also measures the success of attacks on the run, such as a backdoor."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedstrata.attacks import Entry, attacks_of
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment import Experiment
from fedstrata.tasks.base import Metric, Run, Sum, Task
from fedstrata.tensors.processor import read

if TYPE_CHECKING:
    from torch import Tensor

SUCCESS = Metric(
    name="attack_success", unit="percent", higher_is_better=False, about="share of hits on the attackers' inputs"
)
SUMS = (Sum(name="attack_hits", most=1, is_count=True), Sum(name="attack_inputs", most=1, is_count=True))


def with_success(task: Task, experiment: Experiment) -> Task:
    """Return the task that also measures the success of the experiment's attacks. If no attack has a measure of
    success, return the task itself.
    """
    entries = [entry for entry in attacks_of(experiment) if entry.attack.is_measured]
    return WithSuccess(task, entries) if entries else task


class WithSuccess(Task):
    """Measure another task, and the success of attacks: how often a model gives the answer that the attackers want, for
    inputs that they have changed.
    """

    def __init__(self, task: Task, attacks: Sequence[Entry]) -> None:
        super().__init__(task.options)
        self._task, self._attacks = task, attacks
        self.metrics, self.sums = (*task.metrics, SUCCESS), (*task.sums, *SUMS)
        self.labelled = task.labelled

    def check(self, info: DatasetInfo) -> None:
        self._task.check(info)

    def output_shape(self, info: DatasetInfo) -> tuple[int, ...]:
        return self._task.output_shape(info)

    def targets(self, examples: Examples) -> NDArray[Any]:
        return self._task.targets(examples)

    def loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return self._task.loss(outputs, targets)

    def mean_loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return self._task.mean_loss(outputs, targets)

    def measure(self, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        """Return the sums of the other task, and zeros for the success of attacks. Only `measure_with` measures the
        success.
        """
        return (*self._task.measure(outputs, targets, examples), 0.0, 0.0)

    def measure_with(self, run: Run, outputs: "Tensor", targets: "Tensor", examples: Examples) -> Sequence[float]:
        hits = inputs = 0
        for entry in self._attacks:
            probe = entry.probe(examples)
            if len(probe):
                answers = read(run(probe).argmax(1))
                hits, inputs = hits + int((answers == probe.labels).sum()), inputs + len(probe)
        return (*self._task.measure_with(run, outputs, targets, examples), float(hits), float(inputs))

    def summarise(self, sums: Sequence[float], num_examples: int) -> Mapping[str, float | None]:
        *own, hits, inputs = sums
        return {**self._task.summarise(own, num_examples), SUCCESS.name: hits / inputs if inputs else None}
