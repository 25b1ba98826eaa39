"""A training computes where its model computes, and reads its loss and its weights once."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

from device.evaluation import evaluate
from device.stacked.training import Stacked
from device.training import TrainingJob, limit_threads, train
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment import ModelSettings
from fedstrata.methods.work import Pull
from fedstrata.models import Model, build_model, from_module
from fedstrata.models.building import BUILT_IN
from fedstrata.tasks.registry import NAMES, task_class, task_settings
from tests.support.normed import Normed
from tests.support.placement import META, Placement, placement
from tests.support.training_jobs import SEED, job_with

IMAGES = DatasetInfo(input_shape=(1, 16, 16), num_classes=10)
DIGITS = DatasetInfo(input_shape=(1, 8, 8), num_classes=10)
COUNTING = {"aten.add_.Tensor", "aten._local_scalar_dense.default"}  # torch counts an optimiser's steps on the host
INFOS = {
    "next_token": DatasetInfo(input_shape=(1, 8, 8), num_classes=9, target_shape=(5,)),
    "regression": DatasetInfo(input_shape=(1, 8, 8), target_shape=(3,)),
    "multi_label": DatasetInfo(input_shape=(1, 8, 8), target_shape=(4,)),
}
OPTIONS: dict[str, dict[str, Any]] = {"reconstruction": {"anomalies": "broken"}, "rare_labels": {"labels": [1, 3]}}


def model_of(name: str, info: DatasetInfo) -> Model:
    return build_model(ModelSettings(name=name), info).of_run(SEED, META)


def examples_of(info: DatasetInfo) -> Examples:
    rng = np.random.default_rng(1)
    shape = (20, *info.target_shape)
    targets = rng.integers(0, info.num_classes, shape) if info.num_classes else rng.integers(0, 2, shape)
    return Examples(
        inputs=rng.random((20, *info.input_shape), dtype=np.float32),
        targets=targets if info.num_classes else targets.astype(np.float32),
        columns={"broken": np.arange(20) % 2},
    )


def trained(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> Placement:
    limit_threads()
    with placement(monkeypatch) as found:
        train(job)
    return found


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_training_of_each_model_is_where_the_model_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = np.zeros(model_of(name, IMAGES).layout.size, np.float32)
    job = job_with(model_of(name, IMAGES), {"local_steps": 3}, examples=examples_of(IMAGES), start=start)
    found = trained(job, monkeypatch)
    assert (found.elsewhere, found.reads) == (set(), 2)  # losses, weights


def test_a_module_with_statistics_and_dropout_is_where_its_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = from_module(Normed).of_run(SEED, META)
    job = job_with(model, {"local_steps": 3}, start=from_module(Normed).initial(SEED))
    found = trained(job, monkeypatch)
    assert (found.elsewhere, found.reads) == (set(), 2)


@pytest.mark.parametrize("made", [lambda: torch.zeros(()), lambda: torch.zeros(3).sum(), lambda: torch.rand(1)[0]])
def test_a_tensor_that_a_module_makes_elsewhere_is_noted(
    made: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(Normed):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) + made()

    model = from_module(Elsewhere).of_run(SEED, META)
    found = trained(job_with(model, {"local_steps": 1}, start=from_module(Normed).initial(SEED)), monkeypatch)
    assert found.elsewhere


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "adagrad", "sgd"])
def test_an_optimiser_keeps_its_state_where_the_model_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optimiser = {"name": name, "state": "kept", "clip_norm": 1.0, **({"momentum": 0.9} if name == "sgd" else {})}
    model = model_of("mlp", DIGITS)
    found = trained(job_with(model, {"local_steps": 3, "optimiser": optimiser}), monkeypatch)
    assert found.elsewhere <= COUNTING
    assert not found.elsewhere or name != "sgd"


@pytest.mark.parametrize("changes", [{}, {"correct": Pull(0.1)}], ids=["plain", "corrected"])
def test_a_stack_is_where_its_model_is(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("mlp", DIGITS)
    beside = {"beside": (model.initial(4),)} if changes else {}
    jobs = [job_with(model, {"local_steps": 40}, held_out=examples_of(DIGITS), **changes, **beside) for _ in range(3)]
    with placement(monkeypatch) as found:
        Stacked().train(jobs)
    assert found.elsewhere == set()
    assert found.reads == 2 + 2 + 4  # measured losses and hits, losses of 32 steps, of 8 steps, and four tensors


@pytest.mark.parametrize("name", NAMES)
def test_a_task_computes_where_the_model_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = INFOS.get(name, DIGITS)
    section = {"name": name, **OPTIONS.get(name, {})}
    task = task_class(name)(task_settings(section))
    shape = task.output_shape(info)
    dense = model_of("mlp", DatasetInfo(input_shape=info.input_shape, num_classes=prod(shape)))
    inner = dense.outputs
    model = replace(dense, outputs=lambda weights, inputs: inner(weights, inputs).reshape(-1, *shape))
    job = job_with(model, {"local_steps": 2}, examples=examples_of(info), task=task)
    found = trained(job, monkeypatch)
    assert (found.elsewhere, found.reads) == (set(), 2)
    with placement(monkeypatch) as found:
        evaluate(model, job.start, job.examples, task)
    assert found.elsewhere == set()
