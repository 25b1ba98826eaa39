"""Tasks: the loss that devices minimise, and the metrics that they are measured by (`base`), by name (`registry`)."""

from fedstrata.tasks.base import Metric, Sum, Task, TaskSettings, measured
from fedstrata.tasks.classification import CLASSIFICATION, Classification
from fedstrata.tasks.registry import make_task

__all__ = ["CLASSIFICATION", "Classification", "Metric", "Sum", "Task", "TaskSettings", "make_task", "measured"]
