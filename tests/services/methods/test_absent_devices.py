"""Methods with state at servers, with devices that do not take part, against loops of PyTorch written from the papers.

Ten devices have 60 or 50 examples. A server is the GPS or, with several LPS rounds per global round, each LPS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy, linear

from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import build_model
from fedstrata.partitions import device_data
from tests.support.tiers import run_in_process

TEXT = """
name: absent
partition:
  kind: tasks
  minority_ratio: 0.1
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 6, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 4, examples_per_device: 50}
model: {name: mlp, hidden: [8]}
training: {global_rounds: 3, batch_size: 20, optimiser: {learning_rate: 0.1}}
"""
DEVICES, RATE, BATCH, GLOBAL_ROUNDS = 10, 0.1, 20, 3
EXAMPLES = [60] * 6 + [50] * 4
AWAY = (1, 8)  # in the third round, which begins after 120 ms
LEAVES = (
    "clock=virtual", "compute={per_example: 1ms}", "schedule=[{at: 70ms, leave: {devices: [1, 8], for: 100ms}}]"
)  # fmt: skip
Vector = torch.Tensor


@dataclass(frozen=True)
class Case:
    """Who takes part: `asked` of each LPS, or all but AWAY in the third round."""

    lps: int  # 0: no topology
    lps_rounds: int
    asked: int | None

    @property
    def overrides(self) -> list[str]:
        return [
            f"training.lps_rounds_per_global_round={self.lps_rounds}",
            *([f"topology={{lps: {self.lps}}}"] if self.lps else []),
            *(LEAVES if self.asked is None else [f"training.participation={self.asked}"]),
        ]

    @property
    def servers(self) -> list[list[int]]:
        """The devices of each LPS."""
        count = max(1, self.lps)
        return [[*range(home, DEVICES, count)] for home in range(count)]

    def there(self, devices: Sequence[int], lps_round: int) -> list[int]:
        """The devices of an LPS that take part in an LPS round."""
        if self.asked is None:
            return [each for each in devices if lps_round != 2 or each not in AWAY]
        drawn = sorted(devices, key=lambda each: np.random.default_rng([0, 0x636F686F, lps_round, each]).random())
        return sorted(drawn[: self.asked])


CASES = [Case(0, 2, 3), Case(2, 1, 2), Case(2, 1, None)]
MORE = [Case(0, 1, 3), Case(2, 2, 2), Case(1, 2, 3), Case(0, 1, None)]


def cases(chosen: Callable[[Case], bool]) -> pytest.MarkDecorator:
    """Some of the cases: `make test` has the first of all, `make test-runs` more."""
    more = (pytest.param(case, marks=pytest.mark.runs, id=str(case)) for case in MORE if chosen(case))
    return pytest.mark.parametrize("case", [*filter(chosen, CASES), *more], ids=str)


each_case = cases(lambda case: True)


@cache
def plain() -> Experiment:
    return parse_experiment(TEXT)


@cache
def data_of(device: int) -> tuple[torch.Tensor, torch.Tensor]:
    train = device_data(plain(), load_dataset(plain().data, 0), device).train
    assert len(train) == EXAMPLES[device]
    return torch.tensor(train.inputs).flatten(1), torch.tensor(train.labels)


def initial() -> Vector:
    return torch.tensor(build_model(plain().model, dataset_info(plain().data)).initial(0))


def loss(weights: Vector, device: int, batch: torch.Tensor) -> torch.Tensor:
    inputs, labels = data_of(device)
    first, bias, last, end = torch.split(weights, [8 * 64, 8, 80, 10])
    hidden = linear(inputs[batch], first.view(8, 64), bias).relu()
    return cross_entropy(linear(hidden, last.view(10, 8), end), labels[batch])


def trained(
    start: Vector, device: int, lps_round: int, penalty: Callable[[Vector], torch.Tensor] = lambda w: w.sum() * 0
) -> tuple[Vector, int]:
    """The weights after an epoch of plain SGD on the loss plus a penalty, and the number of steps."""
    order = torch.tensor(np.random.default_rng([0, device, lps_round]).permutation(EXAMPLES[device]))
    weights, steps = start.clone(), 0
    for batch in torch.split(order, BATCH):
        leaf = weights.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, device, batch) + penalty(leaf), leaf)
        weights, steps = weights - RATE * gradient, steps + 1
    return weights, steps


def mean(values: Sequence[Vector], devices: Sequence[int]) -> Vector:
    """The mean of one vector per device, each weighted by its examples."""
    shares = torch.tensor([EXAMPLES[device] for device in devices], dtype=torch.float64)
    return torch.stack([*values]).double().mul((shares / shares.sum())[:, None]).sum(0).float()


def share(there: Sequence[int], devices: Sequence[int]) -> float:
    """The part of all examples that the devices that take part have."""
    return sum(EXAMPLES[each] for each in there) / sum(EXAMPLES[each] for each in devices)


def final(case: Case, method: str, folder: Path, *more: str) -> dict[str, np.ndarray]:
    record = run_in_process(parse_experiment(TEXT, overrides=[f"method={method}", *case.overrides, *more]), folder)
    assert record.summary.status == "completed", record.summary.reason
    (cluster,) = record.summary.clusters
    return dict(load_file(record.folder / "models" / f"{cluster}.safetensors"))


def assert_is(found: dict[str, np.ndarray], weights: Vector) -> None:
    values = np.concatenate([found[name].ravel() for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")])
    assert np.abs(values - weights.numpy()).max() < 1e-6


@each_case
def test_scaffolds_server_variate_moves_by_the_share_that_takes_part(case: Case, tmp_path: Path) -> None:
    """Algorithm 1 of the paper. So c is the mean of all c_k after each global round."""
    own = [torch.zeros_like(initial()) for _ in range(DEVICES)]

    def served(x: Vector, c: Vector, devices: list[int], there: list[int], number: int) -> tuple[Vector, Vector]:
        """One round of a server of `devices`."""
        moved, changes = [], []
        for each in there:
            y, steps = trained(x, each, number, lambda w, tilt=c - own[each]: tilt @ w)  # type: ignore[misc]
            following = own[each] - c + (x - y) / (steps * RATE)
            changes.append(following - own[each])
            moved.append(y - x)
            own[each] = following
        return x + mean(moved, there), c + share(there, devices) * mean(changes, there)

    x, c, everybody = initial(), torch.zeros_like(initial()), [*range(DEVICES)]
    for number in range(0, GLOBAL_ROUNDS * case.lps_rounds, case.lps_rounds):
        if case.lps_rounds == 1:
            there = sorted(each for home in case.servers for each in case.there(home, number))
            x, c = served(x, c, everybody, there, number)
            continue
        parts, counts = [], []
        for home in case.servers:
            part, count = (x, c), 0
            for lps_round in range(number, number + case.lps_rounds):
                there = case.there(home, lps_round)
                part = served(*part, home, there, lps_round)
                count += sum(EXAMPLES[each] for each in there)
            parts.append(part)
            counts.append(count)
        x = torch.stack([n / sum(counts) * part[0] for n, part in zip(counts, parts, strict=True)]).sum(0)
        whole = [share(home, everybody) for home in case.servers]
        c = torch.stack([n * part[1] for n, part in zip(whole, parts, strict=True)]).sum(0)
    assert (c - mean(own, everybody)).abs().max() < 1e-6
    found = final(case, "scaffold", tmp_path / "run")
    assert_is(found, x)
    assert np.abs(found["control"] - c.numpy()).max() < 2e-6


Step = Callable[[Vector, dict[str, Vector]], Vector]


def momentum(update: Vector, state: dict[str, Vector]) -> Vector:
    """FedAvgM with a learning rate of 0.5 and a momentum of 0.8."""
    state["v"] = 0.8 * state.get("v", torch.zeros_like(update)) + update
    return 0.5 * state["v"]


def adaptive(kind: str, beta1: float) -> Step:
    """Algorithm 2 of the paper with β₂ = 0.9, τ = 0.01 and a learning rate of 0.02."""

    def step(update: Vector, state: dict[str, Vector]) -> Vector:
        square, v = update**2, state.get("v", torch.full_like(update, 0.01**2))
        state["m"] = beta1 * state.get("m", torch.zeros_like(update)) + (1 - beta1) * update
        state["v"] = {
            "fedadam": 0.9 * v + 0.1 * square,
            "fedyogi": v - 0.1 * square * torch.sign(v - square),
            "fedadagrad": v + square,
        }[kind]
        return 0.02 * state["m"] / (state["v"].sqrt() + 0.01)

    return step


RATES = "server_learning_rate: 0.02, tau: 0.01"
SERVERS: dict[str, tuple[str, Step]] = {
    "fedavgm": ("{name: fedavgm, server_learning_rate: 0.5, momentum: 0.8}", momentum),
    "fedadagrad": (f"{{name: fedadagrad, {RATES}}}", adaptive("fedadagrad", 0.0)),
    "fedyogi": (f"{{name: fedyogi, {RATES}, beta1: 0.7, beta2: 0.9}}", adaptive("fedyogi", 0.7)),
    "fedadam": (f"{{name: fedadam, {RATES}, beta1: 0.7, beta2: 0.9}}", adaptive("fedadam", 0.7)),
}
EACH_ROUND = Case(0, 2, 3)  # the LPS is the server of each LPS round


@pytest.mark.parametrize(
    ("method", "case"),
    [(method, case) for method in SERVERS for case in (Case(0, 1, 3), Case(2, 1, 2))]
    + [("fedyogi", EACH_ROUND), ("fedadam", Case(2, 2, 2))],
    ids=str,
)
def test_a_server_applies_the_cohorts_mean_update_by_its_optimiser(method: str, case: Case, tmp_path: Path) -> None:
    text, step = SERVERS[method]
    state: dict[str, Vector] = {}

    def averaged(x: Vector, there: list[int], number: int) -> Vector:
        return mean([trained(x, each, number)[0] for each in there], there)

    x, rounds = initial().double(), case.lps_rounds
    for number in range(0, GLOBAL_ROUNDS * rounds, rounds):
        parts, counts = [], []
        for home in case.servers if rounds > 1 else [[*range(DEVICES)]]:
            part, count = x, 0
            for lps_round in range(number, number + rounds):
                there = sorted(each for lps in case.servers for each in case.there(lps, lps_round) if each in home)
                moved = averaged(part.float(), there, lps_round).double()
                part = part + step(moved - part, state) if case == EACH_ROUND else moved
                count += sum(EXAMPLES[each] for each in there)
            parts.append(count * part)
            counts.append(count)
        following = torch.stack(parts).sum(0) / sum(counts)
        x = following if case == EACH_ROUND else x + step(following - x, state)
    assert_is(final(case, text, tmp_path / "run"), x.float())


def test_fedadam_is_fedavg_with_the_gps_optimiser_adam(tmp_path: Path) -> None:
    adam = "training.gps_optimiser={name: adam, learning_rate: 0.02, beta1: 0.7, beta2: 0.9, tau: 0.01}"
    case = Case(2, 1, 2)
    found = final(case, SERVERS["fedadam"][0], tmp_path / "method")
    other = final(case, "fedavg", tmp_path / "key", adam)
    assert all(np.array_equal(found[name], other[name]) for name in found)


@cases(lambda case: case.lps == 0 or case.lps_rounds == 1)
def test_feddyns_server_state_moves_by_the_share_that_takes_part(case: Case, tmp_path: Path) -> None:
    """Algorithm 1 of the paper, with h at the server."""
    alpha, everybody = 0.5, [*range(DEVICES)]
    own = [torch.zeros_like(initial()) for _ in everybody]
    x, h = initial(), torch.zeros_like(initial())
    for number in range(GLOBAL_ROUNDS * case.lps_rounds):
        there, found = sorted(each for home in case.servers for each in case.there(home, number)), []
        for each in there:

            def penalty(w: Vector, g: Vector = own[each], x: Vector = x) -> torch.Tensor:
                return alpha / 2 * ((w - x) ** 2).sum() - g @ w

            found.append(trained(x, each, number, penalty)[0])
            own[each] = own[each] - alpha * (found[-1] - x)
        h = h - alpha * share(there, everybody) * (mean(found, there) - x)
        x = mean(found, there) - h / alpha
    assert (h - mean(own, everybody)).abs().max() < 1e-6
    assert_is(final(case, f"{{name: feddyn, alpha: {alpha}}}", tmp_path / "run"), x)


@cases(lambda case: case.lps == 0 or case.lps_rounds == 1)
def test_feddcs_server_adds_the_mean_drift_of_all_devices(case: Case, tmp_path: Path) -> None:
    """The loop keeps the drift of each device, and takes the mean over all of them."""
    alpha, everybody = 0.5, [*range(DEVICES)]
    zero = torch.zeros_like(initial())
    drifts, own = [zero] * DEVICES, [zero] * DEVICES
    x, c = initial(), zero
    for number in range(GLOBAL_ROUNDS * case.lps_rounds):
        there, found = sorted(each for home in case.servers for each in case.there(home, number)), []
        changes = []
        for each in there:

            def penalty(w: Vector, h: Vector = drifts[each], tilt: Vector = c - own[each], x: Vector = x) -> Vector:
                return alpha / 2 * ((w + h - x) ** 2).sum() + tilt @ w

            y, steps = trained(x, each, number, penalty)
            found.append(y)
            changes.append((x - y) / (steps * RATE) - c)
            drifts[each], own[each] = drifts[each] + y - x, own[each] + changes[-1]
        x = mean(found, there) + mean(drifts, everybody)
        c = c + share(there, everybody) * mean(changes, there)
    model = final(case, f"{{name: feddc, alpha: {alpha}}}", tmp_path / "run")
    assert_is(model, x)
    assert np.abs(model["control"] - c.numpy()).max() < 2e-6
