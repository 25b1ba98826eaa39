"""Synthetic(α, β): 60 numbers in ten classes. Each device has its own random distribution of inputs, and its own true
model.

Source: T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, *Federated Optimization in Heterogeneous
Networks*, MLSys 2020, with the program `data/synthetic_1_1/generate_synthetic.py` and `data/synthetic_iid` of
github.com/litian96/FedProx. N(m, s) has the standard deviation s. Device k draws, in this order,

    n_k = ⌊exp N(4, 2)⌋ + 50,   u_k ~ N(0, α),   B_k ~ N(0, β),   v_k ~ N(B_k, 1) of 60 numbers,
    W_k ~ N(u_k, 1) of shape (60, 10),   b_k ~ N(u_k, 1) of 10 numbers,
    n_k inputs x with x_j ~ N(v_kj, j^−0.6) for j from 1,   and the label of x is argmax(x W_k + b_k).

If the setting `alike` is true, v_k is 0, and all devices have the same W and b, drawn with u = 0. A device trains on
the first ⌊0.9 n_k⌋ examples, and is tested on the others.
"""

import numpy as np
from numpy.typing import NDArray

from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples
from fedstrata.experiment import SyntheticSettings

INPUTS, CLASSES = 60, 10
INFO = DatasetInfo(input_shape=(INPUTS,), num_classes=CLASSES)
DEVICE = "device"
OF_DEVICE, OF_ALL = 0x73796E74, 0x73796E75  # first numbers of the addresses of draws; the second is the seed
SPREAD = np.arange(1, INPUTS + 1) ** -0.6
TRAINED = 0.9
Drawn = tuple[NDArray[np.float64], NDArray[np.int64]]


def load(law: SyntheticSettings, seed: int) -> Dataset:
    """Return the examples of all devices. They are drawn with the seed of `law` or, if `law` has no seed, with `seed`.
    The column `device` has the owner of each example. A `natural` partition can use this column.
    """
    seed = seed if law.seed is None else law.seed
    drawn = [_examples(law, seed, device) for device in range(law.num_devices)]
    ends = [int(TRAINED * len(labels)) for _, labels in drawn]
    train = [(inputs[:end], labels[:end]) for (inputs, labels), end in zip(drawn, ends, strict=True)]
    test = [(inputs[end:], labels[end:]) for (inputs, labels), end in zip(drawn, ends, strict=True)]
    return Dataset(train=_together(train), test=_together(test), num_classes=CLASSES)


def _examples(law: SyntheticSettings, seed: int, device: int) -> Drawn:
    rng = model_rng = np.random.default_rng([OF_DEVICE, seed, device])
    size, centre = int(rng.lognormal(4, 2)) + 50, rng.normal(0, law.alpha)
    means = rng.normal(rng.normal(0, law.beta), 1, INPUTS)
    if law.alike:
        means, centre, model_rng = np.zeros(INPUTS), 0.0, np.random.default_rng([OF_ALL, seed])
    weights, biases = model_rng.normal(centre, 1, (INPUTS, CLASSES)), model_rng.normal(centre, 1, CLASSES)
    inputs = rng.normal(means, SPREAD, (size, INPUTS))
    return inputs, np.argmax(inputs @ weights + biases, axis=1)


def _together(parts: list[Drawn]) -> Examples:
    """Return the examples of all devices, one device after another."""
    owners = np.repeat(np.arange(len(parts)), [len(labels) for _, labels in parts])
    inputs, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Examples(inputs=inputs.astype(np.float32), labels=labels, columns={DEVICE: owners})
