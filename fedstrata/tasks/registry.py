"""The tasks by name. The module makes a task from the section `task` of an experiment file."""

from collections.abc import Mapping

from fedstrata.errors import PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment.registry import Registry
from fedstrata.experiment.sections import TaskSettings
from fedstrata.tasks.attacked import with_success
from fedstrata.tasks.base import MOST_METRICS, MOST_SUMS, Metric, Sum, Task

DEFAULT = "classification"
# By name `module:Class`. The module is imported when the name is first used.
REGISTRY: Mapping[str, str] = {
    "classification": "fedstrata.tasks.classification:Classification",
    "rare_labels": "fedstrata.tasks.rare_labels:RareLabels",
    "regression": "fedstrata.tasks.regression:Regression",
    "next_token": "fedstrata.tasks.next_token:NextToken",
    "multi_label": "fedstrata.tasks.multi_label:MultiLabel",
    "reconstruction": "fedstrata.tasks.reconstruction:Reconstruction",
}
NAMES = tuple(REGISTRY)


TASKS = Registry(section="task", base=Task, options=TaskSettings, default=DEFAULT, known=REGISTRY)
task_class, task_settings = TASKS.kind, TASKS.settings


def make_task(experiment: Experiment) -> Task:
    """Return the task of an experiment. Raises PluginError if the user's own task cannot be made."""
    settings = experiment.task
    task = TASKS.made(settings.name, lambda kind: kind(settings))
    _check_declared(settings.name, task)
    return with_success(task, experiment)


def _check_declared(name: str, task: Task) -> None:
    """Raise PluginError for a task with invalid metrics or sums."""
    for what, kind, declared, most in (
        ("metrics", Metric, task.metrics, MOST_METRICS),
        ("sums", Sum, task.sums, MOST_SUMS),
    ):
        if not (isinstance(declared, tuple) and all(isinstance(each, kind) for each in declared)):
            raise PluginError(f"task {name}: {what} must be a tuple of {kind.__name__}, not {declared!r:.80}")
        names = [each.name for each in declared]
        if len(set(names)) != len(names) or len(names) > most:
            raise PluginError(f"task {name}: {what} must have at most {most} different names; it has {names!r:.200}")
    if not task.metrics:
        raise PluginError(f"task {name} has no metric; declare at least one in `metrics`, the headline")
