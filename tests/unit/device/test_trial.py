"""The trial of a user's own model before a device is ready: outputs of a wrong shape are refused in one line."""

import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout
from torch.nn.utils.parametrizations import spectral_norm

from device.pace import data_here
from device.repeat import train_twice, try_experiment
from device.trial import try_out, try_task
from emulator.commands.main import execute
from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment, ModelSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.models import Layer, Model, build_model, from_module
from fedstrata.tasks import CLASSIFICATION, Classification, TaskSettings
from tests.support.training_jobs import examples

DATASET = Dataset(train=examples(), test=examples(), num_classes=10)
OWN = ModelSettings(name="own:net")


def classes(number: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, number))


def after(change: Callable[[torch.Tensor], object]) -> Callable[[], nn.Module]:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, inputs: torch.Tensor) -> object:
            return change(self.linear(inputs.flatten(1)))

    return Changed


OWN_GENERATOR = torch.Generator().manual_seed(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (classes(7), r"model own:net gives torch.float32 of shape \(3, 7\) for 3 inputs; .* of shape \(3, 10\)"),
        (after(lambda logits: logits.sum(1)), r"gives torch.float32 of shape \(3,\) for 3 inputs"),
        (after(lambda logits: logits.argmax(1)), r"gives torch.int64 of shape \(3,\)"),
        (after(lambda logits: logits.to_sparse()), r"gives torch.sparse_coo and torch.float32 of shape \(3, 10\)"),
        (after(lambda _: sys.exit(3)), r"the module fails on inputs of shape .* with SystemExit: 3"),
        (after(lambda logits: (logits, None)), "gives a tuple for 3 inputs"),
        (after(lambda logits: logits[:, 12]), r"net: the module fails on inputs of shape \(3, 1, 8, 8\) with Index"),
        (after(lambda logits: logits * random.random()), "or draws from its own generator, NumPy's or Python's"),
        (after(lambda logits: logits + 0 * np.random.rand()), "NumPy's or Python's random"),
        (after(lambda logits: logits + torch.rand(1, generator=OWN_GENERATOR)), "other outputs for the same weights"),
    ],
    ids=[
        "classes",
        "a vector",
        "labels",
        "sparse",
        "an exit",
        "a tuple",
        "an error",
        "random",
        "numpy",
        "own generator",
    ],
)
def test_an_own_model_with_other_outputs_than_wanted_is_refused_in_one_line(
    make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(PluginError, match=message) as refused:
        try_out(OWN, from_module(make, shared=[]), DATASET, seed=1, task=CLASSIFICATION)
    assert "\n" not in str(refused.value)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(dropout(inputs.flatten(1), 0.5, self.training))


def test_a_model_that_draws_from_torchs_generator_passes_as_does_one_on_two_examples() -> None:
    try_out(OWN, from_module(Dropping, shared=[]), DATASET, seed=1, task=CLASSIFICATION)
    try_out(
        OWN,
        from_module(Dropping, shared=[]),
        Dataset(train=examples(2), test=examples(), num_classes=10),
        seed=1,
        task=CLASSIFICATION,
    )


def test_a_model_that_uses_statistics_in_training_passes() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(64, 10)))  # changes its buffers, then uses them

    try_out(OWN, from_module(make), DATASET, seed=1, task=CLASSIFICATION)


def test_a_model_of_layers_that_fails_is_named_with_its_line() -> None:
    def outputs(weights: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1) @ weights["fc.weight"].T

    model = Model.of_layers([Layer(name="head", shape=(10, 64))], shared=[], outputs=outputs)
    with pytest.raises(PluginError, match=r"8\): KeyError: 'fc.weight' \(.*test_trial.py, line \d+\)$"):
        try_out(OWN, model, DATASET, seed=1, task=CLASSIFICATION)


def test_a_built_in_model_takes_one_input_of_float32() -> None:
    masked = Examples(
        inputs=np.ones((2, 3), np.int64), labels=np.array([0, 1]), more={"mask": np.ones((2, 3), np.float32)}
    )
    data, settings = Dataset(train=masked, test=masked, num_classes=2), ModelSettings(name="mlp")
    with pytest.raises(
        ExperimentError, match="the data have a further input mask and inputs of whole numbers; store f"
    ):
        try_out(settings, build_model(settings, data.info), data, seed=1, task=CLASSIFICATION)


class Wrong(Classification):
    """Classification with one thing wrong."""

    def __init__(self, wrong: str) -> None:
        super().__init__(TaskSettings(name="own:Wrong"))
        self.wrong = wrong

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.wrong == "fails":
            raise ValueError("no\nloss")
        losses = super().loss(outputs, targets)
        if self.wrong == "numbers":
            return losses.tolist()  # type: ignore[no-any-return]
        return losses[:1] if self.wrong == "loss" else losses

    def measure(self, outputs: torch.Tensor, targets: torch.Tensor, examples: Examples) -> tuple[float, ...]:
        return (1.0, 2.0) if self.wrong == "sums" else (1.0,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "fails",
            r"own:Wrong failed: ValueError: no loss; tried on 3 examples with targets torch.int64 of shape \(3,\)",
        ),
        ("loss", r"task own:Wrong gives losses of shape \(1,\) and a mean loss of shape \(\) for 3 examples"),
        ("numbers", "failed: AttributeError: 'list' object has no attribute 'shape'; tried on 3 examples with"),
        ("sums", "task own:Wrong measures 2 numbers, but declares 1 sums"),
    ],
)
def test_a_task_that_gives_something_else_is_named_before_the_run(wrong: str, message: str) -> None:
    model = build_model(ModelSettings(name="mlp"), DATASET.info)
    try_task(Wrong(""), model, DATASET, seed=1)
    with pytest.raises(PluginError, match=message) as refused:
        try_task(Wrong(wrong), model, DATASET, seed=1)
    assert "\n" not in str(refused.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules; none of another test's is loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("twice", "rows"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


TWICE = """
name: twice
partition: {kind: iid, devices: 2, examples_per_device: 40}
model: {name: "twice:NAME"}
method: fedavg
training: {optimiser: {name: adamw}}
"""
MODULES = """
import random
from torch import nn

calls = []


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 10))

    def forward(self, inputs):
        return self.body(inputs)


class Counting(Dropping):
    def forward(self, inputs):
        calls.append(1)
        return self.body(inputs) * len(calls)


class Drawing(Dropping):
    def forward(self, inputs):
        return self.body(inputs * random.random())
"""
DRAWN = """
import numpy as np
from emulator.commands.main import execute
from fedstrata.datasets import Dataset, Examples


def load(settings):
    def rng(part):
        return np.random.default_rng(None if part == "DRAWN" else 1)

    part = Examples(inputs=rng("inputs").random((80, 64), np.float32), labels=rng("labels").integers(10, size=80))
    return Dataset(train=part, test=part, num_classes=10)
"""


def twice(text: str) -> None:
    experiment = parse_experiment(text)
    train_twice(experiment, data_here(experiment))


def tried(experiment: Experiment) -> None:
    try_experiment(experiment, data_here(experiment))


@pytest.mark.parametrize("name", ["Counting", "Drawing"])
def test_a_module_that_does_not_train_the_same_twice_is_named_with_its_tensors(name: str, folder: Path) -> None:
    (folder / "twice.py").write_text(MODULES)
    twice(TWICE.replace("NAME", "Dropping"))
    message = f"model twice:{name} does not train the same twice: after 2 steps body.1.weight, .* differ by up to"
    with pytest.raises(PluginError, match=message) as refused:
        twice(TWICE.replace("NAME", name))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("drawn", ["inputs", "labels"])
def test_data_that_are_drawn_anew_each_time_are_named(drawn: str, folder: Path) -> None:
    (folder / "twice.py").write_text(MODULES + DRAWN.replace("DRAWN", drawn))
    text = f'{TWICE.replace("NAME", "Dropping")}data: {{name: "twice:load", input_shape: [64], num_classes: 10}}'
    with pytest.raises(PluginError, match="data set twice:load has other examples when it is loaded again; draw with"):
        twice(text)


COUNTED = """
from torch import nn
import numpy as np
from emulator.commands.main import execute
from fedstrata.datasets import Dataset, Examples

loads = []


class Dropping(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def load(settings):
    loads.append(settings)
    rng = np.random.default_rng(1)
    part = Examples(inputs=rng.random((80, 64), np.float32), labels=rng.integers(10, size=80))
    return Dataset(train=part, test=part, num_classes=10)
"""
VIRTUAL = "clock: virtual\nlinks: {device-lps: {latency: 10ms}}\ncompute: {per_example: 1ms}\n"


@pytest.mark.parametrize("rounds", ["", "training.rounds.lps={kind: buffered, buffer: 1}"])
@pytest.mark.parametrize(("options", "loads"), [([], 1), (["--try"], 2)])
def test_check_loads_the_data_once_and_its_trial_once_more_to_compare(
    options: list[str], loads: int, rounds: str, folder: Path
) -> None:
    (folder / "twice.py").write_text(COUNTED)
    data = 'data: {name: "twice:load", input_shape: [64], num_classes: 10}\n'
    (folder / "twice.yaml").write_text(TWICE.replace("NAME", "Dropping") + data + VIRTUAL)
    changes = ["--set", rounds] if rounds else []
    assert execute(["check", str(folder / "twice.yaml"), *options, *changes]) == 0
    assert len(sys.modules["twice"].loads) == loads


ROWS = """
name: rows
data: {name: folder, folder: FOLDER, input_shape: [2], target: [z]}
task: {name: regression}
partition: {kind: natural, devices: 2}
model: {name: "rows:NAME"}
method: fedavg
training: {batch_size: 53, local_epochs: 1}
"""
REGRESSIONS = """
from torch import nn


class Fitting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, x):
        return self.body(x)


class Flat(Fitting):
    def forward(self, x):
        return self.body(x).squeeze(1)


class Losing(Fitting):
    def forward(self, x, labels):
        return ((self.body(x) - labels) ** 2).mean()
"""


def rows_experiment(folder: Path, name: str, examples: int, *overrides: str) -> Experiment:
    """Return an experiment with a device of 100 rows and one of `examples`."""
    for file, number in (("a", 100), ("b", examples)):
        device = folder / "rows" / file
        device.mkdir(parents=True)
        for part in ("train", "test"):
            lines = [f"{row},{row % 7},{row % 5}" for row in range(number)]
            (device / f"{part}.csv").write_text("\n".join(["p,q,z", *lines]) + "\n")
    (folder / "rows.py").write_text(REGRESSIONS)
    text = ROWS.replace("FOLDER", str(folder / "rows")).replace("NAME", name)
    return parse_experiment(text, overrides=overrides)


@pytest.mark.parametrize(
    ("name", "examples", "message"),
    [
        ("Flat", 106, r"model rows:Flat gives torch.float32 of shape \(3,\) for 3 inputs; .*; add .unsqueeze\(1\) to"),
        ("Losing", 106, "'labels'; forward gets the inputs only, no targets, because"),
        (
            "Fitting",
            160,
            "^training.batch_size 53 leaves a batch of 1 of the 160 examples of device 1; choose another, or set trai",
        ),
        ("Fitting", 1, "^device 1 has 1 example, and the model fails on a batch of 1; give the device more: "),
    ],
)
def test_a_trial_before_the_run_refuses_what_would_end_the_run(
    name: str, examples: int, message: str, folder: Path
) -> None:
    with pytest.raises(PluginError, match=message) as refused:
        tried(rows_experiment(folder, name, examples))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("examples", "overrides"),
    [
        (106, ()),
        (160, ("training.local_epochs=null", "training.local_steps=3")),
        (160, ("training.last_batch=joined",)),
        (160, ("training.last_batch=dropped",)),
    ],
)
def test_a_trial_passes_a_run_without_a_batch_of_one_example(
    examples: int, overrides: tuple[str, ...], folder: Path
) -> None:
    tried(rows_experiment(folder, "Fitting", examples, *overrides))
