"""Repeat cells of published tables in plain loops, for remarks in docs/results/reproduced.md.

    python -m benchmarks.published_checks synthetic    # Synthetic(1, 1), seed 3, 50 rounds, in NumPy
    python -m benchmarks.published_checks fcube        # fedavg on FCUBE, 5 rounds of 20 epochs, in torch

Only training is independent of Fedstrata. The data of `synthetic`, and of FCUBE's last five runs, are Fedstrata's.
"""

import argparse
from statistics import fmean

import numpy as np
import torch
from torch import nn

from fedstrata.datasets import load_dataset
from fedstrata.experiment import DataSettings, SyntheticSettings


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
                    scores = inputs[batch] @ weights
                    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
                    errors = shares / shares.sum(axis=1, keepdims=True) - targets[batch]
                    weights -= 0.01 * (inputs[batch].T @ errors / len(batch) + mu * (weights - received))
            total, count = total + len(own) * weights, count + len(own)
        received = total / count
        accuracies.append(100 * float((np.argmax(tests @ received, axis=1) == data.test.labels).mean()))
    return accuracies


def fcube(draw: int | None, seed: int, rounds: int) -> float:
    """Return the accuracy in percent after the last round on a draw of the points; None is Fedstrata's."""
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("table", choices=("synthetic", "fcube"))
    parser.add_argument("--rounds", type=int, help="the number of rounds; default: as in the docstring")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.table == "synthetic":
        for name, mu in (("fedavg", 0.0), ("fedprox", 1.0)):
            found = synthetic(mu, arguments.rounds or 50)
            print(f"{name}: last round {found[-1]:.1f}; last ten {fmean(found[-10:]):.1f} ± {np.std(found[-10:]):.1f}")
    else:
        for name, draws, seeds in (("other draws", (100, 101, 102), (0, 1)), ("own draw", (None,), range(5))):
            found = [fcube(draw, seed, arguments.rounds or 5) for draw in draws for seed in seeds]
            print(f"{name}: {', '.join(f'{value:.1f}' for value in found)}; mean {fmean(found):.1f}")
