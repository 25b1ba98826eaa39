"""Methods that use the inputs of the last layer, with absent devices, against loops of PyTorch from the papers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, linear

from fedstrata.datasets import load_dataset
from fedstrata.partitions import device_data
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
    plain,
)
from tests.support.records import summary_of

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


def averaged(case: Case, local: Callable[[Vector, int, int], Vector], begun: Vector | None = None) -> Vector:
    """The final values if servers average what devices return: the GPS, or each LPS if it has several LPS rounds."""
    x = initial() if begun is None else begun
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
    plain_one = averaged(case, lambda x, device, number: trained(x, device, number, of_outputs))
    assert (expected - plain_one).abs().max() > 1e-3
    assert_is(final(case, f"{{name: moon, mu: {mu}, temperature: {temperature}}}", tmp_path / "run"), expected)


def of_outputs(weights: Vector, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits(weights, inputs), labels)


def run(case: Case, method: str, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The final tensors of the servers, and the accuracy of the model that each device uses."""
    found = final(case, method, folder)
    (summary,) = folder.rglob("summary.json")
    return found, summary_of(summary.parent)["device_accuracy"]


def assert_accuracies(found: dict[str, float], models: Callable[[int], Vector]) -> None:
    expected = {}
    for device in range(DEVICES):
        held_out = device_data(plain(), load_dataset(plain().data, 0), device).test
        said = logits(models(device), torch.tensor(held_out.inputs).flatten(1)).argmax(1).numpy()
        expected[f"device-{device:03d}"] = float((said == held_out.labels).mean())
    assert found == pytest.approx(expected, abs=1e-12)
    assert len(set(expected.values())) > 2


@each_case
def test_fedrod_balances_the_generic_loss_and_trains_a_second_head_on_fixed_features(
    case: Case, tmp_path: Path
) -> None:
    heads = [torch.zeros(90) for _ in range(DEVICES)]

    def local(received: Vector, device: int, number: int) -> Vector:
        counts = torch.bincount(data_of(device)[1], minlength=10).double()

        def loss(weights: Vector, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            said = logits(weights, inputs)
            head = heads[device].clone().requires_grad_()
            own = linear(features(weights, inputs).detach(), head[:80].view(10, 8), head[80:])
            (gradient,) = torch.autograd.grad(cross_entropy(said.detach() + own, labels), head)
            heads[device] = heads[device] - RATE * gradient
            odds = counts * said.double().exp()
            return -(odds[torch.arange(len(labels)), labels] / odds.sum(1)).log().mean()

        return trained(received, device, number, loss)

    expected = averaged(case, local)
    plain_one = averaged(case, lambda x, device, number: trained(x, device, number, of_outputs))
    assert (expected - plain_one).abs().max() > 1e-3
    found, accuracy = run(case, "fedrod", tmp_path / "run")
    assert_is(found, expected)
    nothing = torch.zeros(8 * 64 + 8)
    assert_accuracies(accuracy, lambda device: expected + torch.cat([nothing, heads[device]]))


@each_case
def test_fedproto_pulls_features_towards_the_mean_features_of_their_label(case: Case, tmp_path: Path) -> None:
    """A server's values are Σ n_ij c_ij / Σ n_i for each label, then Σ n_ij / Σ n_i."""
    strength, models = 2.0, [initial() for _ in range(DEVICES)]

    def local(received: Vector, device: int, number: int) -> Vector:
        sums, shares = received[:80].view(10, 8), received[80:]
        prototypes = {label: sums[label] / shares[label] for label in range(10) if shares[label] > 1e-6}

        def loss(weights: Vector, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            pulls = [
                ((z - prototypes[int(label)]) ** 2).sum()
                for z, label in zip(features(weights, inputs), labels, strict=True)
                if int(label) in prototypes
            ]
            pull = torch.stack(pulls).sum() / (8 * len(labels)) if pulls else 0.0
            return of_outputs(weights, inputs, labels) + strength * pull

        models[device] = trained(models[device], device, number, loss)
        inputs, labels = data_of(device)
        z, mine = features(models[device], inputs), torch.nn.functional.one_hot(labels, 10).float()
        return torch.cat([(mine.T @ z).flatten(), mine.sum(0)]) / len(labels)

    expected = averaged(case, local, torch.zeros(90))
    found, accuracy = run(case, f"{{name: fedproto, strength: {strength}}}", tmp_path / "run")
    values = np.concatenate([found["prototypes"].ravel(), found["label_shares"]])
    assert np.abs(values - expected.numpy()).max() < 1e-6
    assert_accuracies(accuracy, lambda device: models[device])
