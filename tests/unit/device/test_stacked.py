"""Devices trained together give the bits that each gives alone."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from device.evaluation import EvaluationJob, evaluate
from device.stacked.training import Stacked, batch_rows, sum_of_losses
from device.training import limit_threads, train
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment import ModelSettings, SgdSettings, TrainingSettings
from fedstrata.models import build_model
from fedstrata.tasks import CLASSIFICATION
from tests.support.stacked_jobs import INFO, MODEL, RAGGED, SETTINGS, bits, bits_alone, examples, job, jobs

limit_threads()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_device_has_the_same_bits_alone_and_in_stacks_of_any_size(name: str) -> None:
    ragged = jobs(SETTINGS[name])
    alone = bits_alone(ragged)
    for most_devices in (2, 3, 7, None):
        assert bits(Stacked(most_devices).train(ragged)) == alone, most_devices
    assert bits(Stacked(3).train(ragged[::-1])) == alone[::-1]


def test_a_devices_losses_add_up_to_the_same_bits_alone_and_beside_others_with_more_steps() -> None:
    rng = np.random.default_rng(0)
    losses = np.exp2(rng.uniform(-60, 10, (29, 50, 8))).astype(np.float32)
    for device, steps in enumerate(rng.integers(1, 30, 50)):
        losses[steps:, device] = 0.0  # it has finished
        alone = sum_of_losses(losses[:steps, device : device + 1])
        assert sum_of_losses(losses)[device] == alone[0]


@pytest.mark.parametrize(("shape", "hidden"), [((8, 8), (20,)), ((3, 5), (20,))], ids=["width filled", "filled up"])
def test_pixels_have_the_bits_of_their_numbers_alone_and_in_a_stack(
    shape: tuple[int, ...], hidden: tuple[int, ...]
) -> None:
    model = build_model(ModelSettings(hidden=hidden), DatasetInfo(input_shape=shape, num_classes=7))

    def pixels(size: int, device: int) -> Examples:
        rng = np.random.default_rng([size, device])
        return Examples(inputs=rng.integers(0, 256, (size, *shape), dtype=np.uint8), labels=rng.integers(0, 7, size))

    ragged = [
        job(size, device, SETTINGS["epochs with momentum"], model=model, start=model.initial(device),
            examples=pixels(size, device), held_out=pixels(size % 71 + 1, device))
        for device, size in enumerate(RAGGED)
    ]  # fmt: skip
    alone = bits_alone(ragged)
    assert bits(Stacked().train(ragged)) == alone

    def numbers(bytes_: Any) -> Examples:
        return bytes_.take(np.arange(len(bytes_)))

    as_numbers = [replace(each, examples=numbers(each.examples), held_out=numbers(each.held_out)) for each in ragged]
    assert bits(Stacked().train([*ragged[:4], *as_numbers[4:]])) == alone


def test_who_measures_nothing_trains_beside_who_does() -> None:
    some = [
        replace(each, held_out=None) if number % 2 else each for number, each in enumerate(jobs(SETTINGS["one epoch"]))
    ]
    assert bits(Stacked().train(some)) == bits_alone(some)


@pytest.mark.parametrize("shape", [((28, 28), (32,), 10), ((8, 8), (32,), 10), ((3, 32, 32), (), 4), ((30,), (1,), 2)])
def test_the_bits_are_the_same_for_models_of_other_widths(shape: tuple[Any, ...]) -> None:
    info = DatasetInfo(input_shape=shape[0], num_classes=shape[2])
    model = build_model(ModelSettings(hidden=shape[1]), info)
    training = SETTINGS["epochs with momentum"]
    alike = [
        job(size, device, training, model=model, start=model.initial(0), examples=examples(size, device, info),
            held_out=examples(130, device, info))
        for device, size in enumerate((20, 16, 8, 20, 9))
    ]  # fmt: skip
    assert bits(Stacked().train(alike)) == [bits(Stacked(1).train([each]))[0] for each in alike]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_stack_trains_as_autograd_and_torchs_sgd_do(name: str) -> None:
    for each, result in zip(jobs(SETTINGS[name]), Stacked().train(jobs(SETTINGS[name])), strict=True):
        expected = train(each)
        np.testing.assert_allclose(result.weights, expected.weights, rtol=1e-4, atol=1e-5)
        assert result.train_loss == pytest.approx(expected.train_loss, rel=1e-5)
        assert result.steps == expected.steps == each.steps
        assert result.evaluation is not None
        assert expected.evaluation is not None
        assert result.evaluation.sums == expected.evaluation.sums
        assert result.evaluation.loss_sum == pytest.approx(expected.evaluation.loss_sum, rel=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weight_decay_far_below_a_step_of_float32_is_not_lost(momentum: float) -> None:
    model = build_model(ModelSettings(hidden=()), INFO)

    def moved_by_decay(trained: Any) -> np.ndarray:
        """The difference that decay makes in many steps, each of which shrinks weights by 1e-7 or less."""
        plain, decayed = (
            TrainingSettings(
                local_steps=1000,
                batch_size=8,
                optimiser=SgdSettings(learning_rate=0.002, momentum=momentum, weight_decay=decay),
            )
            for decay in (0.0, 2e-5)
        )
        results = [trained(job(40, 0, each, model=model, start=model.initial(0))) for each in (decayed, plain)]
        difference: np.ndarray = results[0].weights.astype(np.float64) - results[1].weights
        return difference

    expected = moved_by_decay(train)
    error = moved_by_decay(lambda each: Stacked().train([each])[0]) - expected
    assert np.linalg.norm(error) < 0.1 * np.linalg.norm(expected)


def test_jobs_of_different_rounds_optimisers_and_models_may_wait_together() -> None:
    other = build_model(ModelSettings(hidden=(4,)), INFO)
    decaying = SETTINGS["one epoch"].model_copy(
        update={"optimiser": SgdSettings.model_validate({"schedule": {"decay": 0.5}})}
    )
    mixed = [
        job(20, 0, SETTINGS["one epoch"]),
        job(20, 1, decaying, global_round=3),
        job(20, 2, decaying, global_round=4),
        job(20, 3, SETTINGS["one epoch"], model=other, start=other.initial(0)),
    ]
    assert bits(Stacked().train(mixed)) == bits_alone(mixed)


def test_what_was_received_and_the_examples_stay_as_they_were() -> None:
    each = job(20, 0, SETTINGS["epochs with momentum"])
    received, inputs = each.start.copy(), each.examples.inputs.copy()
    Stacked().train([each, job(20, 1, SETTINGS["epochs with momentum"])])
    np.testing.assert_array_equal(each.start, received)
    np.testing.assert_array_equal(each.examples.inputs, inputs)


def test_evaluation_has_the_same_bits_alone_and_together_and_agrees_with_autograds() -> None:
    measured = [
        EvaluationJob(task=CLASSIFICATION, model=MODEL, weights=MODEL.initial(device), examples=examples(size, device))
        for device, size in enumerate((200, 64, 1, 65, 130))
    ]
    together = Stacked().evaluate(measured)
    assert together == [Stacked().evaluate([each])[0] for each in measured]
    for result, each in zip(together, measured, strict=True):
        expected = evaluate(each.model, each.weights, each.examples, CLASSIFICATION)
        assert (result.sums, result.num_examples) == (expected.sums, expected.num_examples)
        assert result.loss_sum == pytest.approx(expected.loss_sum, rel=1e-5)


@pytest.mark.parametrize("most_devices", [1, 3, 5, None])
def test_devices_that_measure_several_models_on_their_own_data_have_the_same_bits_in_any_stack(
    most_devices: int | None,
) -> None:
    own = [examples(size, device) for device, size in enumerate((200, 64, 65, 7))]
    streams = [MODEL.initial(seed) for seed in range(4)]
    by_device = [
        [EvaluationJob(task=CLASSIFICATION, model=MODEL, weights=each, examples=data) for each in streams]
        for data in own
    ]
    alone = [[Stacked().evaluate([each])[0] for each in measured] for measured in by_device]
    assert all(len({result.loss_sum for result in results}) == len(streams) for results in alone)
    in_a_row = [each for measured in by_device for each in measured]
    assert Stacked(most_devices).evaluate(in_a_row) == [each for results in alone for each in results]
    stream_by_stream = [each for measured in zip(*by_device, strict=True) for each in measured]
    assert Stacked(most_devices).evaluate(stream_by_stream) == [
        each for results in zip(*alone, strict=True) for each in results
    ]


def test_a_device_with_nothing_to_measure_on_reports_no_examples() -> None:
    empty = Examples(inputs=np.zeros((0, 3, 5), np.float32), labels=np.zeros(0, np.int64))
    (with_none,) = Stacked().train([job(20, 0, SETTINGS["one epoch"], held_out=empty)])
    assert with_none.evaluation == (0.0, (0.0,), 0)
    (without,) = Stacked().train([job(20, 0, SETTINGS["one epoch"], held_out=None)])
    assert without.evaluation is None
    assert without.weights.tobytes() == with_none.weights.tobytes()


def test_why_devices_train_one_by_one_is_said_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    info = DatasetInfo(input_shape=(8, 8), num_classes=3)
    cnn = build_model(ModelSettings(name="cnn", hidden=(5,)), info)
    training = SETTINGS["one epoch"]
    convolutional = [
        job(9, device, training, model=cnn, start=cnn.initial(0), examples=examples(9, device, info), held_out=None)
        for device in range(3)
    ]
    trainer = Stacked()
    with caplog.at_level(logging.INFO):
        assert bits(trainer.train(convolutional)) == [bits([train(each)])[0] for each in convolutional]
        trainer.train(convolutional)
        trainer.train([job(9, 0, training, only=MODEL.trainable.names[:1])] * 2)
        trainer.train([job(9, 0, training, targets=np.full((9, INFO.num_classes), 1 / INFO.num_classes, np.float32))])
    assert [record.message for record in caplog.records] == ["devices_train_one_by_one"] * 3


def test_a_batch_never_has_more_rows_than_the_device_has_examples() -> None:
    assert [batch_rows(each) for each in jobs(SETTINGS["one epoch"])] == [8, 8, 8, 1, 8, 8, 8, 7, 8, 8, 3]
