"""Local steps that a method takes itself: the bits of the device's own training, and what is counted and kept."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from device.steps import LocalSteps
from device.training import TrainingJob, limit_threads, train
from fedstrata.errors import PluginError
from fedstrata.methods import ForwardPass, Steps, Trained
from fedstrata.models import Layer, Model, from_module
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


def by_objective(steps: Steps, objective: Any) -> Trained:
    """Descent along the gradients of an objective."""
    for batch in steps.batches():
        steps.move(steps.gradient(steps.weights, batch, objective))
    return steps.trained()


@pytest.mark.parametrize("name", ["mlp", "cnn", "dropout_cnn", "resnet18"])
def test_an_objective_that_is_the_loss_changes_no_bit(name: str) -> None:
    local = job(name, count=20)
    assert by_objective(LocalSteps(local), lambda loss, _: loss).weights.tobytes() == train(local).weights.tobytes()


@pytest.mark.parametrize("model", ["mlp", "cnn", "convnet", "dropout_cnn", "resnet18", "own"])
def test_features_are_what_the_last_layer_turns_into_outputs(model: str) -> None:
    local = job("mlp" if model == "own" else model, count=20)
    if model == "own":
        own = from_module(Normed, shared=["first", "norm"])
        local = replace(local, model=own, start=own.initial(3))
    steps, passes = LocalSteps(local), list[ForwardPass]()
    batch = next(steps.batches())

    def kept(loss: torch.Tensor, found: ForwardPass) -> torch.Tensor:
        passes.append(found)
        return loss

    steps.gradient(steps.weights, batch, kept)
    views, (weight, bias) = local.model.layout.views(local.start), local.model.last_layer
    last = [torch.tensor(views[name]) for name in (weight, bias)]
    assert torch.allclose(torch.nn.functional.linear(passes[0].features, *last), passes[0].outputs)
    assert passes[0].features.requires_grad
    assert torch.equal(passes[0].targets, batch[-1])

    features = steps.features(local.start)(batch)
    tensors = local.model.tensors(local.start)
    assert torch.allclose(torch.nn.functional.linear(features, *last), local.model.outputs(tensors, batch[0]))
    assert not features.requires_grad


def test_an_objective_may_be_any_function_of_loss_features_and_outputs() -> None:
    local = job(count=16)
    steps = LocalSteps(local)
    batch = next(steps.batches())

    def objective(loss: torch.Tensor, found: ForwardPass) -> torch.Tensor:
        return 3 * loss + found.features.sum() + (found.outputs**2).sum()

    leaf = steps.weights.requires_grad_()
    first, bias, last, end = torch.split(leaf, [32 * 64, 32, 10 * 32, 10])
    hidden = torch.nn.functional.linear(batch[0].flatten(1), first.view(32, 64), bias).relu()
    outputs = torch.nn.functional.linear(hidden, last.view(10, 32), end)
    loss = torch.nn.functional.cross_entropy(outputs, batch[-1])
    (3 * loss + hidden.sum() + (outputs**2).sum()).backward()
    assert leaf.grad is not None
    assert torch.allclose(steps.gradient(steps.weights, batch, objective), leaf.grad, rtol=1e-5, atol=1e-5)
    assert (steps.losses.examples, steps.losses.mean()) == (16, pytest.approx(loss.item()))  # of the task alone


def test_a_model_whose_last_layer_is_not_one_call_of_linear_has_no_features() -> None:
    def by_product(weights: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1) @ weights["only.weight"].T

    layers = [Layer(name="only", shape=(10, 64), has_bias=False)]
    product = Model.of_layers(layers, shared=[], outputs=by_product)
    local = replace(job(), model=product, start=product.initial(0))
    with pytest.raises(PluginError, match=r"uses only.weight in 0 calls of torch.nn.functional.linear; .* use the wei"):
        by_objective(LocalSteps(local), lambda loss, _: loss)

    layers = [Layer(name="only", shape=(10, 1, 8, 8), has_bias=False)]
    convolution = Model.of_layers(layers, shared=[], outputs=by_product)
    assert convolution.last_weight == ""
    with pytest.raises(PluginError, match=r"the last layer of the model is not dense: it has only\.weight"):
        LocalSteps(replace(job(), model=convolution, start=convolution.initial(0))).features(convolution.initial(0))
