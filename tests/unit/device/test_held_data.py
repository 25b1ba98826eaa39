"""Batches are gathered from a device's data, which stay on a processor with its own memory."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from device.held_data import held_data
from device.training import batch_orders, batches, train
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment import ModelSettings
from fedstrata.models import build_model
from fedstrata.tasks import CLASSIFICATION
from fedstrata.tensors.processor import CPU, Processor
from tests.support.apart import Apart
from tests.support.training_jobs import SEED, job_with

DIGITS = DatasetInfo(input_shape=(1, 8, 8), num_classes=10)
PIXELS = Examples(inputs=np.arange(20 * 64, dtype=np.uint8).reshape(20, 1, 8, 8), labels=np.arange(20) % 10)


def trained(processor: Processor, examples: Examples, **changes: Any) -> bytes:
    model = build_model(ModelSettings(name="mlp"), DIGITS).of_run(SEED, processor)
    return train(job_with(model, {"local_epochs": 2}, examples=examples, **changes)).weights.tobytes()


@pytest.mark.parametrize("examples", [PIXELS, PIXELS.scaled()], ids=["pixels", "numbers"])
def test_held_data_give_the_bits_of_data_that_are_read_batch_by_batch(examples: Examples) -> None:
    assert trained(Apart(), examples) == trained(CPU, examples)


def test_a_batch_has_the_examples_of_its_step() -> None:
    model = build_model(ModelSettings(name="mlp"), DIGITS)
    frozen, soft = PIXELS.scaled(), np.arange(200, dtype=np.float32).reshape(20, 10)
    frozen.inputs.flags.writeable = False
    backwards = Examples(inputs=frozen.inputs[::-1], labels=frozen.labels[::-1], more={"at": np.arange(20)})
    for examples, targets in ((frozen, None), (backwards, None), (backwards, soft)):
        job = job_with(model, {"local_epochs": 2}, examples=examples, targets=targets)
        found = list(batches(job))
        assert len(found) == 4
        for order, (inputs, more, given) in zip(batch_orders(job), found, strict=True):
            assert np.array_equal(inputs.numpy(), examples.inputs[order])
            assert np.array_equal(given.numpy(), (examples.labels if targets is None else targets)[order])
            assert all(np.array_equal(more[name].numpy(), order) for name in examples.more)


def test_data_are_sent_to_a_processor_once_and_leave_it_with_their_device() -> None:
    processor, examples = Apart(), PIXELS.scaled().part(np.arange(10))
    first = trained(processor, examples)
    assert trained(processor, examples) == first
    assert processor.sent == 2  # inputs and targets, in the first of two trainings
    inputs = weakref.ref(held_data(examples, CLASSIFICATION, processor).inputs)
    assert inputs() is not None
    del examples
    gc.collect()
    assert inputs() is None
