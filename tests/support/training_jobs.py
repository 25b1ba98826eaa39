"""Training jobs of one device, and the same training by a textbook loop of PyTorch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from device.training import TrainingJob
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment import ModelSettings, TrainingSettings
from fedstrata.models import Model, build_model
from fedstrata.tasks import CLASSIFICATION

DIGITS = DatasetInfo(input_shape=(1, 8, 8), num_classes=10)
SEED, DEVICE, LPS_ROUND = 5, 2, 7


def examples(count: int = 50, info: DatasetInfo = DIGITS, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    inputs = rng.random((count, *info.input_shape), dtype=np.float32)
    return Examples(inputs=inputs, labels=rng.integers(0, info.num_classes, count))


def job_with(model: Model, training: Mapping[str, Any], count: int = 50, **changes: Any) -> TrainingJob:
    """A job with so many examples and these settings; batches of 16 unless they say otherwise."""
    described: dict[str, Any] = {
        "task": CLASSIFICATION,
        "model": model,
        "start": model.initial(3),
        "examples": examples(count),
        "training": TrainingSettings.model_validate({"batch_size": 16, **training}),
        "seed": SEED,
        "device_index": DEVICE,
        "lps_round": LPS_ROUND,
        "global_round": 3,
    }
    return TrainingJob(**(described | changes))


def job(name: str = "mlp", count: int = 70, **training: Any) -> TrainingJob:
    """A job of a built-in model."""
    return job_with(build_model(ModelSettings(name=name), DIGITS), training, count)


def orders() -> np.random.Generator:
    """What draws the order of the examples of a job, epoch by epoch."""
    return np.random.default_rng([SEED, DEVICE, LPS_ROUND])


def descend(
    optimiser: torch.optim.Optimizer,
    rng: np.random.Generator,
    loss: Callable[[torch.Tensor], torch.Tensor],
    *,
    count: int = 50,
    epochs: int = 2,
    batch_size: int = 16,
    before_step: Callable[[], object] = lambda: None,
) -> float:
    """Take a step for each batch. `loss` gets the indexes of its examples, of `count` in all. Return the mean loss."""
    total = 0.0
    for _ in range(epochs):
        for batch in torch.tensor(rng.permutation(count)).split(batch_size):
            optimiser.zero_grad()
            found = loss(batch)
            found.backward()
            before_step()
            optimiser.step()
            total += found.item() * len(batch)
    return total / (count * epochs)


def trained_weights(module: nn.Module) -> NDArray[np.float32]:
    """The weights of a module that train, one after another."""
    return torch.cat([each.detach().reshape(-1) for each in module.parameters() if each.requires_grad]).numpy()
