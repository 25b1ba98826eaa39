"""Methods that use the inputs of the last layer, with absent devices, against loops of PyTorch from the papers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, linear

from tests.services.methods.test_absent_devices import (
    BATCH,
    DEVICES,
    EXAMPLES,
    GLOBAL_ROUNDS,
    RATE,
    Case,
    Vector,
    assert_is,
    data_of,
    final,
    initial,
    mean,
)

CASES = [Case(0, 1, 3), Case(2, 1, 2), Case(2, 2, 2), Case(0, 1, None)]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
Loss = Callable[[Vector, torch.Tensor, torch.Tensor], torch.Tensor]  # of weights, inputs and labels


def features(weights: Vector, inputs: torch.Tensor) -> torch.Tensor:
    first, bias, *_ = torch.split(weights, [8 * 64, 8, 80, 10])
    return linear(inputs, first.view(8, 64), bias).relu()


def logits(weights: Vector, inputs: torch.Tensor) -> torch.Tensor:
    *_, last, end = torch.split(weights, [8 * 64, 8, 80, 10])
    return linear(features(weights, inputs), last.view(10, 8), end)


def trained(start: Vector, device: int, lps_round: int, loss: Loss) -> Vector:
    """The weights after an epoch of plain SGD on a loss of each batch."""
    inputs, labels = data_of(device)
    order = torch.tensor(np.random.default_rng([0, device, lps_round]).permutation(EXAMPLES[device]))
    weights = start.clone()
    for batch in torch.split(order, BATCH):
        leaf = weights.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, inputs[batch], labels[batch]), leaf)
        weights = weights - RATE * gradient
    return weights


def averaged(case: Case, local: Callable[[Vector, int, int], Vector]) -> Vector:
    """The final weights if servers average what devices return: the GPS, or each LPS if it has several LPS rounds."""
    x = initial()
    homes = case.servers if case.lps_rounds > 1 else [[*range(DEVICES)]]
    for first in range(0, GLOBAL_ROUNDS * case.lps_rounds, case.lps_rounds):
        parts, counts = [], []
        for home in homes:
            part, count = x, 0
            for number in range(first, first + case.lps_rounds):
                there = sorted(each for lps in case.servers for each in case.there(lps, number) if each in home)
                part = mean([local(part, each, number) for each in there], there)
                count += sum(EXAMPLES[each] for each in there)
            parts.append(count * part.double())
            counts.append(count)
        x = (torch.stack(parts).sum(0) / sum(counts)).float()
    return x


@each_case
def test_moon_contrasts_features_with_those_of_the_received_and_of_the_last_model(case: Case, tmp_path: Path) -> None:
    """The contrast is the cross-entropy of two cosines, as a choice between the received and the last model."""
    mu, temperature, last = 1.0, 0.5, dict[int, Vector]()

    def local(received: Vector, device: int, number: int) -> Vector:
        def loss(weights: Vector, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            others = (received, last.get(device, received))
            z = features(weights, inputs)
            cosines = torch.stack([cosine_similarity(z, features(each, inputs)) for each in others], 1)
            contrast = cross_entropy(cosines / temperature, torch.zeros(len(inputs), dtype=torch.long))
            return cross_entropy(logits(weights, inputs), labels) + mu * contrast

        last[device] = trained(received, device, number, loss)
        return last[device]

    expected = averaged(case, local)
    plain = averaged(
        case, lambda x, device, number: trained(x, device, number, lambda w, i, t: cross_entropy(logits(w, i), t))
    )
    assert (expected - plain).abs().max() > 1e-3
    assert_is(final(case, f"{{name: moon, mu: {mu}, temperature: {temperature}}}", tmp_path / "run"), expected)
