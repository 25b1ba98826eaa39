"""Gradients that a method corrects: the bits are the same in every stack, the numbers those of plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from device.correction import keeps_zeros
from device.stacked.dense_stack import DenseStack
from device.stacked.training import Stacked, descend
from device.training import TrainingJob, limit_threads, train
from fedstrata.errors import PluginError
from fedstrata.experiment import ModelSettings, SgdSettings, TrainingSettings
from fedstrata.models import build_model
from tests.support.stacked_jobs import INFO, MODEL, RAGGED, SETTINGS, bits, bits_alone, job
from tests.support.training_jobs import descend as descend_plainly

limit_threads()
Tensor = torch.Tensor
OPTIMISERS = {
    "plain": SgdSettings(learning_rate=0.1),
    "momentum": SgdSettings(learning_rate=0.1, momentum=0.9),
    "weight decay": SgdSettings(learning_rate=0.1, weight_decay=1e-2),
    "both": SgdSettings(learning_rate=0.1, momentum=0.5, weight_decay=1e-2),
}


@dataclass(frozen=True)
class Pulled:
    """FedProx: the gradient of mu/2 ||w − w_t||² is added."""

    mu: float = 0.3

    def __call__(self, gradient: Tensor, weights: Tensor, received: Tensor) -> Tensor:
        return gradient.add_(weights, alpha=self.mu).add_(received, alpha=-self.mu)


@dataclass
class Unhashable:
    """A dataclass with == that may change has no hash."""

    def __call__(self, gradient: Tensor, _weights: Tensor) -> Tensor:
        return gradient


def controlled(gradient: Tensor, _weights: Tensor, own: Tensor, mean: Tensor) -> Tensor:
    """SCAFFOLD: the device's control variate is taken off, the mean one added; as new tensors."""
    return gradient - own + mean


def squashed(gradient: Tensor, weights: Tensor) -> Tensor:
    """Nothing that methods do: not zero for zeros, and rounded otherwise where vector units are not filled."""
    return torch.sigmoid(gradient + weights)


def undefined_at_zero(gradient: Tensor, weights: Tensor) -> Tensor:
    """The gradient, but NaN where it and the weight are zero."""
    return gradient + 0 / (gradient.abs() + weights.abs())


def vector(seed: int, scale: float = 0.1) -> np.ndarray:
    drawn: np.ndarray = np.random.default_rng(seed).standard_normal(MODEL.layout.size).astype(np.float32)
    return drawn * np.float32(scale)


def corrected(kind: str, training: TrainingSettings) -> list[TrainingJob]:
    """Jobs with a correction; what stands beside the weights is the same for all, each device's own, or nothing."""
    common = vector(99)
    extra: dict[str, Callable[[int], dict[str, Any]]] = {
        "pulled to one place": lambda device: {"correct": Pulled(), "beside": (common.copy(),)},
        "pulled, each to its own place": lambda device: {"correct": Pulled(), "beside": (vector(device),)},
        "control variates": lambda device: {"correct": controlled, "beside": (vector(device), common)},
        "squashed": lambda device: {"correct": squashed},
    }
    return [job(size, device, training, **extra[kind](device)) for device, size in enumerate(RAGGED)]


KINDS = ["pulled to one place", "pulled, each to its own place", "control variates", "squashed"]


@pytest.mark.parametrize(
    ("kind", "name", "most_devices"),
    [  # each kind with each name, and each size with each kind and each name
        (kind, name, (2, 3, None)[(row + column) % 3])
        for row, kind in enumerate(KINDS)
        for column, name in enumerate(SETTINGS)
    ],
)
def test_a_corrected_device_has_the_same_bits_alone_and_in_stacks_of_any_size(
    kind: str, name: str, most_devices: int | None
) -> None:
    ragged = corrected(kind, SETTINGS[name])
    alone = bits_alone(ragged)
    assert bits(Stacked(most_devices).train(ragged)) == alone
    assert bits(Stacked(most_devices).train(ragged[::-1])) == alone[::-1]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.sampled_from([0.1, 2.0])), min_size=2, max_size=7),
    st.integers(1, 7),
    st.sampled_from(sorted(OPTIMISERS)),
    st.integers(1, 12),
)
@settings(max_examples=15)
def test_fedprox_has_the_same_bits_however_devices_are_grouped(
    devices: list[tuple[int, bool, float]], most_devices: int, optimiser: str, batch_size: int
) -> None:
    training = TrainingSettings(local_epochs=2, batch_size=batch_size, optimiser=OPTIMISERS[optimiser])
    pulled = [
        job(size, index, training, correct=Pulled(mu), beside=(vector(index if is_own else 0),))
        for index, (size, is_own, mu) in enumerate(devices)
    ]
    alone = [bits(Stacked(1).train([each]))[0] for each in pulled]
    assert bits(Stacked(most_devices).train(pulled)) == alone


@pytest.mark.parametrize("own", [0, 1], ids=["one vector for all", "each its own"])
def test_layers_too_large_for_one_part_have_the_same_bits(own: int) -> None:
    model = build_model(ModelSettings(hidden=(700,)), INFO)
    large = [
        job(20, device, SETTINGS["steps with momentum and weight decay"], model=model, start=model.initial(device),
            correct=Pulled(), beside=(model.initial(50 + own * device),))
        for device in range(14)
    ]  # fmt: skip
    assert bits(Stacked().train(large)) == bits_alone(large)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("is_stacked", [True, False])
def test_fedprox_is_torchs_sgd_with_the_proximal_term_in_the_loss(optimiser: str, is_stacked: bool) -> None:
    training = TrainingSettings(local_epochs=3, batch_size=8, optimiser=OPTIMISERS[optimiser])
    local = job(37, 2, training, correct=Pulled(0.3), beside=(vector(1),))
    result = Stacked().train([local, job(40, 1, training, correct=Pulled(0.3), beside=(vector(2),))])[0]
    result = result if is_stacked else train(local)
    expected = proximal_loop(local, mu=0.3)
    plain = train(replace(local, correct=None, beside=())).weights
    assert np.abs(expected - plain).max() > 1e-3  # the term does something
    np.testing.assert_allclose(result.weights, expected, rtol=0, atol=2e-6)


def proximal_loop(local: TrainingJob, mu: float) -> np.ndarray:
    """A textbook loop: the term is differentiated by autograd, the steps are torch.optim.SGD's."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(15, 30), nn.ReLU(), nn.Linear(30, 9), nn.ReLU(), nn.Linear(9, 7))
    parameters = list(module.parameters())
    nn.utils.vector_to_parameters(torch.tensor(local.start), parameters)
    pull_to = torch.tensor(local.beside[0])
    sgd = local.training.optimiser
    optimiser = torch.optim.SGD(parameters, lr=sgd.learning_rate, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    rng = np.random.default_rng([local.seed, local.device_index, local.lps_round])
    inputs, labels = torch.tensor(local.examples.inputs), torch.tensor(local.examples.labels)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        distance = nn.utils.parameters_to_vector(parameters) - pull_to
        return nn.functional.cross_entropy(module(inputs[batch]), labels[batch]) + mu / 2 * distance.square().sum()

    descend_plainly(optimiser, rng, loss, count=len(labels), epochs=3, batch_size=8)
    return nn.utils.parameters_to_vector(parameters).detach().numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_stack_corrects_as_autograd_one_by_one_does(kind: str, optimiser: str) -> None:
    training = TrainingSettings(local_epochs=2, batch_size=8, optimiser=OPTIMISERS[optimiser])
    for each, result in zip(corrected(kind, training), Stacked().train(corrected(kind, training)), strict=True):
        expected = train(each)
        np.testing.assert_allclose(result.weights, expected.weights, rtol=1e-4, atol=1e-5)
        assert result.train_loss == pytest.approx(expected.train_loss, rel=1e-5)


def test_a_corrected_step_can_be_redone_by_hand() -> None:
    training = TrainingSettings(local_steps=1, optimiser=SgdSettings(learning_rate=0.5, weight_decay=0.1))
    (result,) = Stacked().train([job(9, 0, training, correct=lambda gradient, weights: torch.ones_like(gradient))])
    start = MODEL.initial(0)
    np.testing.assert_allclose(result.weights, start - 0.5 * (1 + 0.1 * start), rtol=0, atol=1e-6)


def test_what_fills_a_stack_up_stays_zero_under_corrections_that_are_not_zero_or_no_number_there() -> None:
    for correct in (squashed, undefined_at_zero):
        training = SETTINGS["steps with momentum and weight decay"]
        stack = trained_stack([job(20, 0, training, correct=correct), job(17, 1, training, correct=correct)])
        for leaf, spec in zip(stack.leaves, MODEL.layout.tensors, strict=True):
            rows, columns = (1, *spec.shape)[-2:]
            assert not leaf[:, rows:].any()
            assert not leaf[:, :, columns:].any()
            assert leaf[:2, :rows, :columns].isfinite().all()


def trained_stack(jobs: list[TrainingJob]) -> DenseStack:
    """The stack itself after training."""
    stack = DenseStack(MODEL, [each.start for each in jobs])
    with torch.inference_mode():
        descend(stack, jobs)
    return stack


def test_the_loss_that_is_told_is_the_plain_one() -> None:
    training = TrainingSettings(local_steps=1, batch_size=8)
    plain = job(20, 0, training)
    pulled = replace(plain, correct=Pulled(50.0), beside=(vector(3),))
    assert Stacked().train([pulled])[0].train_loss == Stacked().train([plain])[0].train_loss
    assert train(pulled).train_loss == train(plain).train_loss


def test_what_stands_beside_the_weights_stays_as_it_was() -> None:
    beside = vector(1)
    Stacked().train([job(20, device, SETTINGS["one epoch"], correct=Pulled(), beside=(beside,)) for device in (0, 1)])
    train(job(20, 0, SETTINGS["one epoch"], correct=Pulled(), beside=(beside,)))
    np.testing.assert_array_equal(beside, vector(1))


def test_zeros_of_both_signs_beside_the_weights_are_each_devices_own() -> None:
    def signed(gradient: Tensor, weights: Tensor, beside: Tensor) -> Tensor:
        return gradient.add_(torch.copysign(weights.abs(), beside))

    zeros = np.zeros(MODEL.layout.size, np.float32)
    both = [job(20, 0, SETTINGS["one epoch"], correct=signed, beside=(each,)) for each in (zeros, -zeros)]
    together = bits(Stacked().train(both))
    assert together == bits_alone(both)
    assert together[0] != together[1]


@pytest.mark.parametrize("trained", [train, lambda each: Stacked().train([each])[0]], ids=["one by one", "stacked"])
@pytest.mark.parametrize(
    ("correct", "reason"),
    [
        (lambda gradient, weights: gradient / gradient.norm(), "depends on how many others there are"),
        (lambda gradient, weights: gradient + torch.rand_like(gradient), "depends on how many others"),
        (lambda gradient, weights: gradient.sum(), r"gives torch.float32 \(\)"),
        (lambda gradient, weights: gradient.double(), "gives torch.float64"),
        (lambda gradient, weights: None, "gives NoneType"),
        (lambda gradient, weights: gradient + weights.mul_(2), "changes an argument other than the gradient"),
        (lambda gradient, weights: weights, "returns one of its arguments"),
    ],
)
def test_what_is_no_elementwise_correction_is_refused(trained: Any, correct: Any, reason: str) -> None:
    with pytest.raises(PluginError, match=f"a correction is an elementwise function.*{reason}"):
        trained(job(9, 0, SETTINGS["one epoch"], correct=correct))


def test_whether_zeros_stay_zeros_is_tried() -> None:
    assert keeps_zeros(Pulled(), 1)
    assert keeps_zeros(controlled, 2)
    assert not keeps_zeros(squashed, 0)
    assert not keeps_zeros(undefined_at_zero, 0)


def test_vectors_beside_the_weights_are_of_the_models_size_and_belong_to_a_correction() -> None:
    with pytest.raises(PluginError, match=r"shape \(3,\); expected float32"):
        job(9, 0, SETTINGS["one epoch"], correct=Pulled(), beside=(np.zeros(3, np.float32),))
    with pytest.raises(PluginError, match="`beside` has 1 vectors, but `correct` is not given"):
        job(9, 0, SETTINGS["one epoch"], beside=(vector(0),))

    with pytest.raises(PluginError, match="has no hash; give a function or a frozen dataclass"):
        job(9, 0, SETTINGS["one epoch"], correct=Unhashable())


def test_epochs_of_a_job_count_in_place_of_what_training_says() -> None:
    assert [job(20, 0, SETTINGS[name], epochs=2).steps for name in SETTINGS] == [6, 6, 6, 6, 2, 40]
    one, two = (job(20, 0, SETTINGS["one epoch"], epochs=epochs) for epochs in (1, 2))
    assert bits(Stacked().train([one, two])) == bits_alone((one, two))
    assert bits([train(one)]) == bits([train(job(20, 0, SETTINGS["one epoch"]))])


def test_a_stream_has_an_order_of_batches_of_its_own_and_stream_0_the_address_without_one() -> None:
    counted = job(20, 3, TrainingSettings(local_steps=1, batch_size=1))
    first = {stream: first_example(replace(counted, number=stream)) for stream in range(6)}
    drawn = [np.random.default_rng([5, 3, 2, stream]).permutation(20)[0] for stream in range(1, 6)]
    assert [first[stream] for stream in range(1, 6)] == drawn
    assert first[0] == np.random.default_rng([5, 3, 2]).permutation(20)[0]


def first_example(local: TrainingJob) -> int:
    """Which example the first batch holds, seen from outside: the one whose loss is told."""
    alone = [
        train(replace(local, examples=local.examples.take(np.array([index])))).train_loss
        for index in range(len(local.examples))
    ]
    return alone.index(train(local).train_loss)


def test_one_device_may_train_twice_in_a_round() -> None:
    shared = job(20, 0, SETTINGS["epochs with momentum"])
    personal = replace(shared, start=vector(4), correct=Pulled(), beside=(shared.start,), number=1)
    together = Stacked().train([shared, personal])
    assert bits(together) == bits_alone((shared, personal))
