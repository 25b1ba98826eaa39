"""Federated training without a framework: rounds of FedAvg in plain PyTorch loops, the limit of any framework.

    python -m benchmarks.loops --work DIR --devices 100 --loop stacked

Each client trains the 784-32-10 network for one epoch, in batches of 32 with plain SGD. Then the mean over clients is
computed. Nothing is sent or measured. `one-by-one` is one client after another on one core, `stacked` all clients in
batched matrix products on all cores, `parts` as many clients at once as fit into a cache, in one process per core.
`DIR` is what `benchmarks.suite` writes: inputs.npy (clients, examples, 784) and labels.npy. Needs torch and NumPy only.
The clients of peers also train with `train_one`, so that all programs do the same work.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

WIDTHS = (784, 32, 10)
BATCH, LEARNING_RATE = 32, 0.05
CACHED = 16  # devices at once, so that weights, gradients and inputs fit into a core's cache
Work = tuple[NDArray[np.float32], NDArray[np.int64]]
Loop = Callable[[list[torch.Tensor], Work, int], list[torch.Tensor]]
_work: list[NDArray[Any]] = []  # inputs and labels, inherited by child processes


def read_work(folder: Path) -> Work:
    """Return inputs (clients, examples, 784) and labels (clients, examples), mapped into memory."""
    return np.load(folder / "inputs.npy", mmap_mode="r"), np.load(folder / "labels.npy", mmap_mode="r")


class Network(torch.nn.Sequential):
    """A dense network of these widths with ReLU between its layers, drawn from torch's generator."""

    def __init__(self, widths: Sequence[int] = WIDTHS) -> None:
        layers = [(torch.nn.Linear(inputs, outputs), torch.nn.ReLU()) for inputs, outputs in pairwise(widths)]
        super().__init__(*[each for layer in layers for each in layer][:-1])


def train_one(
    model: torch.nn.Module, inputs: NDArray[np.float32], labels: NDArray[np.int64], seed: int,
    *, size: int = BATCH, rate: float = LEARNING_RATE,
) -> float:  # fmt: skip
    """Train one epoch in place, as PyTorch's users write it. Return the mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    order, loss_sum = np.random.default_rng(seed).permutation(len(labels)), 0.0
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        optimiser.zero_grad()
        loss = cross_entropy(model(torch.from_numpy(inputs[batch])), torch.from_numpy(labels[batch]))
        loss.backward()  # type: ignore[no-untyped-call]  # in torch
        optimiser.step()
        loss_sum += loss.item() * len(batch)
    return loss_sum / len(order)


def round_one_by_one(weights: list[torch.Tensor], work: Work, number: int) -> list[torch.Tensor]:
    """Return the mean of the weights that clients reach from the received weights, one client after another."""
    model, sums = Network(), [torch.zeros_like(weight) for weight in weights]
    for client, (inputs, labels) in enumerate(zip(*work, strict=True)):
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.data.copy_(weight)
        train_one(model, inputs, labels, client + len(labels) * number)
        for total, parameter in zip(sums, model.parameters(), strict=True):
            total.add_(parameter.data)
    return [total / len(work[0]) for total in sums]


@torch.no_grad()
def round_stacked(weights: list[torch.Tensor], work: Work, number: int) -> list[torch.Tensor]:
    """Return the result of `round_one_by_one` for all clients at once, by batched matrix products."""
    inputs, labels = (torch.from_numpy(array) for array in work)
    clients, examples = labels.shape
    w1, b1, w2, b2 = (weight.expand(clients, *weight.shape).clone() for weight in weights)
    rng = np.random.default_rng(number)
    orders = torch.from_numpy(rng.permuted(np.tile(np.arange(examples), (clients, 1)), axis=1))
    rows = torch.arange(clients)[:, None]
    for start in range(0, examples, BATCH):
        batch = orders[:, start : start + BATCH]
        x, y = inputs[rows, batch], labels[rows, batch]
        hidden = torch.baddbmm(b1[:, None], x, w1.transpose(1, 2)).relu_()
        slope = torch.baddbmm(b2[:, None], hidden, w2.transpose(1, 2)).softmax(2)
        slope.scatter_add_(2, y[..., None], torch.full((*y.shape, 1), -1.0)).div_(y.shape[1])
        below = torch.bmm(slope, w2).mul_(hidden > 0)
        w2.baddbmm_(slope.transpose(1, 2), hidden, alpha=-LEARNING_RATE)
        b2.sub_(slope.sum(1), alpha=LEARNING_RATE)
        w1.baddbmm_(below.transpose(1, 2), x, alpha=-LEARNING_RATE)
        b1.sub_(below.sum(1), alpha=LEARNING_RATE)
    return [weight.mean(0) for weight in (w1, b1, w2, b2)]


def share_of_clients(weights: list[NDArray[np.float32]], first: int, last: int, number: int) -> list[Any]:
    """Return the sum of the weights that the clients from `first` to `last` − 1 reach. As many clients are computed at
    once as fit into a core's cache.
    """
    torch.set_num_threads(1)
    received, sums = [torch.from_numpy(weight) for weight in weights], [np.zeros_like(weight) for weight in weights]
    for start in range(first, last, CACHED):
        part = slice(start, min(start + CACHED, last))
        means = round_stacked(received, (_work[0][part], _work[1][part]), number)
        for total, mean in zip(sums, means, strict=True):
            np.add(total, mean.numpy() * (part.stop - part.start), out=total)
    return sums


def parts_of(pool: ProcessPoolExecutor, processes: int) -> Loop:
    """Return a loop that divides the clients of a round among processes, one per core."""

    def loop(weights: list[torch.Tensor], work: Work, number: int) -> list[torch.Tensor]:
        clients, sent = len(work[0]), [weight.numpy() for weight in weights]
        bounds = [clients * index // processes for index in range(processes + 1)]
        shares = [pool.submit(share_of_clients, sent, first, last, number) for first, last in pairwise(bounds)]
        sums = zip(*(share.result() for share in shares), strict=True)
        return [torch.from_numpy(sum(each) / np.float32(clients)) for each in sums]

    return loop


def rounds(loop: Loop, work: Work, count: int) -> tuple[list[float], list[torch.Tensor]]:
    """Return the seconds of each round, and the weights after the last round."""
    torch.manual_seed(0)
    weights, seconds = [parameter.data for parameter in Network().parameters()], []
    for number in range(count):
        started = time.perf_counter()
        weights = loop(weights, work, number)
        seconds.append(time.perf_counter() - started)
    return seconds, weights


def accuracy(weights: Sequence[torch.Tensor], work: Work) -> float:
    """Return the accuracy over all clients' examples."""
    w1, b1, w2, b2 = weights
    inputs, labels = (torch.from_numpy(np.array(array)) for array in work)
    guesses = ((inputs @ w1.T + b1).relu() @ w2.T + b2).argmax(2)
    return float((guesses == labels).float().mean())


def main() -> None:
    """Print the seconds of each round as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--loop", choices=("one-by-one", "stacked", "parts"), required=True)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    _work.extend(np.array(array[: options.devices]) for array in read_work(options.work))
    work = (_work[0], _work[1])
    if options.loop == "parts":
        torch.set_num_threads(1)
        with ProcessPoolExecutor(cores, mp_context=get_context("fork")) as pool:
            seconds, weights = rounds(parts_of(pool, cores), work, options.rounds)
    else:
        torch.set_num_threads(cores if options.loop == "stacked" else 1)
        loop = round_stacked if options.loop == "stacked" else round_one_by_one
        seconds, weights = rounds(loop, work, options.rounds)
    print(json.dumps({"seconds": seconds, "accuracy": accuracy(weights, work)}))


if __name__ == "__main__":
    main()
