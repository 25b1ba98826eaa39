"""FedALA, with absent devices, against a loop of PyTorch that differentiates the loss by the weights of the mix."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.services.methods.test_absent_devices import (
    BATCH,
    DEVICES,
    EXAMPLES,
    GLOBAL_ROUNDS,
    Case,
    Vector,
    assert_is,
    data_of,
    initial,
)
from tests.services.methods.test_features_against_pytorch import (
    assert_accuracies,
    averaged,
    of_outputs,
    run,
    trained,
)

ETA, BATCHES, FIRST = 100.0, 2, 3  # of the three batches of an epoch, 0.6 are two
LAST = torch.cat([torch.zeros(8 * 64 + 8), torch.ones(80 + 10)])  # elements of the last of both layers
BOTH = torch.ones(len(LAST))
CASES = [
    (Case(0, 1, 3), 1),
    (Case(2, 1, 2), 1),
    (Case(2, 2, 2), 1),
    (Case(0, 2, 3), 2),
]


class Device:
    """Its model of its last training, and the weights of its mix."""

    def __init__(self, number: int, is_mixed: Vector) -> None:
        self.number, self.is_mixed = number, is_mixed
        self.model, self.mix, self.has_learned = initial(), torch.ones(len(is_mixed)), False
        self.has_trained = False

    def mixed(self, received: Vector, mix: Vector) -> Vector:
        return torch.where(self.is_mixed > 0, self.model + (received - self.model) * mix, received)

    def learned(self, received: Vector, lps_round: int, purpose: int) -> Vector:
        """The weights of the mix after passes over the first batches of an order that is drawn for a purpose."""
        inputs, labels = data_of(self.number)
        order = np.random.default_rng([0, self.number, lps_round, purpose]).permutation(EXAMPLES[self.number])
        mix = self.mix
        for _ in range(1 if self.has_learned else FIRST):
            for batch in torch.split(torch.tensor(order), BATCH)[:BATCHES]:
                leaf = mix.clone().requires_grad_()
                loss = of_outputs(self.mixed(received, leaf), inputs[batch], labels[batch])
                (gradient,) = torch.autograd.grad(loss, leaf)
                mix = (mix - ETA * gradient).clamp(0, 1)
        return mix

    def start(self, received: Vector, lps_round: int, purpose: int) -> tuple[Vector, Vector]:
        if not self.has_trained:
            return received, self.mix
        mix = self.learned(received, lps_round, purpose)
        return self.mixed(received, mix), mix

    def local(self, received: Vector, lps_round: int) -> Vector:
        begin, self.mix = self.start(received, lps_round, 1)
        self.has_learned = self.has_trained
        self.model, self.has_trained = trained(begin, self.number, lps_round, of_outputs), True
        return self.model


@pytest.mark.parametrize(("case", "layers"), CASES, ids=str)
def test_fedala_mixes_the_highest_layers_by_weights_that_lower_a_devices_loss(
    case: Case, layers: int, tmp_path: Path
) -> None:
    devices = [Device(number, LAST if layers == 1 else BOTH) for number in range(DEVICES)]
    expected = averaged(case, lambda received, device, number: devices[device].local(received, number))
    mixes = torch.stack([each.mix for each in devices if each.has_learned])
    assert (mixes == 0).any() and ((mixes > 0) & (mixes < 1)).any()
    plain_one = averaged(case, lambda x, device, number: trained(x, device, number, of_outputs))
    assert (expected - plain_one).abs().max() > 1e-3
    method = f"{{name: fedala, layers: {layers}, share: 0.6, rate: {ETA}, first_epochs: {FIRST}}}"
    found, accuracy = run(case, method, tmp_path / "run")
    assert_is(found, expected)
    last = GLOBAL_ROUNDS * case.lps_rounds
    assert_accuracies(accuracy, lambda device: devices[device].start(expected, last, 2)[0])
