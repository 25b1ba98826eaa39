"""Local training and evaluation against plain torch loops, and to the bit against themselves."""

import hashlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from device.evaluation import BATCH_EXAMPLES, evaluate
from device.stacked.training import Stacked
from device.steps import LocalSteps
from device.training import SLAB_BATCHES, OneByOne, TrainingJob, batch_orders, epoch_orders, limit_threads, train
from fedstrata.datasets import Examples
from fedstrata.errors import DataError, PluginError
from fedstrata.experiment import ModelSettings
from fedstrata.methods import Pull
from fedstrata.models import Layer, Model, build_model, from_module
from fedstrata.tasks import CLASSIFICATION
from tests.support.normed import Normed
from tests.support.torch_twins import cnn_module, with_weights
from tests.support.training_jobs import DIGITS, descend, examples, job, job_with, orders, trained_weights

Tensors = Mapping[str, torch.Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    limit_threads()


def mlp_module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


MODULES = {"mlp": mlp_module, "cnn": lambda: cnn_module(1, padding=2, flattened=64)}


def plain_loop(job: TrainingJob, module: nn.Module, *, rate: float, epochs: int) -> tuple[np.ndarray, float]:
    """The same training as a textbook loop: nn.Sequential, torch.optim.SGD, the same order of examples."""
    with_weights(module, job.model, job.start)
    sgd = job.training.optimiser
    optimiser = torch.optim.SGD(module.parameters(), lr=rate, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    inputs, labels = torch.tensor(job.examples.inputs), torch.tensor(job.examples.labels)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.nll_loss(nn.functional.log_softmax(module(inputs[batch]), 1), labels[batch])

    mean = descend(optimiser, orders(), loss, count=len(labels), epochs=epochs)
    return trained_weights(module), mean


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize(
    "optimiser",
    [
        {"learning_rate": 0.1},
        {"learning_rate": 0.1, "momentum": 0.9},
        {"learning_rate": 0.1, "weight_decay": 0.01},
        {"learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.02},
    ],
    ids="+".join,
)
def test_training_agrees_with_a_plain_torch_loop(name: str, optimiser: dict[str, float]) -> None:
    local = job(name, local_epochs=3, optimiser=optimiser)
    result = train(local)
    module = MODULES[name]()
    weights, loss = plain_loop(local, module, rate=0.1, epochs=3)
    assert np.abs(weights - local.start).max() > 1e-3
    np.testing.assert_allclose(result.weights, weights, rtol=0, atol=1e-6)
    assert result.train_loss == pytest.approx(loss, abs=1e-6)
    assert result.steps == 3 * 5  # 70 examples in batches of 16: four full ones and one of 6


@pytest.mark.parametrize("settings", [{"momentum": 0.5, "weight_decay": 0.02}, {"name": "adamw", "clip_norm": 0.3}])
def test_only_the_named_tensors_train_and_no_weight_decay_moves_the_others(settings: dict[str, Any]) -> None:
    head = ("fc2.weight", "fc2.bias")
    local = replace(job(local_epochs=2, optimiser={"learning_rate": 0.01, **settings}), only=head)
    views, module = local.model.layout.views(local.start), with_weights(mlp_module(), local.model, local.start)
    leaves = list(module.parameters())[2:]
    by_name = {"adamw": lambda: torch.optim.AdamW(leaves, lr=0.01, weight_decay=0.01)}
    plain = by_name.get(settings.get("name", ""), lambda: torch.optim.SGD(leaves, lr=0.01, **settings))()
    inputs, labels = torch.tensor(local.examples.inputs), torch.tensor(local.examples.labels)
    descend(
        plain,
        orders(),
        lambda batch: nn.functional.cross_entropy(module(inputs[batch]), labels[batch]),
        count=70,
        before_step=lambda: nn.utils.clip_grad_norm_(leaves, settings.get("clip_norm", torch.inf)),
    )
    found = local.model.layout.views(train(local).weights)
    assert Stacked().train([local, local])[1].weights.tobytes() == train(local).weights.tobytes()
    for name, parameter in zip(views, module.parameters(), strict=True):
        np.testing.assert_allclose(found[name], parameter.detach().numpy(), rtol=0, atol=1e-6)
        assert np.array_equal(found[name], views[name]) == (name not in head)


def test_each_of_the_named_tensors_has_its_own_part_of_what_stands_beside_the_weights() -> None:
    local = job(optimiser={"learning_rate": 0.1})
    mean = (local.start + local.start[::-1]).astype(np.float32)
    pulled = replace(local, only=("fc2.bias",), correct=Pull(5.0), beside=(mean,))
    moved = local.model.layout.views(train(pulled).weights)["fc2.bias"]
    assert np.abs(moved - mean[-10:]).max() < np.abs(local.start[-10:] - mean[-10:]).max() / 2


@pytest.mark.parametrize("only", [(), ("fc9.weight",), ("fc2.bias", "fc9.weight")])
def test_names_of_tensors_that_do_not_train_are_refused(only: tuple[str, ...]) -> None:
    with pytest.raises(PluginError, match="name some of the tensors that train: fc1"):
        replace(job(), only=only)


def test_statistics_that_are_not_named_keep_their_values() -> None:
    model = from_module(Normed, shared=["first", "norm"])
    local = replace(job(), model=model, start=model.initial(3))
    began = model.layout.views(local.start)
    for only in (model.shared, tuple(name for name in model.layout.names if name not in model.shared)):
        found = model.layout.views(train(replace(local, only=only)).weights)
        changed = {name for name in model.layout.names if not np.array_equal(found[name], began[name])}
        assert changed == {*only}


def test_training_follows_the_schedule_of_global_rounds() -> None:
    local = job(optimiser={"learning_rate": 0.2, "schedule": {"decay": 0.5, "every": 2}})
    weights, _ = plain_loop(local, mlp_module(), rate=0.1, epochs=1)  # global round 3: 0.2 · 0.5^(3 // 2)
    np.testing.assert_allclose(train(local).weights, weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("steps", "seen"), [(2, 32), (5, 70), (7, 70 + 32)])
def test_local_steps_go_on_into_the_next_epoch(steps: int, seen: int) -> None:
    counted: list[int] = []
    model = build_model(ModelSettings(), DIGITS)

    def counting(weights: Tensors, inputs: torch.Tensor) -> torch.Tensor:
        counted.append(len(inputs))
        return model.outputs(weights, inputs)

    result = train(replace(job(local_steps=steps), model=replace(model, outputs=counting)))
    assert result.steps == len(counted) == steps
    assert job(local_steps=steps).trained_examples == sum(counted)
    assert sum(counted) == seen


@pytest.mark.parametrize(
    ("last_batch", "count", "sizes"),
    [
        ("kept", 33, [16, 16, 1]),
        ("joined", 33, [16, 17]),
        ("dropped", 33, [16, 16]),
        ("joined", 34, [16, 16, 2]),
        ("dropped", 34, [16, 16]),
        ("joined", 32, [16, 16]),
        ("dropped", 32, [16, 16]),
        ("joined", 17, [17]),
        *((last_batch, count, [count]) for last_batch in ("joined", "dropped") for count in (1, 5)),
    ],
)
def test_a_small_last_batch_is_kept_joined_or_dropped(last_batch: str, count: int, sizes: list[int]) -> None:
    local = job(count=count, local_epochs=2, last_batch=last_batch)
    orders = list(batch_orders(local))
    assert [len(order) for order in orders] == sizes * 2
    assert np.concatenate(orders[: len(sizes)]).tolist() == next(epoch_orders(local))[: sum(sizes)].tolist()
    assert (local.steps, local.trained_examples) == (len(orders), 2 * sum(sizes))
    assert local.training.trained_examples(count) == replace(local, epochs=2).trained_examples == 2 * sum(sizes)
    some = job(count=count, local_steps=3, last_batch=last_batch)
    assert some.trained_examples == sum(len(order) for order in batch_orders(some))
    if last_batch != "kept":
        assert [each.weights.tobytes() for each in Stacked().train([local] * 2)] == [train(local).weights.tobytes()] * 2


def test_every_example_is_seen_once_an_epoch_also_when_gathered_in_slabs() -> None:
    count = 2 * SLAB_BATCHES * 16 + 21
    numbered = Examples(inputs=np.arange(count, dtype=np.float32).reshape(count, 1), labels=np.zeros(count, np.int64))
    seen: list[float] = []

    def noting(weights: Tensors, inputs: torch.Tensor) -> torch.Tensor:
        seen.extend(inputs[:, 0].tolist())
        return inputs * weights["fc1.weight"][:, 0] * 0 + weights["fc1.bias"]

    model = Model.of_layers([Layer(name="fc1", shape=(2, 1))], shared=[], outputs=noting)
    local = replace(job(local_epochs=2), model=model, start=model.initial(0), examples=numbered)
    train(local)
    rng = np.random.default_rng([5, 2, 7])
    assert seen == [*rng.permutation(count).tolist(), *rng.permutation(count).tolist()]


def test_a_model_gets_further_inputs_by_name_in_the_order_of_the_batch() -> None:
    numbers = np.arange(20, dtype=np.float32)[:, None]
    pairs = Examples(inputs=numbers, labels=np.zeros(20, np.int64), more={"doubled": 2 * numbers})
    seen: list[torch.Tensor] = []

    def noting(weights: Tensors, inputs: torch.Tensor, doubled: torch.Tensor) -> torch.Tensor:
        seen.append(doubled - 2 * inputs)
        return inputs * weights["fc1.weight"][:, 0] + weights["fc1.bias"]

    model = Model.of_layers([Layer(name="fc1", shape=(2, 1))], shared=[], outputs=noting)
    train(replace(job(local_epochs=1), model=model, start=model.initial(0), examples=pairs, held_out=pairs))
    assert [len(each) for each in seen] == [20, 16, 4]
    assert not torch.cat(seen).any()


def test_a_step_of_one_dense_layer_can_be_redone_by_hand() -> None:
    def outputs(weights: Tensors, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ weights["fc1.weight"].T + weights["fc1.bias"]

    model = Model.of_layers([Layer(name="fc1", shape=(2, 1))], shared=[], outputs=outputs)
    one = Examples(inputs=np.float32([[2]]), labels=np.int64([0]))
    result = train(
        replace(
            job(local_steps=1, optimiser={"learning_rate": 1.0}),
            model=model,
            start=np.zeros(4, np.float32),
            examples=one,
        )
    )
    # softmax (½, ½) − one-hot (1, 0) = (−½, ½); times the input 2 for the weight
    np.testing.assert_array_equal(result.weights, np.float32([1, -1, 0.5, -0.5]))
    assert result.train_loss == pytest.approx(np.log(2))


def test_training_changes_neither_what_it_received_nor_its_examples() -> None:
    local = job(local_epochs=2, optimiser={"momentum": 0.9})
    received, inputs = local.start.copy(), local.examples.inputs.copy()
    first, second = train(local), train(local)
    np.testing.assert_array_equal(local.start, received)
    np.testing.assert_array_equal(local.examples.inputs, inputs)
    assert not np.shares_memory(first.weights, second.weights)


def sha256(local: TrainingJob) -> str:
    return hashlib.sha256(train(local).weights.tobytes()).hexdigest()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_same_job_gives_the_same_bits_alone_in_company_and_in_a_thread(name: str) -> None:
    local = job(name, local_epochs=2, optimiser={"momentum": 0.9, "weight_decay": 0.01})
    alone = train(local).weights
    torch.manual_seed(99)
    torch.rand(13)
    others = [replace(local, device_index=index, examples=examples(33, seed=index)) for index in (0, 1)]
    in_company = OneByOne().train([others[0], local, others[1]])
    in_thread: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: in_thread.append(train(local).weights))
    thread.start()
    thread.join()
    assert in_company[1].weights.tobytes() == alone.tobytes() == in_thread[0].tobytes()
    assert in_company[0].weights.tobytes() != in_company[2].weights.tobytes()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_bits_do_not_depend_on_where_arrays_lie_in_memory(name: str) -> None:
    local = job(name)
    shifted = np.empty(local.start.size + 1, np.float32)[1:]
    shifted[...] = local.start
    inputs = np.empty(local.examples.inputs.size + 3, np.float32)[3:].reshape(local.examples.inputs.shape)
    inputs[...] = local.examples.inputs
    moved = replace(local, start=shifted, examples=Examples(inputs=inputs, labels=local.examples.labels))
    assert sha256(moved) == sha256(local)
    assert evaluate(local.model, shifted, moved.examples, CLASSIFICATION) == evaluate(
        local.model, local.start, local.examples, CLASSIFICATION
    )


def test_another_process_gives_the_same_bits_and_loads_nothing_of_torchs_compiler() -> None:
    """The compiler would cost each device process more than torch itself does."""
    code = (
        "import hashlib, sys\n"
        "from device.training import limit_threads, train\n"
        "from tests.support.training_jobs import job\n"
        "limit_threads()\n"
        "for each in (job('mlp'), job('cnn', optimiser={'momentum': 0.9})):\n"
        "    print(hashlib.sha256(train(each).weights.tobytes()).hexdigest())\n"
        "print('torch._inductor' in sys.modules)\n"
    )
    folder = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [sha256(job("mlp")), sha256(job("cnn", optimiser={"momentum": 0.9})), "False"]


def test_pixels_train_as_the_examples_they_stand_for() -> None:
    values = np.random.default_rng(1).integers(0, 256, (70, 1, 8, 8), dtype=np.uint8)
    pixels = Examples(inputs=values, labels=examples(70).labels)
    scaled = Examples(inputs=pixels.inputs, labels=pixels.labels)
    local = job()
    assert sha256(replace(local, examples=pixels)) == sha256(replace(local, examples=scaled))


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_targets_are_learnt_in_place_of_labels_beside_jobs_without(name: str) -> None:
    plain = job(name, local_epochs=2)
    logits = np.random.default_rng(1).normal(size=(70, 10))
    soft = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    taught, alone = Stacked().train([replace(plain, targets=soft), plain])
    module = with_weights(MODULES[name](), plain.model, plain.start)
    inputs, targets = torch.tensor(plain.examples.inputs), torch.tensor(soft)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return -(targets[batch] * module(inputs[batch]).log_softmax(1)).sum(1).mean()

    descend(torch.optim.SGD(module.parameters(), lr=0.05), orders(), loss, count=70)
    assert np.abs(taught.weights - trained_weights(module)).max() < 1e-5
    (same,) = Stacked().train([plain])
    assert alone.weights.tobytes() == same.weights.tobytes() != taught.weights.tobytes()


def test_targets_of_other_examples_are_refused() -> None:
    with pytest.raises(PluginError, match=r"targets have shape \(3, 10\); give one row for each of 70 examples"):
        replace(job(), targets=np.zeros((3, 10), np.float32))


def test_a_job_without_examples_is_refused() -> None:
    with pytest.raises(DataError, match="device 2 has no examples"):
        job(count=0)


def test_weights_of_another_shape_end_the_process_of_the_code_that_gave_them() -> None:
    with pytest.raises(PluginError, match=r"shape \(3,\); expected .*\(2410,\)"):
        replace(job(), start=np.zeros(3, np.float32))


def identity_model() -> Model:
    def outputs(weights: Tensors, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * weights["scale"]

    model = build_model(ModelSettings(), DIGITS)
    return replace(model, layout=model.layout.of({"scale": (1,)}), shared=(), outputs=outputs)


def test_evaluation_can_be_redone_by_hand() -> None:
    inputs = np.log(np.float32([[1, 3], [1, 1], [4, 1], [1, 9]]))  # logits: label probabilities up to a factor
    batch = Examples(inputs=inputs, labels=np.int64([1, 1, 1, 1]))
    loss_sum, (correct,), num_examples = evaluate(identity_model(), np.ones(1, np.float32), batch, CLASSIFICATION)
    # probabilities of label 1: 3/4, 1/2, 1/5, 9/10; among equals the first label wins
    assert loss_sum == pytest.approx(-np.log(3 / 4 * 1 / 2 * 1 / 5 * 9 / 10), abs=1e-6)
    assert (correct, num_examples) == (2, 4)


def test_evaluation_in_batches_counts_every_example_once() -> None:
    model = build_model(ModelSettings(), DIGITS)
    many = examples(2 * BATCH_EXAMPLES + 3)
    weights = model.initial(0)
    parts = [many.take(np.arange(start, min(start + 100, len(many)))) for start in range(0, len(many), 100)]
    by_parts = [evaluate(model, weights, part, CLASSIFICATION) for part in parts]
    whole = evaluate(model, weights, many, CLASSIFICATION)
    assert whole.num_examples == sum(part.num_examples for part in by_parts) == 2 * BATCH_EXAMPLES + 3
    assert whole.sums == (sum(part.sums[0] for part in by_parts),)
    assert whole.loss_sum == pytest.approx(sum(part.loss_sum for part in by_parts), rel=1e-6)
    assert evaluate(model, weights, many, CLASSIFICATION) == whole


def test_no_examples_evaluate_to_zeros() -> None:
    assert evaluate(identity_model(), np.ones(1, np.float32), examples(0), CLASSIFICATION) == (0.0, (0.0,), 0)


def test_limiting_threads_twice_leaves_one() -> None:
    limit_threads()
    limit_threads()
    assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (1, 1)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_an_own_module_trains_as_documented_in_plain_torch() -> None:
    """First weights, batch order, and the content of a batch, as docs/seeds.md and docs/own-code.md say."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    seed, device, lps_round = 5, 2, 7
    model = from_module(make).of_run(seed)
    data = examples(50)
    local = job_with(
        model, {"local_epochs": 2, "optimiser": {"learning_rate": 0.1}},
        start=model.initial(seed), examples=data, seed=seed, device_index=device, lps_round=lps_round,
    )  # fmt: skip
    torch.manual_seed(seed)
    module = make()
    assert local.start.tobytes() == trained_weights(module).tobytes()
    rng, steps = np.random.default_rng([seed, device, lps_round]), LocalSteps(local).batches()
    sgd = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(2):
        order = rng.permutation(50)
        for start in range(0, 50, 16):
            inputs, more, targets = next(steps)
            batch = order[start : start + 16]
            assert (inputs.tolist(), more) == (data.inputs[batch].tolist(), {})
            assert targets.tolist() == data.labels[batch].tolist()
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs), targets).backward()
            sgd.step()
    np.testing.assert_allclose(train(local).weights, trained_weights(module), rtol=0, atol=1e-6)
