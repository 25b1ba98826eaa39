"""The oracle: clusters are the true tasks, as an upper bound for methods that find clusters. The experiment file of an
emulated run states the true tasks.
"""

from collections import defaultdict
from collections.abc import Sequence

from fedstrata.errors import ExperimentError
from fedstrata.methods.base import Answers, Candidate, Method, Moment, Plan


class Oracle(Method):
    """Make one cluster per true task."""

    def check(self) -> None:
        """Raise ExperimentError unless the partition states the true tasks."""
        if not self.facts.true_groups:
            raise ExperimentError(
                "method oracle needs a partition with known true clusters; choose partition.kind tasks or groups"
            )

    @property
    def clusters_known(self) -> int:
        """The number of true tasks."""
        return self.facts.true_groups or 0

    def plan(self, moment: Moment, answers: Answers, before: Plan | None) -> Plan:
        """Return a plan in which the devices of each true task are a cluster."""
        return Plan.ordered(devices_by_task(answers.devices).values(), "one cluster a task")

    def place(self, late: Candidate, answers: Answers, plan: Plan) -> int:
        """Return the number of the cluster with the late device's task. If no other device has this task, return 0."""
        others = devices_by_task(answers.devices).get(late.true_task or "", [])
        return plan.cluster_of(others[0]) if others else 0


def devices_by_task(devices: Sequence[Candidate]) -> dict[str, list[int]]:
    """Return the device indexes by true task. Raises ExperimentError if the tasks are unknown."""
    tasks: dict[str, list[int]] = defaultdict(list)
    for device in devices:
        if device.true_task is None:
            raise ExperimentError(
                "the partition has no true clusters; choose partition.kind tasks or groups, or another method"
            )
        tasks[device.true_task].append(device.device_index)
    return dict(tasks)
