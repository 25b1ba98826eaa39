"""Models of torch modules: both modes, draws that seed, device and round address, and parameters that do not train."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from device.evaluation import BATCH_EXAMPLES, evaluate, outputs
from device.training import DROPOUT, TrainingJob, limit_threads, train
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.models import Model, from_module
from fedstrata.tasks import CLASSIFICATION
from tests.support.training_jobs import DEVICE, LPS_ROUND, SEED, descend, examples, job_with, orders, trained_weights

RATE, MOMENTUM = 0.2, 0.5


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(dropout(self.first(inputs.flatten(1)).relu(), 0.5, self.training))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.LSTM(8, 6, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(6, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.rows(inputs.reshape(-1, 8, 8))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), nn.Linear(8, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.reshape(-1, 8, 8)
        return self.last(self.rows(rows, rows, rows)[0].mean(1))


class Encoder(nn.Module):
    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.rows, self.last = nn.TransformerEncoderLayer(8, 2, 16, rate, batch_first=True), nn.Linear(8, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.rows(inputs.reshape(-1, 8, 8)).mean(1))


class Half(nn.Module):
    """The first layer does not train, nor does a vector beside it; the last begins as rows of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16).requires_grad_(False), nn.Linear(16, 10)
        self.register_buffer("scales", torch.rand(16), persistent=False)
        with torch.no_grad():
            self.last.bias.copy_(self.first.bias[:10])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(inputs.flatten(1)).tanh() * self.scales)


class Spare(Functional):
    """A layer takes no part in forward: its gradient is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 4)


class Detached(Functional):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs).detach()


DRAWING = [Functional, Recurrent, Attention, Encoder]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    limit_threads()


def job(model: Model, **changes: object) -> TrainingJob:
    """Two epochs of four batches, the last of them smaller."""
    training = {"local_epochs": 2, "optimiser": {"learning_rate": RATE, "momentum": MOMENTUM}}
    return job_with(model, training, **{"start": model.initial(SEED), **changes})


def plainly_trained(make: Callable[[], nn.Module]) -> tuple[nn.Module, float]:
    """The same by torch alone: a module under the seed, its own optimiser, and a seed for each step's draws."""
    torch.manual_seed(SEED)
    module = make()
    sgd = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], RATE, MOMENTUM)
    seeds = np.random.default_rng([SEED, DEVICE, LPS_ROUND, DROPOUT])

    def loss(batch: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(int(seeds.integers(1 << 63)))
        return cross_entropy(module(torch.tensor(examples().inputs)[batch]), torch.tensor(examples().labels)[batch])

    return module, descend(sgd, orders(), loss)


def test_a_loss_that_depends_on_no_weight_is_refused_in_one_line() -> None:
    with pytest.raises(PluginError, match="the loss depends on no weight that trains; remove detach and no_grad"):
        train(job(from_module(Detached, shared=[])))


# --- draws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*DRAWING, Half, Spare])
def test_a_module_trains_and_is_measured_as_by_plain_pytorch(make: Callable[[], nn.Module]) -> None:
    model = from_module(make, shared=[]).of_run(SEED)
    found = train(job(model))
    module, loss = plainly_trained(make)
    assert found.weights.tobytes() == trained_weights(module).tobytes()
    assert found.train_loss == pytest.approx(loss, abs=1e-6)
    with torch.no_grad():
        logits = module.eval()(torch.tensor(examples().inputs))
    measured = evaluate(model, found.weights, examples(), CLASSIFICATION)
    assert measured.sums == (int((logits.argmax(1) == torch.tensor(examples().labels)).sum()),)
    assert measured.loss_sum == pytest.approx(
        float(cross_entropy(logits, torch.tensor(examples().labels), reduction="sum")), abs=1e-4
    )


@pytest.mark.parametrize("make", DRAWING)
def test_the_same_job_draws_the_same_whoever_trains_between_and_another_job_draws_otherwise(
    make: Callable[[], nn.Module],
) -> None:
    model = from_module(make, shared=[])
    first = train(job(model))
    torch.manual_seed(1)  # whatever else has drawn in this process
    before = torch.get_rng_state()
    train(job(model, device_index=9))
    assert train(job(model)).weights.tobytes() == first.weights.tobytes()
    assert torch.equal(torch.get_rng_state(), before)
    rng = np.random.default_rng([SEED, DEVICE, LPS_ROUND, DROPOUT])
    weights, inputs = views(model), torch.tensor(examples().inputs)
    drawn = model.outputs_in_training(rng)
    assert not torch.equal(drawn(weights, inputs), drawn(weights, inputs))


def views(model: Model) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(view) for name, view in model.layout.views(model.initial(SEED)).items()}


def test_without_draws_training_and_measuring_are_one() -> None:
    inputs = torch.tensor(examples().inputs)
    for model in (from_module(lambda: Encoder(0.0), shared=[]), from_module(no_dropout, shared=[])):
        trained = model.outputs_in_training(np.random.default_rng(0))(views(model), inputs)
        torch.testing.assert_close(trained, model.outputs(views(model), inputs), rtol=0, atol=1e-6)


def no_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(p=0))


def test_a_module_that_draws_where_it_is_measured_is_measured_by_the_same_draws_each_time() -> None:
    class Always(Functional):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.last(dropout(self.first(inputs.flatten(1)).relu()))  # training=True, whatever the mode

    model = from_module(Always, shared=[])
    weights = model.initial(SEED)
    assert evaluate(model, weights, examples(), CLASSIFICATION) == evaluate(model, weights, examples(), CLASSIFICATION)


def test_threads_that_train_and_measure_with_one_module_get_what_each_gets_alone() -> None:
    model = from_module(Functional, shared=[])
    jobs = [job(model, device_index=device, start=model.initial(device)) for device in range(4)]
    alone = [(train(each).weights.tobytes(), evaluate(model, each.start, examples(), CLASSIFICATION)) for each in jobs]

    def together(each: TrainingJob) -> tuple[bytes, object]:
        return train(each).weights.tobytes(), evaluate(model, each.start, examples(), CLASSIFICATION)

    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            assert list(threads.map(together, jobs)) == alone


def test_outputs_of_many_examples_are_those_of_the_module_in_eval_mode() -> None:
    model = from_module(Functional, shared=[])
    inputs = examples(BATCH_EXAMPLES + 2).inputs
    torch.manual_seed(SEED)
    module = Functional().eval()
    with torch.no_grad():
        expected = module(torch.tensor(inputs)).numpy()
    np.testing.assert_allclose(outputs(model, model.initial(SEED), inputs), expected, rtol=0, atol=1e-6)


# --- what does not train -------------------------------------------------------------------------------------------


def test_initial_weights_do_not_depend_on_the_number_of_threads() -> None:
    def factory() -> nn.Module:
        layer = nn.Linear(900, 700)
        nn.init.orthogonal_(layer.weight)
        return layer

    before, drawn = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            drawn.append(from_module(factory, None).initial(0))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*drawn)


def test_what_does_not_train_is_no_tensor_of_the_model_and_comes_from_the_runs_seed() -> None:
    model = from_module(Half, shared=["last"])
    assert {tensor.name: tensor.shape for tensor in model.layout.tensors} == {
        "last.weight": (10, 16),
        "last.bias": (10,),
    }
    assert model.shared == ("last.weight", "last.bias")
    inputs = torch.tensor(examples().inputs)
    for seed in (SEED, 8):
        torch.manual_seed(seed)
        module = Half()
        of_run = model.of_run(seed)
        weights = {"last.weight": module.last.weight.detach(), "last.bias": module.last.bias.detach()}
        assert of_run.outputs(weights, inputs).tolist() == module(inputs).tolist()
        assert of_run.initial(seed).tobytes() == trained_weights(module).tobytes()
    assert (
        model.of_run(SEED).outputs(views(model), inputs).tolist()
        != model.of_run(8).outputs(views(model), inputs).tolist()
    )


def test_a_module_that_loads_its_weights_begins_with_them_and_nothing_is_warned_of(
    recwarn: pytest.WarningsRecorder,
) -> None:
    state = Functional().state_dict()

    class Loaded(Functional):
        def __init__(self) -> None:
            super().__init__()
            self.load_state_dict(state)

    assert from_module(Loaded).initial(SEED).tobytes() == trained_weights(Loaded()).tobytes()
    assert not recwarn.list


def test_a_module_that_trains_nothing_is_refused() -> None:
    with pytest.raises(ExperimentError, match="the module has no parameter to train: all have requires_grad False"):
        from_module(lambda: nn.Linear(4, 4).requires_grad_(False), shared=[])
