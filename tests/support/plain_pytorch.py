"""A device's training and the mean of its cluster computed plainly, in float64, with torch.optim.SGD."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import DataSettings, Experiment
from fedstrata.models import build_model
from fedstrata.partitions import device_data
from tests.support.training_jobs import descend

Weights = dict[str, NDArray[np.float64]]
DATASET = load_dataset(DataSettings(), 0)
SHARED = ("fc1.weight", "fc1.bias")
HEAD = ("fc2.weight", "fc2.bias")


def trained_by(experiment: Experiment, device: int, weights: Weights, lps_round: int, global_round: int) -> Weights:
    """One device's weights after its local epochs, with torch.optim.SGD."""
    training, optimiser = experiment.training, experiment.training.optimiser
    data = device_data(experiment, DATASET, device).train
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    names = dict(zip(("1.weight", "1.bias", "3.weight", "3.bias"), (*SHARED, *HEAD), strict=True))
    model.load_state_dict({own: torch.tensor(weights[name], dtype=torch.float32) for own, name in names.items()})
    sgd = torch.optim.SGD(
        model.parameters(),
        lr=optimiser.learning_rate * optimiser.schedule.decay**global_round,
        momentum=optimiser.momentum,
        weight_decay=optimiser.weight_decay,
    )
    draw = np.random.default_rng([experiment.seed, device, lps_round])  # the address that docs/experiment.md gives
    inputs, labels = torch.tensor(data.inputs), torch.tensor(data.labels)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.nll_loss(nn.functional.log_softmax(model(inputs[batch]), dim=1), labels[batch])

    epochs, size = training.local_epochs or 0, training.batch_size
    descend(sgd, draw, loss, count=len(data), epochs=epochs, batch_size=size)
    return {names[own]: value.numpy().astype(np.float64) for own, value in model.state_dict().items()}


def weighted_mean(weights: list[Weights], examples: list[int]) -> Weights:
    return {
        name: np.average([each[name] for each in weights], axis=0, weights=examples).astype(np.float64)
        for name in weights[0]
    }


def initial_weights(experiment: Experiment) -> Weights:
    model = build_model(experiment.model, dataset_info(experiment.data))
    views = model.layout.views(model.initial(experiment.seed))
    return {name: view.astype(np.float64) for name, view in views.items()}
