"""Test a model and a task on a few examples, before a device is ready. If a test fails, the error message has one
line.
"""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError, PluginError
from fedstrata.experiment import Experiment, ModelSettings
from fedstrata.models import Model, check_inputs
from fedstrata.plugins import describe
from fedstrata.streams.architectures import Architectures
from fedstrata.tasks import Task
from fedstrata.tensors import Flat

EXAMPLES = 3


def try_all(experiment: Experiment, architectures: Architectures, dataset: Dataset, task: Task) -> None:
    """Test each model of the experiment with the task.

    Raises:
        FedstrataError: a test fails, see `try_out` and `try_task`.
    """
    asked = (experiment.model, *(entry.model for entry in experiment.architectures))
    for settings, architecture in zip(asked, architectures.all, strict=True):
        try_out(settings, architecture.model, dataset, experiment.seed, task)
        try_task(task, architecture.model, dataset, experiment.seed)


def try_out(settings: ModelSettings, model: Model, dataset: Dataset, seed: int, task: Task) -> None:
    """Test a model. The user's own model is refused if its outputs have a wrong shape, or differ for equal weights and
    inputs. A built-in model is refused if it does not accept the data's inputs.

    Raises:
        PluginError: the user's own model is refused, or fails.
        ExperimentError: a built-in model is refused.
    """
    if ":" not in settings.name:
        check_inputs(settings, dataset.train)
        return
    examples = dataset.train.take(np.arange(min(EXAMPLES, len(dataset.train))))
    start = model.initial(seed)
    wanted = (len(examples), *task.output_shape(dataset.info))
    before = _global_generators()
    for measures in (True, False):
        try:
            found, again = (_outputs(model, start, examples, measures=measures) for _ in range(2))
        except PluginError as error:
            raise PluginError(f"model {settings.name}: {error}") from error
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"model {settings.name} failed on inputs of shape {examples.inputs.shape}: "
                f"{describe(error, model.outputs)}"
            ) from error
        if (
            not isinstance(found, torch.Tensor) or found.shape != wanted
            or not found.is_floating_point() or found.layout != torch.strided
        ):  # fmt: skip
            raise PluginError(
                f"model {settings.name} gives {_described(found)} for {len(examples)} inputs; give a float tensor "
                f"of shape {wanted}: one row per input, with the values that task {task.options.name} needs"
                f"{_advice(found, wanted)}"
            )
        if _global_generators() != before or not torch.equal(found.nan_to_num(), again.nan_to_num()):
            raise PluginError(
                f"model {settings.name} gives other outputs for the same weights and inputs, or draws from its own "
                "generator, NumPy's or Python's random: draw from torch's global generator, and keep no state"
            )


@torch.no_grad()
def try_task(task: Task, model: Model, dataset: Dataset, seed: int) -> None:
    """Test a task. It is refused if its loss or its sums cannot be computed for the data.

    Raises:
        PluginError: the user's own task fails, or returns other values than losses and sums.
        DataError: the data lack the task's targets, or a column that the task names.
    """
    examples = dataset.train.take(np.arange(min(EXAMPLES, len(dataset.train))))
    name, n = task.options.name, len(examples)
    run = partial(_outputs, model, model.initial(seed), measures=True)
    outputs = run(examples)
    targets: torch.Tensor | None = None
    try:
        targets = model.processor.tensor(task.targets(examples))
        losses, mean = task.loss(outputs, targets).shape, task.mean_loss(outputs, targets).shape
        sums = np.asarray(task.measure_with(run, outputs, targets, examples), np.float64)
    except DataError:
        raise
    except Exception as error:
        fault = error if isinstance(error, PluginError) else f"task {name} failed: {describe(error)}"
        raise PluginError(
            f"{fault}; tried on {n} examples with targets {_described(targets)} and outputs {_described(outputs)}"
        ) from error
    if losses != (n,) or mean != ():
        raise PluginError(
            f"task {name} gives losses of shape {tuple(losses)} and a mean loss of shape {tuple(mean)} for "
            f"{n} examples; let loss return one number per example, and mean_loss one number"
        )
    if sums.shape != (len(task.sums),):
        said = f"task {name} measures {sums.size} numbers, but declares {len(task.sums)} sums"
        raise PluginError(f"{said}; give one number for each sum")


@torch.no_grad()
def _outputs(model: Model, start: Flat, examples: Examples, *, measures: bool) -> torch.Tensor:
    """Return the outputs with the weights `start`. A call in training may change statistics, but only in a copy."""
    if not measures:
        model = replace(model, outputs=model.outputs_in_training(np.random.default_rng(0)))
    return model.outputs_for(model.tensors(start), examples)


def _global_generators() -> object:
    """Return the states of the global random generators of Python and NumPy."""
    state = np.random.get_state(legacy=False)["state"]
    return random.getstate(), state["key"].tobytes(), state["pos"]


def _advice(found: object, wanted: tuple[int, ...]) -> str:
    """If a model's outputs lack only the last axis, which should have length 1, return advice. Otherwise return an
    empty text.
    """
    lacks_axis = isinstance(found, torch.Tensor) and wanted[1:] == (1,) and found.shape == wanted[:1]
    return "; add .unsqueeze(1) to the outputs" if lacks_axis else ""


def _described(found: object) -> str:
    if not isinstance(found, torch.Tensor):
        return f"a {type(found).__name__}"
    layout = "" if found.layout == torch.strided else f"{found.layout} and "
    return f"{layout}{found.dtype} of shape {tuple(found.shape)}"
