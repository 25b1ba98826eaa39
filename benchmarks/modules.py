"""Federated training of three PyTorch modules without a framework: the loop that `benchmarks.suite` compares with.

    python -m benchmarks.modules --work DIR --devices 10 --module residual --rounds 4

Each client trains one epoch with AdamW, in batches of 32; then all weights and running statistics are averaged. Every
core has a process with one thread. `DIR` is what `benchmarks.suite` writes: inputs.npy and labels.npy. The experiments
`benchmarks/module_*.yaml` train the same modules, and so does `benchmarks/peers/flower_train.py`. Needs torch and
NumPy only.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH, LEARNING_RATE = 32, 0.001
SIDE = 28  # pixels
TOKENS, CONTEXT = 256, 64
_work: list[NDArray[Any]] = []  # inputs and labels, inherited by child processes


class Cnn(nn.Sequential):
    """Two 5×5 convolutions with pooling and two dense layers: 1.7 million weights, as in the first paper on FedAvg."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * (SIDE // 4) ** 2, 512), nn.ReLU(), nn.Linear(512, 10),
        )  # fmt: skip


class Block(nn.Module):
    """Two 3×3 convolutions with batch normalisation and a shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return maps of shape (n, out, height, width)."""
        summed: Tensor = self.inner(inputs) + self.shortcut(inputs)
        return summed.relu()


class ResNet18(nn.Sequential):
    """ResNet-18 for small images with batch normalisation: 11 million weights."""

    def __init__(self) -> None:
        widths = (64, 64, 128, 256, 512)
        blocks = [
            Block(into if index == 0 else out, out, 2 if index == 0 and into != out else 1)
            for into, out in pairwise(widths)
            for index in range(2)
        ]
        super().__init__(
            nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip


class Transformer(nn.Module):
    """Predict each next token from those before it: two layers of width 64, 140,000 weights, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        width = 64
        self.embedding = nn.Embedding(TOKENS, width)
        self.position = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores of shape (n, CONTEXT, TOKENS)."""
        hidden = self.blocks(self.embedding(inputs) + self.position, mask=self.mask, is_causal=True)
        scores: Tensor = self.head(hidden)
        return scores


MODULES = {"cnn": Cnn, "residual": ResNet18, "transformer": Transformer}


def network(name: str) -> nn.Module:
    """Return the module of a name, drawn from torch's generator."""
    return MODULES[name]()


def train_one(module: nn.Module, inputs: NDArray[Any], labels: NDArray[np.int64], seed: int) -> float:
    """Train one epoch in place, as PyTorch's users write it; return the mean loss."""
    module.train()
    optimiser = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    order, loss_sum = np.random.default_rng(seed).permutation(len(labels)), 0.0
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        x = torch.from_numpy(inputs[batch])
        optimiser.zero_grad()
        scores = module(x if x.dtype == torch.int64 else x.reshape(-1, 1, SIDE, SIDE))
        loss = cross_entropy(scores.flatten(0, -2), torch.from_numpy(labels[batch]).flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # in torch
        optimiser.step()
        loss_sum += loss.item() * len(batch)
    return loss_sum / len(order)


def share_of_clients(name: str, state: dict[str, NDArray[Any]], first: int, last: int, number: int) -> dict[str, Any]:
    """Train the clients from `first` to `last` − 1, each from the received `state`. Return the sum of their trained
    states.
    """
    torch.set_num_threads(1)
    received = {key: torch.from_numpy(value) for key, value in state.items()}
    module, sums = network(name), {key: np.zeros(value.shape, np.float32) for key, value in state.items()}
    for client in range(first, last):
        module.load_state_dict(received)
        train_one(module, _work[0][client], _work[1][client], client + 1000 * number)
        for key, value in module.state_dict().items():
            sums[key] += value.numpy().astype(np.float32, copy=False)
    return sums


def rounds(name: str, clients: int, count: int) -> list[float]:
    """Return the seconds of each round."""
    torch.manual_seed(0)
    state, seconds = {key: value.numpy() for key, value in network(name).state_dict().items()}, []
    cores = len(os.sched_getaffinity(0))
    bounds = [clients * index // cores for index in range(cores + 1)]
    with ProcessPoolExecutor(cores, mp_context=get_context("fork")) as pool:
        for number in range(count):
            started = time.perf_counter()
            shares = [
                pool.submit(share_of_clients, name, state, first, last, number) for first, last in pairwise(bounds)
            ]
            parts = [share.result() for share in shares]
            sums = {key: sum(part[key] for part in parts) for key in state}
            state = {key: np.asarray(sums[key] / clients).astype(value.dtype) for key, value in state.items()}
            seconds.append(time.perf_counter() - started)
    return seconds


def tokens(settings: Any) -> Any:
    """Return a data set of drawn tokens for an experiment: `data.name: benchmarks.modules:tokens`."""
    from fedstrata.datasets import Dataset, Examples

    drawn = np.random.default_rng(0).integers(0, TOKENS, (2600, CONTEXT + 1))
    train, test = (Examples(inputs=part[:, :-1].copy(), targets=part[:, 1:].copy()) for part in np.split(drawn, [2400]))
    return Dataset(train=train, test=test, num_classes=TOKENS)


def images(settings: Any) -> Any:
    """Return Fashion-MNIST in the shape and size of CIFAR-10: framed in black, and the same in each colour."""
    from fedstrata.datasets import Dataset, Examples, load_dataset
    from fedstrata.experiment import DataSettings

    def wide(part: Any, size: int) -> Any:
        framed = np.pad(part.stored[:size], ((0, 0), (0, 0), (2, 2), (2, 2)))
        return Examples(inputs=np.repeat(framed, 3, axis=1), labels=part.labels[:size])

    whole = load_dataset(DataSettings(name="fashion-mnist"), 0)
    return Dataset(train=wide(whole.train, 50000), test=wide(whole.test, 10000), num_classes=10)


def main() -> None:
    """Print the seconds of each round as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--module", choices=MODULES, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    _work.extend(np.load(options.work / f"{part}.npy")[: options.devices] for part in ("inputs", "labels"))
    print(json.dumps({"seconds": rounds(options.module, options.devices, options.rounds)}))


if __name__ == "__main__":
    main()
