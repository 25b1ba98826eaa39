"""Methods through the three tiers, two LPSs, against one loop of PyTorch that minimises what their papers say.

Where a method corrects gradients, the loop adds the term to the loss and lets autograd differentiate it.
"""

import doctest
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn

from emulator.results.read_record import RunRecord
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.methods import base
from fedstrata.models import build_model
from fedstrata.partitions import DeviceData, device_data
from tests.support.records import summary_of
from tests.support.tiers import run_in_process, small

Weights = dict[str, torch.Tensor]
Penalty = Callable[[Weights], torch.Tensor]
ROUNDS, DEVICES = 3, 5
OVERRIDES = (
    "topology={lps: 2}",
    "training.lps_rounds_per_global_round=1",
    f"training.global_rounds={ROUNDS}",
    "training.optimiser={learning_rate: 0.1, momentum: 0.5}",
)
PLAIN = small()
DATASET = load_dataset(PLAIN.data, 0)
BASE, HEAD = ("fc1.weight", "fc1.bias"), ("fc2.weight", "fc2.bias")


def experiment(method: str, *overrides: str) -> Experiment:
    return small(f"method={method}", *OVERRIDES, *overrides)


# --- the plain loop -----------------------------------------------------------------------------------------


@cache
def data_of(device: int) -> DeviceData:
    return device_data(PLAIN, DATASET, device)


def initial() -> Weights:
    model = build_model(PLAIN.model, dataset_info(PLAIN.data))
    return {name: torch.tensor(view) for name, view in model.layout.views(model.initial(PLAIN.seed)).items()}


def logits(weights: Weights, inputs: NDArray[np.float32]) -> torch.Tensor:
    hidden = nn.functional.linear(torch.tensor(inputs).flatten(1), weights["fc1.weight"], weights["fc1.bias"]).relu()
    return nn.functional.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])


def no_penalty(weights: Weights) -> torch.Tensor:
    return torch.zeros(())


def proximal(mu: float, to: Weights) -> Penalty:
    """mu / 2 · ‖w − to‖²."""
    return lambda weights: mu / 2 * torch.stack([((weights[name] - to[name]) ** 2).sum() for name in to]).sum()


def trained(
    device: int, start: Weights, lps_round: int, penalty: Penalty = no_penalty, stream: tuple[int, ...] = (),
    *, among: NDArray[np.int64] | None = None, only: tuple[str, ...] = BASE + HEAD, epochs: int = 1,
    momentum: float = 0.5, size: int = 16,
) -> Weights:  # fmt: skip
    """One device's weights after epochs of torch.optim.SGD on the mean loss of each batch plus a penalty."""
    data = data_of(device).train
    data = data if among is None else data.take(among)
    weights = {name: tensor.clone().requires_grad_(name in only) for name, tensor in start.items()}
    sgd = torch.optim.SGD([weights[name] for name in only], lr=0.1, momentum=momentum)
    draw, firsts = np.random.default_rng([0, device, lps_round, *stream]), range(0, len(data), size)
    orders = [draw.permutation(len(data)) for _ in range(epochs)]
    for batch in (order[first : first + size] for order in orders for first in firsts):
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(logits(weights, data.inputs[batch]), torch.tensor(data.labels[batch]))
        (loss + penalty(weights)).backward()
        sgd.step()
    return {name: tensor.detach() for name, tensor in weights.items()}


def gradients_in(device: int, momentum: float, size: int = 16) -> float:
    """How many gradients the steps of an epoch add up to: their sum if each were 1."""
    velocity = total = 0.0
    for _ in range(0, len(data_of(device).train), size):
        velocity = momentum * velocity + 1
        total += velocity
    return total


def batches_of(device: int, lps_round: int, *stream: int) -> list[NDArray[np.int64]]:
    """The places of the examples in each batch of an epoch."""
    order = np.random.default_rng([0, device, lps_round, *stream]).permutation(len(data_of(device).train))
    return [order[first : first + 16] for first in range(0, len(order), 16)]


def loss_of(device: int, weights: Weights, batch: NDArray[np.int64]) -> torch.Tensor:
    data = data_of(device).train
    return nn.functional.cross_entropy(logits(weights, data.inputs[batch]), torch.tensor(data.labels[batch]))


def gradient(device: int, weights: Weights, batch: NDArray[np.int64]) -> Weights:
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in weights.items()}
    return dict(zip(leaves, torch.autograd.grad(loss_of(device, leaves, batch), [*leaves.values()]), strict=True))


def away(weights: Weights, by: Weights, length: float) -> Weights:
    """weights − length · by."""
    return {name: tensor - length * by[name] for name, tensor in weights.items()}


def optimised(start: Weights, batches: Iterable[Any], rule: Callable[[Weights, Any], Weights]) -> Weights:
    """The weights after a step of torch.optim.SGD for each batch, with what `rule` gives in place of the gradient."""
    weights = {name: tensor.clone() for name, tensor in start.items()}
    sgd = torch.optim.SGD([*weights.values()], lr=0.1, momentum=0.5)
    for batch in batches:
        for name, each in rule(weights, batch).items():
            weights[name].grad = each
        sgd.step()
    return {name: tensor.detach() for name, tensor in weights.items()}


def averaged(found: list[Weights], names: tuple[str, ...] = BASE + HEAD) -> Weights:
    """The mean over all devices, each by its examples."""
    shares = torch.tensor([len(data_of(device).train) for device in range(DEVICES)])
    shares = shares.double() / shares.sum()
    return {
        name: torch.stack([share * each[name] for share, each in zip(shares, found, strict=True)]).sum(0).float()
        for name in names
    }


def accuracy(device: int, weights: Weights) -> float:
    held_out = data_of(device).test
    return float((logits(weights, held_out.inputs).argmax(1).numpy() == held_out.labels).mean())


def rounds(local: Callable[[int, Weights, int], Weights]) -> Weights:
    """What everybody ends with when all layers are averaged over everybody in every round."""
    everybodys = initial()
    for lps_round in range(ROUNDS):
        everybodys = averaged([local(device, everybodys, lps_round) for device in range(DEVICES)])
    return everybodys


@cache
def by_fedavg() -> Weights:
    return rounds(trained)


# --- the tiers against it -----------------------------------------------------------------------------------


def summary(record: RunRecord) -> dict[str, Any]:
    """All that the record says in its summary."""
    found: dict[str, Any] = summary_of(record.folder)
    return found


def assert_equal(record: RunRecord, expected: Weights) -> None:
    assert record.summary.status == "completed", record.summary.reason
    (cluster,) = record.summary.clusters
    found = load_file(record.folder / "models" / f"{cluster}.safetensors")
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert np.abs(found[name] - tensor.numpy()).max() < 1e-6, name


def assert_received_accuracy(record: RunRecord, received: Weights) -> None:
    """The mean over all examples of the accuracy of the model that devices receive."""
    tests = [len(data_of(device).test) for device in range(DEVICES)]
    hits = [accuracy(device, received) * tests[device] for device in range(DEVICES)]
    assert summary(record)["received_accuracy"]["mean"] == pytest.approx(sum(hits) / sum(tests))


def assert_accuracies(record: RunRecord, models: list[Weights]) -> None:
    """What each device measures is what its model does in the loop."""
    expected = {f"device-{device:03d}": accuracy(device, model) for device, model in enumerate(models)}
    assert summary(record)["device_accuracy"] == pytest.approx(expected, abs=1e-12)
    assert len(set(expected.values())) > 2


def test_fedavg_is_one_loop_over_all_devices(tmp_path: Path) -> None:
    record, expected = run_in_process(experiment("{name: fedavg}"), tmp_path / "run"), by_fedavg()
    assert_equal(record, expected)
    assert_accuracies(record, [expected] * DEVICES)
    assert record.summary.clusters_rule == "one cluster"
    assert len(summary(record)["homes"]) == 2


def test_fedprox_minimises_the_loss_plus_the_distance_from_what_was_received(tmp_path: Path) -> None:
    expected = rounds(lambda device, received, number: trained(device, received, number, proximal(0.7, received)))
    assert max(float((expected[name] - by_fedavg()[name]).abs().max()) for name in expected) > 1e-3
    assert_equal(run_in_process(experiment("{name: fedprox, mu: 0.7}"), tmp_path / "run"), expected)


def test_without_a_pull_fedprox_is_fedavg(tmp_path: Path) -> None:
    assert_equal(run_in_process(experiment("{name: fedprox, mu: 0}"), tmp_path / "run"), by_fedavg())


def test_ditto_is_fedavg_with_a_model_at_each_device_that_is_pulled_towards_everybodys(tmp_path: Path) -> None:
    own, everybodys = [initial() for _ in range(DEVICES)], initial()
    for number in range(ROUNDS):
        pull = proximal(0.5, everybodys)
        own = [trained(device, own[device], number, pull, stream=(1,)) for device in range(DEVICES)]
        everybodys = averaged([trained(device, everybodys, number) for device in range(DEVICES)])
    record = run_in_process(experiment("{name: ditto, pull: 0.5}"), tmp_path / "run")
    assert_equal(record, everybodys)
    assert_accuracies(record, own)
    assert_received_accuracy(record, everybodys)


@pytest.mark.parametrize(("method", "travels"), [("fedper", BASE), ("lg_fedavg", HEAD)])
def test_one_part_of_the_model_is_averaged_and_the_other_stays_where_it_is(
    method: str, travels: tuple[str, ...], tmp_path: Path
) -> None:
    models = [initial() for _ in range(DEVICES)]
    for number in range(ROUNDS):
        found = [trained(device, models[device], number) for device in range(DEVICES)]
        models = [{**each, **averaged(found, travels)} for each in found]
    record = run_in_process(experiment(f"{{name: {method}}}"), tmp_path / "run")
    assert_equal(record, {name: models[0][name] for name in travels})  # nothing else has come to the servers
    assert_accuracies(record, models)


def test_fedrep_trains_each_head_on_the_fixed_body_and_then_the_body_under_the_fixed_head(tmp_path: Path) -> None:
    models = [initial() for _ in range(DEVICES)]
    for number in range(ROUNDS):
        heads = [trained(device, models[device], number, only=HEAD, epochs=2) for device in range(DEVICES)]
        found = [trained(device, heads[device], number, stream=(1,), only=BASE) for device in range(DEVICES)]
        models = [{**each, **averaged(found, BASE)} for each in found]
    record = run_in_process(experiment("{name: fedrep, head_epochs: 2}"), tmp_path / "run")
    assert_equal(record, {name: models[0][name] for name in BASE})  # no head has come to the servers
    assert_accuracies(record, models)


@pytest.mark.parametrize(("tuned", "names"), [("head", HEAD), ("all", BASE + HEAD)])
def test_fedbabu_averages_bodies_under_the_first_head_and_measures_what_is_fine_tuned(
    tuned: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    everybodys = initial()
    for number in range(ROUNDS):
        found = [trained(device, everybodys, number, only=BASE) for device in range(DEVICES)]
        everybodys = {**everybodys, **averaged(found, BASE)}
    record = run_in_process(experiment(f"{{name: fedbabu, tuned: {tuned}, tuning_epochs: 2}}"), tmp_path / "run")
    assert_equal(record, {name: everybodys[name] for name in BASE})
    own = [trained(d, everybodys, ROUNDS, stream=(1,), only=names, epochs=2) for d in range(DEVICES)]
    assert_accuracies(record, own)
    assert_received_accuracy(record, everybodys)


def test_feddyn_has_its_servers_state_in_what_devices_send(tmp_path: Path) -> None:
    """The loop keeps h at a server and lets devices send their weights, as the paper has it."""
    alpha, everybodys, names = 0.5, initial(), BASE + HEAD
    gradients = [{name: torch.zeros_like(everybodys[name]) for name in names} for _ in range(DEVICES)]
    h = {name: torch.zeros_like(everybodys[name]) for name in names}

    def tilted(own: Weights, received: Weights) -> Penalty:
        pull = proximal(alpha, received)
        return lambda weights: pull(weights) - torch.stack([(own[name] * weights[name]).sum() for name in names]).sum()

    for number in range(ROUNDS):
        found = [trained(d, everybodys, number, tilted(gradients[d], everybodys)) for d in range(DEVICES)]
        for own, each in zip(gradients, found, strict=True):
            own.update({name: own[name] - alpha * (each[name] - everybodys[name]) for name in names})
        mean = averaged(found)
        h = {name: h[name] - alpha * (mean[name] - everybodys[name]) for name in names}
        everybodys = {name: mean[name] - h[name] / alpha for name in names}
    record = run_in_process(experiment("{name: feddyn, alpha: 0.5}"), tmp_path / "run")
    assert_equal(record, everybodys)
    assert_accuracies(record, [everybodys] * DEVICES)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffold_corrects_each_step_by_the_control_variates_of_its_paper(momentum: float, tmp_path: Path) -> None:
    """The loop keeps c at a server and each c_k at a device; autograd differentiates ⟨c − c_k, w⟩."""
    names, everybodys = BASE + HEAD, initial()
    zeros = {name: torch.zeros_like(everybodys[name]) for name in names}
    servers, own = zeros, [zeros] * DEVICES

    def tilted(mine: Weights) -> Penalty:
        return lambda weights: torch.stack(
            [((servers[each] - mine[each]) * weights[each]).sum() for each in names]
        ).sum()

    for number in range(ROUNDS):
        found = [trained(d, everybodys, number, tilted(own[d]), momentum=momentum) for d in range(DEVICES)]
        following = []
        for device, each in enumerate(found):
            length = 0.1 * gradients_in(device, momentum)
            following.append({
                name: own[device][name] - servers[name] + (everybodys[name] - each[name]) / length for name in names
            })  # fmt: skip
        changes = averaged(
            [{name: new[name] - old[name] for name in names} for new, old in zip(following, own, strict=True)]
        )
        servers, own = {name: servers[name] + changes[name] for name in names}, following
        everybodys = averaged(found)
    record = run_in_process(
        experiment("scaffold", f"training.optimiser={{learning_rate: 0.1, momentum: {momentum}}}"), tmp_path / "run"
    )
    control = torch.cat([servers[name].flatten() for name in names])
    assert control.abs().max() > 0.01
    assert_equal(record, {**everybodys, "control": control})
    assert_accuracies(record, [everybodys] * DEVICES)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_divides_each_change_by_its_steps_and_goes_on_by_their_mean(momentum: float, tmp_path: Path) -> None:
    """In batches of 10, three devices take 6 steps and two take 5."""
    everybodys, plain = initial(), initial()
    counts = [len(data_of(device).train) for device in range(DEVICES)]
    gradients = [gradients_in(device, momentum, 10) for device in range(DEVICES)]
    assert len(set(gradients)) == 2
    for number in range(ROUNDS):
        found = [trained(d, everybodys, number, momentum=momentum, size=10) for d in range(DEVICES)]
        plain = averaged([trained(d, plain, number, momentum=momentum, size=10) for d in range(DEVICES)])
        shares = [count / sum(counts) for count in counts]
        mean = sum(share * each for share, each in zip(shares, gradients, strict=True))
        everybodys = {
            name: start + mean * sum(
                share * (each[name] - start) / divisor
                for share, each, divisor in zip(shares, found, gradients, strict=True)
            )
            for name, start in everybodys.items()
        }  # fmt: skip
    optimiser = f"training.optimiser={{learning_rate: 0.1, momentum: {momentum}}}"
    record = run_in_process(experiment("fednova", "training.batch_size=10", optimiser), tmp_path / "run")
    assert max(float((everybodys[name] - plain[name]).abs().max()) for name in plain) > 1e-4
    assert_equal(record, everybodys)
    assert_accuracies(record, [everybodys] * DEVICES)


@pytest.mark.parametrize(
    ("lps", "lps_rounds", "participation", "momentum"),
    [(0, 1, 2, 0.0), (0, 2, 3, 0.5), (2, 1, 1, 0.0), (2, 1, 0.5, 0.5), (2, 2, 1.0, 0.0), (2, 2, None, 0.0),
     (2, 3, 2, 0.5)],
)  # fmt: skip
def test_fednova_takes_the_mean_number_of_steps_over_the_cohorts_of_all_lpss(
    lps: int, lps_rounds: int, participation: float | None, momentum: float, tmp_path: Path
) -> None:
    """In batches of 10, three devices take 6 steps and two take 5. With several LPS rounds, each LPS averages its own
    devices, and all LPSs go on by the same mean number of steps.
    """
    counts = [len(data_of(device).train) for device in range(DEVICES)]
    gradients = [gradients_in(device, momentum, 10) for device in range(DEVICES)]

    def asked(home: int, number: int) -> list[int]:
        there = [device for device in range(DEVICES) if device % max(1, lps) == home]
        size = participation if isinstance(participation, int) else math.ceil((participation or 1.0) * len(there))
        drawn = sorted(there, key=lambda device: np.random.default_rng([0, 0x636F686F, number, device]).random())
        return drawn[: int(size)]

    def everywhere(number: int) -> list[int]:
        return [device for home in homes for device in asked(home, number)]

    homes, means = range(max(1, lps)), set[float]()

    def moved(start: Weights, devices: list[int], number: int) -> Weights:
        whole, together = (sum(counts[d] for d in there) for there in (devices, everywhere(number)))
        mean = sum(counts[d] / together * gradients[d] for d in everywhere(number))
        means.add(mean)
        found = {device: trained(device, start, number, momentum=momentum, size=10) for device in devices}
        return {
            name: tensor + mean * sum(counts[d] / whole * (found[d][name] - tensor) / gradients[d] for d in devices)
            for name, tensor in start.items()
        }

    everybodys = initial()
    for number in range(0, ROUNDS * lps_rounds, lps_rounds):
        if lps_rounds == 1:
            everybodys = moved(everybodys, everywhere(number), number)
            continue
        models, examples = [], []
        for home in homes:
            model = everybodys
            for each in range(number, number + lps_rounds):
                model = moved(model, asked(home, each), each)
            models.append(model)
            examples.append(sum(counts[d] for each in range(number, number + lps_rounds) for d in asked(home, each)))
        everybodys = {
            name: sum(n * model[name] for n, model in zip(examples, models, strict=True)) / sum(examples)
            for name in everybodys
        }  # fmt: skip
    assert lps_rounds > 1 or len(means) > 1, "each cohort has the same mean, so the test would show nothing"
    overrides = (
        f"training={{participation: {participation or 'null'}, batch_size: 10, "
        f"lps_rounds_per_global_round: {lps_rounds}, global_rounds: {ROUNDS}, local_epochs: 1, "
        f"optimiser: {{learning_rate: 0.1, momentum: {momentum}}}}}",
        *([f"topology={{lps: {lps}}}"] if lps else []),
    )
    record = run_in_process(small("method=fednova", *overrides), tmp_path / "run")
    assert_equal(record, everybodys)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_per_fedavg_trains_for_the_model_after_a_step_on_a_devices_own_batch(variant: str, tmp_path: Path) -> None:
    alpha, delta = 0.5, 0.01

    def local(device: int, received: Weights, number: int) -> Weights:
        def rule(weights: Weights, batches: tuple[NDArray[np.int64], ...]) -> Weights:
            first, second, third = batches
            found = gradient(device, away(weights, gradient(device, weights, first), alpha), second)
            if variant == "fo":
                return found
            beyond, before = (gradient(device, away(weights, found, by), third) for by in (-delta, delta))
            return {name: found[name] - alpha * (beyond[name] - before[name]) / (2 * delta) for name in found}

        drawn = (batches_of(device, number, *stream) for stream in ((), (1,), (2,)))
        return optimised(received, zip(*drawn, strict=True), rule)

    everybodys = rounds(local)
    method = f"{{name: perfedavg, alpha: {alpha}, variant: {variant}, delta: {delta}}}"
    record = run_in_process(experiment(method), tmp_path / "run")
    assert_equal(record, everybodys)
    batches = [batches_of(device, ROUNDS, 3)[0] for device in range(DEVICES)]
    adapted = [away(everybodys, gradient(d, everybodys, batch), alpha) for d, batch in enumerate(batches)]
    assert_accuracies(record, adapted)
    assert_received_accuracy(record, everybodys)


def test_pfedme_moves_towards_personal_models_that_minimise_each_batchs_loss_near_it(tmp_path: Path) -> None:
    pull, rate, everybodys, own = 4.0, 0.05, initial(), [initial() for _ in range(DEVICES)]

    def local(device: int, number: int) -> Weights:
        own[device] = everybodys

        def rule(weights: Weights, batch: NDArray[np.int64]) -> Weights:
            theta = {name: tensor.clone().requires_grad_() for name, tensor in own[device].items()}
            sgd = torch.optim.SGD([*theta.values()], lr=rate)
            for _ in range(3):
                sgd.zero_grad()
                (loss_of(device, theta, batch) + proximal(pull, weights)(theta)).backward()
                sgd.step()
            own[device] = {name: tensor.detach() for name, tensor in theta.items()}
            return {name: pull * (weights[name] - own[device][name]) for name in weights}

        return optimised(everybodys, batches_of(device, number), rule)

    for number in range(ROUNDS):
        everybodys = averaged([local(device, number) for device in range(DEVICES)])
    method = f"{{name: pfedme, pull: {pull}, personal_steps: 3, personal_rate: {rate}}}"
    record = run_in_process(experiment(method), tmp_path / "run")
    assert_equal(record, everybodys)
    assert_accuracies(record, own)
    assert_received_accuracy(record, everybodys)


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_is_fedavg_with_a_mixed_model_that_moves_by_its_own_gradient(adaptive: bool, tmp_path: Path) -> None:
    """Autograd differentiates the loss of the mix with respect to the device's own model and its share."""
    names, everybodys = BASE + HEAD, initial()
    own, shares = [initial() for _ in range(DEVICES)], [0.5] * DEVICES

    def mixed(device: int, weights: Weights) -> Weights:
        return {name: shares[device] * own[device][name] + (1 - shares[device]) * weights[name] for name in names}

    def local(device: int, number: int) -> Weights:
        velocity = {name: torch.zeros_like(everybodys[name]) for name in names}
        batches = batches_of(device, number)

        def rule(weights: Weights, batch: NDArray[np.int64]) -> Weights:
            v = {name: tensor.clone().requires_grad_() for name, tensor in own[device].items()}
            share = torch.tensor(shares[device], requires_grad=True)
            loss = loss_of(device, {name: share * v[name] + (1 - share) * weights[name] for name in names}, batch)
            *slopes, slope = torch.autograd.grad(loss, [*v.values(), share])
            for name, each in zip(names, slopes, strict=True):
                velocity[name] = 0.5 * velocity[name] + each
                own[device][name] = own[device][name] - 0.1 * velocity[name]
            if adaptive and batch is batches[0]:
                shares[device] = min(1.0, max(0.0, shares[device] - 0.1 * float(slope)))
            return gradient(device, weights, batch)

        return optimised(everybodys, batches, rule)

    for number in range(ROUNDS):
        everybodys = averaged([local(device, number) for device in range(DEVICES)])
    record = run_in_process(experiment(f"{{name: apfl, adaptive: {str(adaptive).lower()}}}"), tmp_path / "run")
    assert (len(set(shares)) > 1) == adaptive
    assert_equal(record, everybodys)
    assert_equal(record, by_fedavg())
    assert_accuracies(record, [mixed(device, everybodys) for device in range(DEVICES)])
    assert_received_accuracy(record, everybodys)


def test_fedtsdp_averages_fewer_layers_with_each_grouping_and_leaves_the_others_where_they_were_trained(
    tmp_path: Path,
) -> None:
    """With divergence and distance that no two devices exceed, all are one group that shares 4, 3 and 2 tensors."""
    names = BASE + HEAD
    models = [initial() for _ in range(DEVICES)]
    for number, count in enumerate((4, 3, 2)):
        found = [trained(device, models[device], number) for device in range(DEVICES)]
        everybodys = averaged(found, names[:count])
        following = {0: 3, 1: 2, 2: 1}[number]  # of the mean, what the next round still shares
        models = [{**each, **{name: everybodys[name] for name in names[:following]}} for each in found]
    method = "{name: fedtsdp, batch: 20, hopkins: 0.001, hopkins_points: 4, divergence: 9, distance: 1e9, shrink: 0.6}"
    record = run_in_process(experiment(method, "partition.public={examples: 60}"), tmp_path / "run")
    assert_equal(record, {name: models[0][name] for name in names[:1]})
    assert_accuracies(record, models)


def test_fedtsdp_is_local_training_where_no_device_is_like_another(tmp_path: Path) -> None:
    method = "{name: fedtsdp, batch: 20, hopkins: 0.001, hopkins_points: 4, divergence: 1e-12, shrink: 1}"
    record = run_in_process(experiment(method, "partition.public={examples: 60}"), tmp_path / "run")
    assert record.summary.status == "completed", record.summary.reason
    for device in range(DEVICES):
        weights = initial()
        for number in range(ROUNDS):
            weights = trained(device, weights, number)
        found = load_file(record.folder / "models" / f"cluster-{device}.safetensors")
        for name, tensor in weights.items():
            assert np.abs(found[name] - tensor.numpy()).max() < 2e-6, (device, name)


def test_fedfomo_mixes_what_lowers_a_devices_loss_on_examples_that_it_does_not_train_on(tmp_path: Path) -> None:
    began, models = [initial() for _ in range(DEVICES)], [initial() for _ in range(DEVICES)]
    for number in range(ROUNDS):
        began = [fomo_mix(device, began[device], models) for device in range(DEVICES)]
        models = [trained(device, began[device], number, among=fomo_parts(device)[0]) for device in range(DEVICES)]
    record = run_in_process(experiment("{name: fedfomo, offered: 4, explore: 0}"), tmp_path / "run")
    assert record.summary.status == "completed", record.summary.reason
    for device, expected in enumerate(models):
        found = load_file(record.folder / "models" / f"cluster-{device}.safetensors")
        for name, tensor in expected.items():
            assert np.abs(found[name] - tensor.numpy()).max() < 1e-5, (device, name)
    mixes = [fomo_mix(device, began[device], models) for device in range(DEVICES)]
    others = [
        float((mix["fc1.weight"] - own["fc1.weight"]).abs().max()) for mix, own in zip(mixes, models, strict=True)
    ]
    assert min(others) > 1e-3  # others' models have a part in every mix
    assert_accuracies(record, mixes)


def fomo_parts(device: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of a device's examples to train on, and of the fifth to weigh models on."""
    count = len(data_of(device).train)
    order = np.random.default_rng([0, device, 0xF0405E]).permutation(count)
    return np.sort(order[count // 5 :]), np.sort(order[: count // 5])


def fomo_mix(device: int, began: Weights, models: list[Weights]) -> Weights:
    """Equations 3 to 5 of the paper, model by model."""
    data, (_, aside) = data_of(device).train, fomo_parts(device)

    def loss(weights: Weights) -> float:
        labels = torch.tensor(data.labels[aside])
        return float(nn.functional.cross_entropy(logits(weights, data.inputs[aside]), labels))

    gains = []
    for model in models:
        far = float(torch.stack([((model[name] - began[name]) ** 2).sum() for name in began]).sum().sqrt())
        gains.append(max((loss(began) - loss(model)) / far, 0.0) if far else 0.0)
    if not sum(gains):
        return began
    return {
        name: sum((gain / sum(gains) * (model[name] - began[name]) for gain, model in zip(gains, models, strict=True)),
                  start=began[name].clone())
        for name in began
    }  # fmt: skip


def test_local_training_lets_no_weight_leave_a_device(tmp_path: Path) -> None:
    models = [initial() for _ in range(DEVICES)]
    for number in range(ROUNDS):
        models = [trained(device, models[device], number) for device in range(DEVICES)]
    record = run_in_process(experiment("{name: local}"), tmp_path / "run")
    assert_equal(record, {})
    assert_accuracies(record, models)
    a_device_and_round = summary(record)["bytes"]["device-lps"]["up"] / (DEVICES * (ROUNDS + 1))
    assert a_device_and_round < 1000  # the model has 4,840 bytes


# --- bytes --------------------------------------------------------------------------------------------------

WEIGHTS = 4 * (64 * 16 + 16 + 16 * 10 + 10)  # bytes
HEADERS = 400  # more than those of a message


@pytest.mark.parametrize(
    ("method", "down", "answer", "kind"),
    [
        ("{name: ifca, clusters: 3}", 3 * WEIGHTS, 8 * 3, "losses"),
        ("{name: ifca, clusters: 3, shares_layers: true}", WEIGHTS + 2 * 4 * (16 * 10 + 10), 8 * 3, "losses"),
        ("{name: cfl, sketch: 512}", WEIGHTS, 8 * 512, "update_sketch"),
        ("{name: fedfomo, offered: 2}", 3 * WEIGHTS, 8 * 3, "gains"),
    ],
)
def test_a_round_takes_the_bytes_that_the_page_on_methods_says(
    method: str, down: int, answer: int, kind: str, tmp_path: Path
) -> None:
    record = run_in_process(experiment(method), tmp_path / "run")
    assert record.summary.status == "completed", record.summary.reason
    counted = summary(record)["bytes_by_kind"]["device-lps"]
    once = DEVICES * ROUNDS
    assert down * (once + DEVICES) <= counted["model"]["down"] <= (down + 2 * HEADERS) * (once + DEVICES)
    assert WEIGHTS * once <= counted["update"]["up"] <= (WEIGHTS + HEADERS) * once
    assert answer * once <= counted[kind]["up"] <= (answer + HEADERS) * once


# --- the toy in the docstring of the contract ---------------------------------------------------------------


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The method that the contract's docstring has as an example, as own code in the current directory."""
    examples = doctest.DocTestParser().get_examples(base.__doc__ or "")
    found = next(each.source for each in examples if each.source.startswith("class"))
    (tmp_path / "toy.py").write_text("from fedstrata.methods.base import *\n\n" + found, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "toy:Careful"
    sys.modules.pop("toy", None)


def test_the_toy_of_the_contract_is_a_whole_method(toy: str, tmp_path: Path) -> None:
    def careful(device: int, received: Weights, number: int) -> Weights:
        examples = len(data_of(device).train)
        return trained(device, received, number, proximal(30 / examples, received))

    expected = rounds(careful)
    record = run_in_process(experiment(f"{{name: '{toy}', mu: 30}}"), tmp_path / "run")
    assert_equal(record, expected)
    assert record.summary.method == toy
