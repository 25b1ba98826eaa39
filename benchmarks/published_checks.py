"""Repeat cells of published tables in plain loops, for remarks in docs/results/reproduced.md.

    python -m benchmarks.published_checks synthetic    # Synthetic(1, 1), seed 3, 50 rounds, in NumPy
    python -m benchmarks.published_checks fcube        # fedavg on FCUBE, 5 rounds of 20 epochs, in torch
    python -m benchmarks.published_checks permfl       # PerMFL's division of Fashion-MNIST, 100 rounds, in NumPy

Only training is independent of Fedstrata. The data of `synthetic`, and of FCUBE's last five runs, are Fedstrata's.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedstrata.datasets import load_dataset
from fedstrata.experiment import DataSettings, SyntheticSettings

Array = NDArray[Any]
Batch = tuple[Array, Array]  # inputs with a last 1, targets
RATE, SECOND_RATE, PULL = 0.01, 0.99, 5  # alpha, beta and lambda of PerMFL's code


def synthetic(mu: float, rounds: int) -> list[float]:
    """Return the accuracy in percent after each round."""
    data = load_dataset(DataSettings(name="synthetic", synthetic=SyntheticSettings(seed=3)), 0)
    inputs, tests = (np.c_[part.inputs, np.ones(len(part))].astype(np.float64) for part in (data.train, data.test))
    targets, owners = np.eye(10)[data.train.labels], data.train.column("device")
    received, rng, accuracies = np.zeros((61, 10)), np.random.default_rng(3), []
    for _ in range(rounds):
        total, count = np.zeros((61, 10)), 0
        for device in rng.choice(30, 10, replace=False):
            own, weights = np.flatnonzero(owners == device), received.copy()
            for _ in range(20):
                order = rng.permutation(own)
                for batch in (order[first : first + 10] for first in range(0, len(order), 10)):
                    gradient = _gradient(weights, (inputs[batch], targets[batch]))
                    weights -= 0.01 * (gradient + mu * (weights - received))
            total, count = total + len(own) * weights, count + len(own)
        received = total / count
        accuracies.append(100 * float((np.argmax(tests @ received, axis=1) == data.test.labels).mean()))
    return accuracies


def fcube(draw: int | None, seed: int, rounds: int) -> float:
    """Train on a draw of the points or, if `draw` is None, on Fedstrata's points. Return the accuracy in percent after
    the last round.
    """
    data = load_dataset(DataSettings(name="fcube"), 0)
    x, tests, owners = data.train.inputs, data.test.inputs, data.train.column("owner")
    if draw is not None:  # draw sizes again, but keep signs, because they decide the owner
        rng = np.random.default_rng(draw)
        x = np.copysign(rng.random((4000, 3)).astype(np.float32), x)
        tests = rng.uniform(-1, 1, (1000, 3)).astype(np.float32)
    inputs, labels = torch.tensor(x), torch.tensor(x[:, 0] < 0).long()
    torch.manual_seed(seed)
    received = nn.utils.parameters_to_vector(_network().parameters()).detach()
    for _ in range(rounds):
        trained = []
        for device in range(4):
            own, model = torch.tensor(np.flatnonzero(owners == device)), _network()
            nn.utils.vector_to_parameters(received.clone(), model.parameters())
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
            for _ in range(20):
                for batch in torch.split(own[torch.randperm(len(own))], 64):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
            trained.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        received = torch.stack(trained).mean(dim=0)
    nn.utils.vector_to_parameters(received, model.parameters())
    return 100 * float((model(torch.tensor(tests)).argmax(1).numpy() == (tests[:, 0] < 0)).mean())


def _network() -> nn.Sequential:
    ends = [(nn.Linear(*sizes), nn.ReLU()) for sizes in ((3, 32), (32, 16), (16, 8))]
    return nn.Sequential(*(layer for pair in ends for layer in pair), nn.Linear(8, 2))


def permfl(method: str, rounds: int, low: float) -> dict[str, float]:
    """Return accuracies in percent after the last round, by the model that is measured. Pixels are from `low` to 1."""
    devices = _permfl_devices(low)
    train, sizes = [_in_order(*own) for own, _ in devices], [len(own[0]) for own, _ in devices]
    rng = np.random.default_rng(0)
    weights, teams = rng.uniform(-1 / 28, 1 / 28, (785, 10)).astype(np.float32), rng.permutation(40).reshape(4, 10)
    used: dict[str, list[Array]] = {}
    for _ in range(rounds):
        if method == "hierfavg":
            weights = np.mean([_team(weights, [train[device] for device in team]) for team in teams], axis=0)
            continue
        trained = [LOCAL[method](weights, batches) for batches in train]
        moved = np.average([sent for sent, _ in trained], axis=0, weights=sizes).astype(np.float32)
        if method == "pfedme":
            moved = (1 - SECOND_RATE) * weights + SECOND_RATE * moved
            used = {"w of devices": [sent for sent, _ in trained], "θ of devices": [own for _, own in trained]}
        weights = moved
    if method == "perfedavg":
        once = [weights - RATE * _gradient(weights, next(batches)) for batches in train]
        twice = [each - SECOND_RATE * _gradient(each, next(own)) for each, own in zip(once, train, strict=True)]
        used = {"one step": once, "two steps": twice}
    tests = [test for _, test in devices]
    return {name: _permfl_accuracy(models, tests) for name, models in (used or {"global": [weights] * 40}).items()}


def _permfl_devices(low: float) -> list[tuple[Batch, Batch]]:
    """Return the training and test examples of each device, drawn as PerMFL's code draws them."""
    data = load_dataset(DataSettings(name="fashion-mnist"), 0)
    pixels, labels = (
        np.concatenate(both) for both in ((data.train.inputs, data.test.inputs), (data.train.labels, data.test.labels))
    )
    inputs = np.c_[low + (1 - low) * pixels.reshape(70_000, -1), np.ones(70_000)].astype(np.float32)
    left: list[list[int]] = [np.flatnonzero(labels == label).tolist() for label in range(10)]
    random.seed(5)
    shares = np.random.RandomState(9).lognormal(0, 2, (10, 40, 2))
    shares *= 6960 / shares.sum(axis=(1, 2), keepdims=True)
    own: list[list[int]] = [[] for _ in range(40)]
    for by_share in (False, True):
        for device, j in product(range(40), range(2)):
            label = (device + j) % 10
            wanted = int(shares[label, device // 4, j]) + random.randint(300, 600) if by_share else 10
            if wanted < len(left[label]):
                own[device] += left[label][:wanted]
                del left[label][:wanted]
    for each in own:
        random.shuffle(each)
    halves = [(each[len(each) - 3 * len(each) // 4 :], each[: len(each) - 3 * len(each) // 4]) for each in own]
    return [tuple((inputs[half], np.eye(10, dtype=np.float32)[labels[half]]) for half in both) for both in halves]  # type: ignore[misc]


def _in_order(inputs: Array, targets: Array) -> Iterator[Batch]:
    while True:
        for first in range(0, len(inputs), 124):
            yield inputs[first : first + 124], targets[first : first + 124]


def _gradient(weights: Array, batch: Batch) -> Array:
    scores = batch[0] @ weights
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    gradient: Array = batch[0].T @ (shares / shares.sum(axis=1, keepdims=True) - batch[1]) / len(batch[0])
    return gradient


def _sgd(weights: Array, batches: Iterator[Batch]) -> tuple[Array, Array]:
    for _ in range(20):
        weights = weights - RATE * _gradient(weights, next(batches))
    return weights, weights


def _team(weights: Array, train: list[Iterator[Batch]]) -> Array:
    for _ in range(10):
        weights = np.mean([_sgd(weights, batches)[0] for batches in train], axis=0)
    return weights


def _perfedavg(weights: Array, batches: Iterator[Batch]) -> tuple[Array, Array]:
    for _ in range(20):
        adapted = weights - RATE * _gradient(weights, next(batches))
        weights = weights - SECOND_RATE * _gradient(adapted, next(batches))
    return weights, weights


def _pfedme(weights: Array, batches: Iterator[Batch]) -> tuple[Array, Array]:
    own = weights
    for _ in range(20):
        batch = next(batches)
        for _ in range(5):
            own = own - 0.005 * (_gradient(own, batch) + PULL * (own - weights) + 0.001 * own)
        weights = weights - RATE * PULL * (weights - own)
    return weights, own


def _permfl_accuracy(models: list[Array], tests: list[Batch]) -> float:
    right = [np.argmax(x @ model, axis=1) == np.argmax(y, axis=1) for model, (x, y) in zip(models, tests, strict=True)]
    return 100 * float(np.concatenate(right).mean())


LOCAL: dict[str, Callable[[Array, Iterator[Batch]], tuple[Array, Array]]] = {
    "fedavg": _sgd, "perfedavg": _perfedavg, "pfedme": _pfedme,
}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("table", choices=("synthetic", "fcube", "permfl"))
    parser.add_argument("--rounds", type=int, help="the number of rounds; default: as in the docstring")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.table == "synthetic":
        for name, mu in (("fedavg", 0.0), ("fedprox", 1.0)):
            found = synthetic(mu, arguments.rounds or 50)
            print(f"{name}: last round {found[-1]:.1f}; last ten {fmean(found[-10:]):.1f} ± {np.std(found[-10:]):.1f}")
    elif arguments.table == "permfl":
        for low, method in ((-1, "fedavg"), (0, "fedavg"), (-1, "hierfavg"), (-1, "perfedavg"), (-1, "pfedme")):
            for name, value in permfl(method, arguments.rounds or 100, low).items():
                print(f"{method}, pixels from {low} to 1, {name}: {value:.1f}", flush=True)
    else:
        for name, draws, seeds in (("other draws", (100, 101, 102), (0, 1)), ("own draw", (None,), range(5))):
            found = [fcube(draw, seed, arguments.rounds or 5) for draw in draws for seed in seeds]
            print(f"{name}: {', '.join(f'{value:.1f}' for value in found)}; mean {fmean(found):.1f}")
