"""Optimisers of local training: torch's own to the bit, their state from round to round, clipping and schedules."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from device.optimisers import learning_rate
from device.stacked.training import Stacked
from device.steps import LocalSteps
from device.training import LocalResult, OneByOne, TrainingJob, limit_threads, train
from fedstrata.datasets import Examples
from fedstrata.errors import ExperimentError
from fedstrata.experiment import ModelSettings, TrainingSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Pull
from fedstrata.methods.gradients import gradient_at
from fedstrata.models import build_model, from_module
from tests.support.torch_twins import with_weights
from tests.support.training_jobs import DEVICE, DIGITS, SEED, descend, examples, job_with, trained_weights

MODEL, DATA = build_model(ModelSettings(name="mlp"), DIGITS), examples()
Options = Mapping[str, Any]
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
TORCHS: dict[str, tuple[Options, Make]] = {
    "nesterov": (
        {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        lambda leaves: torch.optim.SGD(leaves, 0.1, 0.9, nesterov=True, weight_decay=0.01, foreach=False),
    ),
    "momentum": (
        {"name": "sgd", "learning_rate": 0.1, "momentum": 0.5},
        lambda leaves: torch.optim.SGD(leaves, 0.1, 0.5, foreach=False),
    ),
    "adam": (
        {"name": "adam", "betas": [0.8, 0.99], "weight_decay": 0.1},
        lambda leaves: torch.optim.Adam(leaves, 0.001, (0.8, 0.99), weight_decay=0.1, foreach=False),
    ),
    "adamw": ({"name": "adamw", "learning_rate": 0.01}, lambda leaves: torch.optim.AdamW(leaves, 0.01, foreach=False)),
    "rmsprop": ({"name": "rmsprop"}, lambda leaves: torch.optim.RMSprop(leaves, foreach=False)),
    "rmsprop with momentum": (
        {"name": "rmsprop", "momentum": 0.9, "alpha": 0.9},
        lambda leaves: torch.optim.RMSprop(leaves, 0.01, 0.9, momentum=0.9, foreach=False),
    ),
    "adagrad": ({"name": "adagrad"}, lambda leaves: torch.optim.Adagrad(leaves, foreach=False)),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    limit_threads()


def job(options: Options, lps_round: int = 0, before: LocalResult | None = None) -> TrainingJob:
    """Two epochs of four batches, from the initial weights or after an earlier training."""
    found = job_with(MODEL, {"local_epochs": 2, "optimiser": options}, lps_round=lps_round)
    return found if before is None else replace(found, start=before.weights, optimiser_state=before.optimiser_state)


def plainly(make: Make, rounds: int = 1, most: float | None = None) -> np.ndarray:
    """The same by torch's class, which goes on through all rounds."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with_weights(module, MODEL, MODEL.initial(3))
    optimiser, inputs, labels = make(list(module.parameters())), *map(torch.tensor, (DATA.inputs, DATA.labels))

    def clip() -> None:
        if most is not None:
            nn.utils.clip_grad_norm_(module.parameters(), most, foreach=False)

    for lps_round in range(rounds):
        rng = np.random.default_rng([SEED, DEVICE, lps_round])
        descend(optimiser, rng, lambda batch: cross_entropy(module(inputs[batch]), labels[batch]), before_step=clip)
    return trained_weights(module)


@pytest.mark.parametrize("name", TORCHS)
def test_an_optimiser_is_torchs_to_the_bit(name: str) -> None:
    options, make = TORCHS[name]
    assert train(job(options)).weights.tobytes() == plainly(make).tobytes()


@pytest.mark.parametrize("name", TORCHS)
def test_a_kept_state_goes_on_in_the_next_round_and_a_fresh_one_does_not(name: str) -> None:
    options, make = TORCHS[name]
    kept, fresh = {**options, "state": "kept"}, {**options, "state": "fresh"}
    second = train(job(kept, lps_round=1, before=train(job(kept))))
    assert second.weights.tobytes() == plainly(make, rounds=2).tobytes()
    anew = train(job(fresh, lps_round=1, before=train(job(fresh))))
    assert not anew.optimiser_state
    assert anew.weights.tobytes() != second.weights.tobytes()


def test_the_kept_state_of_adam_is_two_moments_and_the_number_of_steps() -> None:
    state = train(job({"name": "adam", "state": "kept"})).optimiser_state
    assert {name: vector.shape for name, vector in state.items()} == {
        "exp_avgs": (MODEL.layout.size,),
        "exp_avg_sqs": (MODEL.layout.size,),
        "steps": (1,),
    }
    assert state["steps"].tolist() == [8]


@pytest.mark.parametrize("name", ["nesterov", "adamw"])
def test_gradients_are_clipped_as_by_torch(name: str) -> None:
    options, make = TORCHS[name]
    assert train(job({**options, "clip_norm": 0.5})).weights.tobytes() == plainly(make, most=0.5).tobytes()


def test_other_optimisers_than_plain_sgd_train_dense_networks_one_by_one() -> None:
    jobs = [job(options) for options, _ in TORCHS.values()] + [job({"learning_rate": 0.1, "clip_norm": 1.0})]
    stacked, alone = Stacked().train(jobs), OneByOne().train(jobs)
    same = [one.weights.tobytes() == other.weights.tobytes() for one, other in zip(stacked, alone, strict=True)]
    assert same == [True, False, *[True] * (len(jobs) - 2)]  # "momentum" alone is stacked, within rounding


def rates(schedule: Options, rounds: int = 5) -> list[float]:
    training = TrainingSettings.model_validate(
        {"global_rounds": rounds, "optimiser": {"learning_rate": 8.0, "schedule": schedule}}
    )
    return [round(learning_rate(training, number), 6) for number in range(rounds)]


def test_schedules_by_hand() -> None:
    assert rates({"decay": 0.5, "every": 2}) == [8.0, 8.0, 4.0, 4.0, 2.0]
    assert rates({"name": "cosine"}, rounds=4) == [8.0, 6.828427, 4.0, 1.171573]  # 4 + 4 cos(π g / 4)
    assert rates({"name": "cosine", "floor": 0.5}, rounds=2) == [8.0, 6.0]
    assert rates({"warm_up_rounds": 3}) == [2.0, 4.0, 6.0, 8.0, 8.0]
    assert rates({"name": "cosine", "warm_up_rounds": 1}, rounds=3) == [4.0, 8.0, 4.0]
    assert rates({"decay": 0.5, "warm_up_rounds": 1}, rounds=4) == [4.0, 8.0, 4.0, 2.0]


FILE = "name: x\npartition: {kind: iid, devices: 4, examples_per_device: 50}\nmethod: fedavg\n"


@pytest.mark.parametrize(
    ("optimiser", "message"),
    [
        ("{name: adam, momentum: 0.9}", r"training.optimiser.momentum: not a key of name adam; "),
        ("{betas: [0.9, 0.99]}", r"training.optimiser.betas: not a key of name sgd; "),
        ("{nesterov: true}", r"nesterov: true has no effect with momentum 0; set momentum"),
        ("{state: kept}", r"state: kept has no effect with momentum 0; set momentum"),
        ("{name: adam, betas: [1.0, 0.9]}", r"training.optimiser.betas.0: must be below 1, not 1.0"),
        ("{schedule: {name: cosine, decay: 0.5}}", r"training.optimiser.schedule.decay: not a key of name cosine; "),
    ],
)
def test_a_wrong_optimiser_is_refused_in_one_line(optimiser: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=message) as refused:
        parse_experiment(f"{FILE}training: {{optimiser: {optimiser}}}\n")
    assert "\n" not in str(refused.value)


def test_a_file_without_a_name_means_sgd() -> None:
    written = "training: {optimiser: {learning_rate: 0.2, schedule: {decay: 0.5}}}\n"
    named = "training: {optimiser: {name: sgd, learning_rate: 0.2, schedule: {name: step, decay: 0.5}}}\n"
    assert parse_experiment(FILE + written).digest == parse_experiment(FILE + named).digest


class Added(nn.Module):
    """Two offsets that are added, so that autograd gives both the same gradient, in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)
        self.first, self.second = nn.Parameter(torch.zeros(10)), nn.Parameter(torch.ones(10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.out(inputs.flatten(1)) + (self.first + self.second)
        return outputs


@pytest.mark.parametrize("name", TORCHS)
def test_tensors_that_share_a_gradient_train_as_in_torch(name: str) -> None:
    options, make = TORCHS[name]
    shared = job_with(from_module(Added), {"local_epochs": 2, "optimiser": options})
    module = Added()
    with_weights(module, shared.model, shared.start)
    inputs, labels = map(torch.tensor, (DATA.inputs, DATA.labels))
    rng = np.random.default_rng([SEED, DEVICE, shared.lps_round])
    descend(make(list(module.parameters())), rng, lambda batch: cross_entropy(module(inputs[batch]), labels[batch]))
    assert train(shared).weights.tobytes() == trained_weights(module).tobytes()


class Words(nn.Module):
    """An embedding of 17 words, of which most occur several times in a batch."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(17, 8, sparse=sparse)
        self.out = nn.Linear(8, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.out(self.table(inputs).mean(1))
        return outputs


def words(options: Options, *, sparse: bool, corrected: bool = False) -> TrainingJob:
    rng = np.random.default_rng(0)
    texts = Examples(inputs=rng.integers(17, size=(50, 12)), labels=rng.integers(10, size=50))
    found = job_with(
        from_module(partial(Words, sparse=sparse)), {"local_epochs": 2, "optimiser": options}, examples=texts
    )
    return replace(found, correct=Pull(0.1), beside=(found.start,)) if corrected else found


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's Adagrad
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        *(options for options, _ in TORCHS.values()),
        {"learning_rate": 0.1},
        {"weight_decay": 0.01},
        {"clip_norm": 0.5},
        {"name": "adagrad", "weight_decay": 0.1},
    ],
)
def test_sparse_gradients_train_like_dense_ones(options: Options, corrected: bool) -> None:
    sparse, dense = (train(words(options, sparse=each, corrected=corrected)).weights for each in (True, False))
    assert np.abs(sparse - dense).max() < 1e-5


def test_sparse_gradients_train_by_sgd_as_in_torch() -> None:
    job = words({"learning_rate": 0.1}, sparse=True)
    module = Words(sparse=True)
    with_weights(module, job.model, job.start)
    sgd = torch.optim.SGD(module.parameters(), 0.1, foreach=False)
    inputs, labels = torch.tensor(job.examples.inputs), torch.tensor(job.examples.labels)
    rng = np.random.default_rng([SEED, DEVICE, job.lps_round])
    descend(sgd, rng, lambda batch: cross_entropy(module(inputs[batch]), labels[batch]))
    assert train(job).weights.tobytes() == trained_weights(module).tobytes()


def test_steps_of_a_method_and_questions_take_sparse_gradients() -> None:
    sparse, dense = (words({}, sparse=each) for each in (True, False))
    first, second = (LocalSteps(each) for each in (sparse, dense))
    gradients = [steps.gradient(steps.weights, next(steps.batches())) for steps in (first, second)]
    assert torch.allclose(*gradients, atol=1e-6)
    asked = [gradient_at(each.model, each.start, each.examples, np.arange(50)) for each in (sparse, dense)]
    assert np.allclose(*asked, atol=1e-6)
