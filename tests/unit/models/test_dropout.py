"""FedTSDP's network: nothing is dropped in measuring, and in training by draws that seed, device and round address."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from device.training import TrainingJob, limit_threads, train
from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models import Model, build_model
from fedstrata.models.dropout_cnn import dropped
from tests.support.torch_twins import assert_same_outputs, tensors
from tests.support.training_jobs import DEVICE, DIGITS, LPS_ROUND, SEED, job_with

FASHION = DatasetInfo(input_shape=(1, 28, 28), num_classes=10)
CIFAR = DatasetInfo(input_shape=(3, 32, 32), num_classes=10)


def network(info: DatasetInfo) -> Model:
    return build_model(ModelSettings(name="dropout_cnn"), info)


def module_of(info: DatasetInfo, padding: int, flattened: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(info.input_shape[0], 32, 3, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(flattened, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, 10),
    )


def images(info: DatasetInfo, number: int = 4) -> torch.Tensor:
    return torch.rand(number, *info.input_shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("info", "padding", "flattened"),
    [(CIFAR, 0, 64 * 6 * 6), (FASHION, 1, 64 * 7 * 7), (DIGITS, 1, 64 * 2 * 2)],
    ids=["32", "28", "8"],
)
def test_measuring_computes_what_torch_modules_compute_without_dropout(
    info: DatasetInfo, padding: int, flattened: int
) -> None:
    assert_same_outputs(network(info), module_of(info, padding, flattened).eval(), info, rtol=0, atol=1e-6)


def test_its_size_on_images_of_28_is_that_of_its_layers() -> None:
    model = network(FASHION)
    assert model.layout.size == (32 * 9 + 32) + (64 * 32 * 9 + 64) + (3136 * 512 + 512) + (512 * 10 + 10)
    assert model.shared == ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")


def test_training_drops_by_the_draws_of_the_generator_one_after_another() -> None:
    model = network(DIGITS)
    weights = tensors(model.layout, model.initial(5))
    found = model.outputs_in_training(np.random.default_rng(7))(weights, images(DIGITS))
    rng = np.random.default_rng(7)
    first = torch.tensor(rng.random((4, 256), np.float32) >= 0.25).float() / 0.75
    second = torch.tensor(rng.random((4, 512), np.float32) >= 0.5).float() / 0.5
    convolved = module_of(DIGITS, 1, 256)[:7]
    with torch.no_grad():
        for parameter, tensor in zip(convolved.parameters(), weights.values(), strict=False):
            parameter.copy_(tensor)
        hidden = linear(convolved(images(DIGITS)) * first, weights["fc1.weight"], weights["fc1.bias"]).relu()
        expected = linear(hidden * second, weights["fc2.weight"], weights["fc2.bias"])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(found, model.outputs(weights, images(DIGITS)), atol=1e-3)


def test_a_quarter_is_dropped_and_the_mean_stays() -> None:
    left = dropped(torch.ones(1000, 100), 0.25, np.random.default_rng(1))
    assert left.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert abs(float((left == 0).float().mean()) - 0.25) < 0.006  # 4 standard deviations
    assert abs(float(left.mean()) - 1) < 0.008


def test_a_model_without_dropout_trains_what_it_measures() -> None:
    model = build_model(ModelSettings(name="mlp"), DIGITS)
    assert model.outputs_in_training(np.random.default_rng(1)) is model.outputs


def job(model: Model, **changes: int) -> TrainingJob:
    return job_with(model, {"batch_size": 20}, count=20, **changes)


def test_the_same_job_gives_the_same_bits_and_another_device_other_masks() -> None:
    limit_threads()
    model = network(DIGITS)
    first, again = train(job(model)), train(job(model))
    assert np.array_equal(first.weights, again.weights)
    assert first.train_loss == again.train_loss
    for change in ({"device_index": 4}, {"seed": 9}, {"lps_round": 4}):
        assert train(job(model, **change)).train_loss != pytest.approx(first.train_loss, abs=1e-6)


@pytest.mark.parametrize("stream", [[], [1]], ids=["first training of a round", "stream 1"])
def test_the_loss_of_one_batch_is_that_of_the_addressed_masks(stream: list[int]) -> None:
    model = network(DIGITS)
    plan = job(model, number=sum(stream))
    order = np.random.default_rng([SEED, DEVICE, LPS_ROUND, *stream]).permutation(20)
    rng = np.random.default_rng([SEED, DEVICE, LPS_ROUND, 0x64726F70, *stream])
    weights = tensors(model.layout, plan.start)
    outputs = model.outputs_in_training(rng)(weights, torch.tensor(plan.examples.inputs[order]))
    expected = torch.nn.functional.cross_entropy(outputs, torch.tensor(plan.examples.labels[order]))
    assert train(plan).train_loss == pytest.approx(float(expected), abs=1e-5)
