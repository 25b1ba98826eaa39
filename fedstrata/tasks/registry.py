"""The tasks by name. The module makes a task from the section `task` of an experiment file."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from fedstrata.errors import ExperimentError, FedstrataError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment.messages import nearest, one_line
from fedstrata.experiment.sections import PLUGIN, TaskSettings
from fedstrata.plugins import describe, load_plugin
from fedstrata.tasks.base import MOST_METRICS, MOST_SUMS, Metric, Sum, Task

DEFAULT = "classification"
# By name the module and the class; a module is loaded when it is asked for.
REGISTRY: Mapping[str, str] = {
    "classification": "fedstrata.tasks.classification:Classification",
    "regression": "fedstrata.tasks.regression:Regression",
    "next_token": "fedstrata.tasks.next_token:NextToken",
    "multi_label": "fedstrata.tasks.multi_label:MultiLabel",
    "reconstruction": "fedstrata.tasks.reconstruction:Reconstruction",
}
NAMES = tuple(REGISTRY)


def task_class(name: str) -> type[Task]:
    """Return the class of this name, or the user's own class for `module:Class`.

    Raises:
        ExperimentError: no task has that name. PluginError: own code is missing or is no task.
    """
    if name in REGISTRY:
        module, _, found = REGISTRY[name].partition(":")
        known: type[Task] = getattr(import_module(module), found)
        return known
    if not PLUGIN.match(name):
        raise ExperimentError(
            f"task.name: no task is called {name!r:.80}; {nearest(name, NAMES)}choose {', '.join(NAMES)}, "
            "or your own as module:Class"
        )
    own: Any = load_plugin(name, "task")
    if not (isinstance(own, type) and issubclass(own, Task)):
        raise PluginError(f"task {name} must be a subclass of fedstrata.tasks.Task, not {own!r:.80}")
    options: Any = own.Options
    if not (isinstance(options, type) and issubclass(options, TaskSettings)):
        raise PluginError(f"task {name}: Options must be a subclass of fedstrata.tasks.TaskSettings")
    return own


def task_settings(section: Any) -> TaskSettings:
    """Return the checked section `task` of an experiment file, which is a name or a mapping.

    Raises:
        ExperimentError: the section has a key or value that the task refuses.
    """
    if isinstance(section, TaskSettings):
        return section
    if isinstance(section, str) or section is None:
        section = {"name": section or DEFAULT}
    if not isinstance(section, Mapping):
        raise ExperimentError(f"task: a name, or a mapping with a name and its options, not {section!r:.80}")
    section = {"name": DEFAULT, **section}
    options = task_class(str(section["name"])).Options
    known = ", ".join(sorted(set(options.model_fields) - {"name"})) or "none"
    try:
        return options.model_validate(section)
    except ValidationError as error:
        unknown = f"task {section['name']} has no such option; its options are: {known}"
        raise ExperimentError(one_line(error, lambda _: unknown, "task")) from None


def make_task(experiment: Experiment) -> Task:
    """Return the task of an experiment. Raises PluginError if the user's own task cannot be made."""
    settings = experiment.task
    kind = task_class(settings.name)
    try:
        task = kind(settings)
    except FedstrataError:
        raise
    except Exception as error:
        raise PluginError(f"task {settings.name} failed with {describe(error)}") from error
    _check_declared(settings.name, task)
    return task


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
            raise PluginError(
                f"task {name}: {what} has {len(names)} names; each differs from the others, {most} at most"
            )
    if not task.metrics:
        raise PluginError(f"task {name} has no metric; the first of `metrics` is the headline")
