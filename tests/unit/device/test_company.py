"""A device's bits do not depend on its company, nor on whether its data stay on the processor."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from device.stacked.training import Stacked
from device.training import LocalResult, OneByOne, Trainer, TrainingJob, limit_threads
from fedstrata.datasets import DatasetInfo
from fedstrata.experiment import ModelSettings
from fedstrata.models import Model, build_model, from_module
from fedstrata.models.building import BUILT_IN
from fedstrata.tensors.processor import CPU, Processor
from tests.support.apart import Apart
from tests.support.normed import Normed
from tests.support.training_jobs import SEED, examples, job_with

limit_threads()
SIZES = 18, 20, 10  # examples of the devices; batches have 8
INFO = DatasetInfo(input_shape=(1, 16, 16), num_classes=10)
DIGITS = DatasetInfo(input_shape=(1, 8, 8), num_classes=10)


class Dropping(nn.Sequential):
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 10))


class Attending(nn.Module):
    """A transformer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of shape (n, 10)."""
        outputs: torch.Tensor = self.head(self.layer(inputs[:, 0]).mean(1))
        return outputs


class Residual(nn.Module):
    """A convolution and a block with a shortcut, as in a ResNet, with group normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.GroupNorm(4, 8)
        self.inner, self.inner_norm = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 16)
        self.shortcut, self.shortcut_norm = nn.Conv2d(8, 16, 1, stride=2, bias=False), nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of shape (n, 10)."""
        maps = self.norm(self.first(inputs)).relu()
        maps = (self.inner_norm(self.inner(maps)) + self.shortcut_norm(self.shortcut(maps))).relu()
        outputs: torch.Tensor = self.head(maps.mean((2, 3)))
        return outputs


OWN: dict[str, Callable[[], nn.Module]] = {
    "batch normalisation": Normed,
    "dropout": Dropping,
    "transformer": Attending,
    "residual": Residual,
}
SMALL = [name for name in BUILT_IN if name != "resnet18"]
LARGE = pytest.param("resnet18", marks=pytest.mark.runs)  # takes five times as long as all others together


def jobs_of(name: str, processor: Processor) -> list[TrainingJob]:
    info = DIGITS if name in OWN else INFO
    model: Model = from_module(OWN[name]) if name in OWN else build_model(ModelSettings(name=name), info)
    model, start = model.of_run(SEED, processor), model.initial(3)
    training = {"local_steps": 3, "batch_size": 8, "optimiser": {"momentum": 0.9}}
    return [
        job_with(model, training, start=start, examples=examples(size, info, seed=index), device_index=index)
        for index, size in enumerate(SIZES)
    ]


def bits(results: Sequence[LocalResult]) -> list[tuple[bytes, float]]:
    return [(each.weights.tobytes(), each.train_loss) for each in results]


@pytest.mark.parametrize("name", [*SMALL, LARGE, *OWN])
@pytest.mark.parametrize("trainer", [OneByOne(), Stacked()], ids=["one by one", "stacked"])
def test_a_device_has_the_same_bits_alone_and_in_company_in_any_order(name: str, trainer: Trainer) -> None:
    jobs, there = jobs_of(name, CPU), jobs_of(name, Apart())
    alone = bits([trainer.train([job])[0] for job in jobs])
    assert len(set(alone)) == len(SIZES)
    assert bits(trainer.train(there)) == alone
    order = [2, 0, 1]
    assert bits(trainer.train([there[place] for place in order])) == [alone[place] for place in order]
    if not jobs[0].model.dense:  # a stack of dense networks adds in another order than autograd
        assert alone == bits(OneByOne().train(jobs))
