"""Find clothes of another kind with an autoencoder that has seen none of their labels.

Nine devices see one kind of clothes each (Fashion-MNIST labels 0 to 8) and learn to reconstruct it. A fifth of the
examples to measure on are ankle boots (label 9), the anomalies. The worse a device reconstructs them, the better it
finds them.
"""

from typing import Any

import numpy as np
from torch import Tensor, nn

from fedstrata.datasets import Dataset, Examples, fashion_mnist
from fedstrata.experiment import DataSettings

KINDS, ANOMALY = 9, 9
TRAIN, TEST, ANOMALIES = 200, 80, 20  # examples per device


def load(settings: Any) -> Dataset:
    """Return examples whose column `kind` names the device, and `is_anomaly` the anomalies."""
    whole = fashion_mnist.load(DataSettings(name="fashion-mnist", folder=settings.folder))
    return Dataset(train=_of_kinds(whole.train, TRAIN, 0), test=_of_kinds(whole.test, TEST, ANOMALIES))


def _of_kinds(examples: Any, normal: int, anomalies: int) -> Examples:
    found = [np.flatnonzero(examples.labels == kind)[:normal] for kind in range(KINDS)]
    others = np.flatnonzero(examples.labels == ANOMALY)[: KINDS * anomalies].reshape(KINDS, anomalies)
    order = np.concatenate([np.concatenate(pair) for pair in zip(found, others, strict=True)])
    kind = np.repeat(np.arange(KINDS), normal + anomalies)
    is_anomaly = np.tile(np.arange(normal + anomalies) >= normal, KINDS)
    marks = {"kind": kind, "is_anomaly": is_anomaly.astype(np.int64)}
    return Examples(inputs=examples.take(order).stored, columns=marks)


class Autoencoder(nn.Module):
    """Squeeze an image through a few numbers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, width))
        self.decoder = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 784), nn.Sigmoid())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return reconstructions of the inputs' shape."""
        return self.decoder(self.encoder(inputs)).view(inputs.shape)
