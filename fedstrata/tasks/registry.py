"""The tasks by name, and from an experiment to its task."""

from fedstrata.experiment import Experiment
from fedstrata.tasks.base import Task
from fedstrata.tasks.classification import CLASSIFICATION


def make_task(experiment: Experiment) -> Task:
    """Return the task of an experiment."""
    return CLASSIFICATION
