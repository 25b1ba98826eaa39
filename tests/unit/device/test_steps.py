"""Local steps that a method takes itself: the bits of the device's own training, and what is counted and kept."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from device.steps import LocalSteps
from device.training import TrainingJob, limit_threads, train
from fedstrata.errors import PluginError
from fedstrata.methods import Steps, Trained
from fedstrata.models import from_module
from tests.support.device_work import Devices
from tests.support.normed import Normed
from tests.support.tiers import small
from tests.support.training_jobs import job

KEPT = {"learning_rate": 0.1, "momentum": 0.5, "state": "kept"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    limit_threads()


def descended(steps: Steps) -> Trained:
    """Plain gradient descent, step by step."""
    for batch in steps.batches():
        steps.move(steps.gradient(steps.weights, batch))
    return steps.trained()


@pytest.mark.parametrize("name", ["mlp", "cnn", "dropout_cnn"])
@pytest.mark.parametrize(
    "optimiser", [{"learning_rate": 0.1, "momentum": 0.5, "clip_norm": 0.4}, {"name": "adam", "weight_decay": 0.01}]
)
def test_steps_along_the_gradient_have_the_bits_of_a_training(name: str, optimiser: dict[str, Any]) -> None:
    local = replace(job(name, local_epochs=2, optimiser=optimiser), number=3)
    local = replace(local, held_out=local.examples)
    steps, expected = LocalSteps(local), train(local)
    found = descended(steps)
    assert found.weights.tobytes() == expected.weights.tobytes()
    assert (found.steps, found.train_loss) == (expected.steps, expected.train_loss) == (10, found.train_loss)
    assert expected.evaluation is not None and found.measured is not None
    assert (found.measured.loss_sum, found.measured.sums) == expected.evaluation[:2]
    assert steps.losses.examples == local.trained_examples == 140


def test_statistics_of_normalisation_change_as_in_a_training() -> None:
    model = from_module(Normed, shared=["first", "norm"])
    local: TrainingJob = replace(job(), model=model, start=model.initial(3))
    assert descended(LocalSteps(local)).weights.tobytes() == train(local).weights.tobytes()


def test_a_gradient_at_other_weights_moves_nothing_and_is_that_of_the_batchs_mean_loss() -> None:
    local = job()
    steps = LocalSteps(local)
    batch, weights = next(steps.batches()), steps.weights
    along = steps.gradient(weights, batch)
    length = 1e-2 / float(along.norm())
    for by in (length, -length):
        steps.gradient(weights + by * along, batch)
    assert torch.equal(steps.weights, weights)
    inputs, _, labels = batch

    def loss(at: torch.Tensor) -> float:
        views = local.model.layout.views(at.numpy())
        outputs = local.model.outputs({name: torch.tensor(view) for name, view in views.items()}, inputs)
        return float(torch.nn.functional.cross_entropy(outputs.double(), labels))

    slope = (loss(weights + length * along) - loss(weights - length * along)) / (2 * length)
    assert slope == pytest.approx(float(along @ along), rel=0.02)  # the loss has kinks


def test_another_stream_draws_other_batches() -> None:
    steps = LocalSteps(job())
    own, again, other = (next(steps.batches(stream))[0] for stream in (None, 0, 1))
    assert torch.equal(own, again)
    assert not torch.equal(own, other)


def test_vectors_of_another_shape_and_a_result_without_steps_are_refused() -> None:
    steps = LocalSteps(job())
    for wrong in (steps.weights[1:], steps.weights.double()):
        with pytest.raises(PluginError, match=r"got a vector of torch.float.*; give torch.float32 \(2410,\)"):
            steps.move(wrong)
    with pytest.raises(PluginError, match="call `move` before `trained`"):
        steps.trained()


async def test_a_devices_work_counts_the_examples_of_all_gradients_and_keeps_the_optimisers_state() -> None:
    devices = Devices(small("method=fedavg", f"training.optimiser={KEPT}"))
    works = [devices.work(0, 0, received=[devices.model.initial(0)]) for _ in range(2)]
    steps = works[0].steps(works[0].start, number=1)
    works[0].steps(works[0].start, number=2).gradient(steps.weights, next(steps.batches()))
    found, expected = await works[0].compute(lambda: descended(steps)), await works[1].train(works[1].start, number=1)
    assert found.weights.tobytes() == expected.weights.tobytes()
    assert found.learning_rate == expected.learning_rate == steps.learning_rate == 0.1
    assert (works[0].trained_examples, works[1].trained_examples) == (60 + 16, 60)
    assert list(works[0].optimisers) == list(works[1].optimisers) == [1]
    for name, state in works[1].optimisers[1].items():
        assert np.array_equal(works[0].optimisers[1][name], state)


@pytest.mark.parametrize("method", ["fedavg_ft", "fedbabu", "perfedavg"])
async def test_a_model_that_is_adapted_only_to_be_measured_takes_no_time_and_leaves_no_state(method: str) -> None:
    devices = Devices(small(f"method={method}", f"training.optimiser={KEPT}", "training.evaluate_every=2"))
    works = [devices.work(0, n, global_round=n, received=[devices.model.initial(0)]) for n in (0, 1)]
    measured, plain = [await devices.method.local(work) for work in works]
    assert measured.measured is not None and plain.measured is None
    assert works[0].trained_examples == works[1].trained_examples > 0
    assert list(works[0].optimisers) == list(works[1].optimisers) == [0]
