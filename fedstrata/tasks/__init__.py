"""Tasks: the loss that devices minimise, and the metrics of their models. `base` defines the interface of tasks, and
`registry` maps names to tasks.
"""

from fedstrata.tasks.base import Metric, Sum, Task, TaskSettings, measured
from fedstrata.tasks.classification import CLASSIFICATION, Classification
from fedstrata.tasks.registry import make_task

__all__ = ["CLASSIFICATION", "Classification", "Metric", "Sum", "Task", "TaskSettings", "make_task", "measured"]
