"""Partition `feature_noise`: the inputs of each device have more Gaussian noise than the inputs of the previous device.

Q. Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022 (NIID-Bench), noise-based
feature imbalance. The noise of device i of N, counted from 1, has the variance σ·i/N in the paper, and the standard
deviation σ·(i−1)/(N−1) in its program. The key `law` chooses one of the two. The program also draws new noise at each
reading; here an example keeps its noise.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError
from fedstrata.experiment.sections import MAX_DEVICES
from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.shifts import Place, Shift
from fedstrata.partitions.stock import TEST_ORDER, TRAIN_ORDER

OF_TRAINING, OF_TESTS = 0x666E7A01, 0x666E7A02  # purposes of random draws, with indexes of a device and an example


class FeatureNoisePartition(Partition):
    """Divide all examples evenly at random, and add Gaussian noise to inputs, with a level that grows by device."""

    kind: Literal["feature_noise"]
    """`feature_noise`: inputs of device i of N have Gaussian noise that grows with i, as in NIID-Bench."""
    devices: int = Field(ge=1, le=MAX_DEVICES)
    """Number of devices."""
    level: float = Field(default=0.1, gt=0)
    """Noise level σ; inputs are not clipped, and pixels are from 0 to 1."""
    law: Literal["paper", "program"] = "paper"
    """Noise of device i from 1 to N: in the `paper` of variance σ·i/N, in its `program` of standard deviation
    σ·(i−1)/(N−1).
    """

    @model_validator(mode="after")
    def _more_than_one(self) -> Self:
        if self.law == "program" and self.devices == 1:
            raise ValueError("law: program divides by devices - 1, and devices is 1; raise it, or set law: paper")
        return self

    @property
    def device_count(self) -> int:
        return self.devices

    def divide(self, dataset: Dataset, seed: int) -> Assignment:
        """Return nearly equal numbers of examples for each device, and the noise of its training and test inputs. Each
        test example belongs to one device.
        """
        for part in (dataset.train, dataset.test):
            _check_inputs(part)
        if len(dataset.train) < self.devices:
            raise DataError(
                f"{self.devices} devices need an example each, and the training data has {len(dataset.train)}; lower "
                "partition.devices"
            )
        orders = (
            np.random.default_rng([seed, purpose]).permutation(len(part))
            for part, purpose in ((dataset.train, TRAIN_ORDER), (dataset.test, TEST_ORDER))
        )
        train, test = (np.array_split(order, self.devices) for order in orders)
        shifts = [
            NoiseShift(deviation=self._deviation(device), seed=seed, device=device) for device in range(self.devices)
        ]
        return Assignment(train=train, test=test, shifts=shifts)

    def _deviation(self, device: int) -> float:
        if self.law == "paper":
            return float(np.sqrt(self.level * (device + 1) / self.devices))
        return self.level * device / (self.devices - 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseShift(Shift):
    """Add Gaussian noise with a standard deviation to the inputs of one device. The noise of an example depends only on
    seed, device and example.
    """

    deviation: float
    seed: int
    device: int

    @property
    def changes(self) -> bool:
        return self.deviation > 0

    def apply(self, examples: Examples, place: Place) -> Examples:
        """Return the examples with noise on their inputs, as float32; uint8 is scaled to [0, 1] before. Further inputs
        (`data.more`) stay as they are.
        """
        inputs = np.array(examples.inputs)
        address = [self.seed, OF_TRAINING if place.is_training_data else OF_TESTS, self.device]
        for row, index in enumerate(place.indices):
            noise = np.random.default_rng([*address, index]).standard_normal(examples.input_shape)
            inputs[row] += (self.deviation * noise).astype(np.float32)
        return examples.with_inputs(inputs)

    def type_after(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.float32)


def _check_inputs(examples: Examples) -> None:
    """Raise DataError if noise cannot be added to the inputs."""
    if examples.is_drawn:
        raise DataError("feature_noise needs inputs in memory, and these are of a map-style data set; add noise there")
    if examples.stored.dtype == np.int64:
        raise DataError("feature_noise adds noise to inputs, and these are whole numbers; choose another partition")
