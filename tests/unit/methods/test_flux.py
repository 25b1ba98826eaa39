"""Flux: moments by hand, groups, late devices, and what the GPS refuses."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstrata.errors import PayloadError
from fedstrata.methods import Answers, Candidate, Facts, Moment
from fedstrata.methods.flux import MOMENTS, Flux, moments
from fedstrata.methods.profiles.label_means import projected
from tests.support.device_work import Devices, on_digits

DIM, CLASSES = 4, 3
FACTS = Facts(device_count=5, seed=4, input_shape=(DIM,), num_classes=CLASSES)


def made(**options: Any) -> Flux:
    return Flux(Flux.Options(name="flux", **options), FACTS)


def answers_of(descriptors: list[NDArray[Any]], planned: int) -> Answers:
    given = {index: {MOMENTS: each.astype(np.float32)} for index, each in enumerate(descriptors)}
    return Answers([Candidate(device_index=index) for index in range(planned)], {MOMENTS: given})


def test_moments_are_means_and_deviations_and_a_single_example_has_none() -> None:
    np.testing.assert_allclose(moments(np.array([[1.0, 0.0], [3.0, 0.0]])), [2.0, 0.0, 1.0, 0.0])
    assert not moments(np.array([[1.0, 2.0]])).any()


async def test_a_device_sends_moments_of_all_its_examples_and_of_each_label() -> None:
    devices = Devices(on_digits("{name: flux, sketch: 5}"))
    (question,) = devices.method.questions()
    work = devices.work(1)
    sent = (await devices.method.answer(question, work, {}))[MOMENTS]
    points = projected(np.asarray(work.examples.inputs, np.float64).reshape(37, -1), 5, 3, clip=1.0)
    assert sent.shape == question.arrays[MOMENTS][1] == (11, 10)
    np.testing.assert_allclose(sent[0], moments(points), rtol=1e-5)
    label = int(np.bincount(work.examples.labels).argmax())
    np.testing.assert_allclose(sent[label + 1], moments(points[work.examples.labels == label]), rtol=1e-5)
    devices.method.check_answer(question, {MOMENTS: sent}, ())


def test_devices_with_like_moments_are_grouped_and_a_late_one_joins_the_nearest() -> None:
    near, far = np.zeros((CLASSES + 1, 2 * DIM)), np.zeros((CLASSES + 1, 2 * DIM))
    far[1, 0] = 0.5  # of one label alone
    descriptors = [near, far, near + 0.01, far + 0.01, far - 0.01]
    method, answers = made(clusters=2), answers_of(descriptors, planned=4)
    plan = method.plan(Moment.BEFORE, answers, None)
    assert plan.clusters == ((0, 2), (1, 3))
    assert method.place(Candidate(device_index=4), answers, plan) == 1


@pytest.mark.parametrize(("place", "value"), [((0, 0), 1.1), ((0, DIM), -0.1)])
def test_moments_that_no_points_have_are_refused(place: tuple[int, int], value: float) -> None:
    (question,) = made().questions()
    sent = np.zeros((CLASSES + 1, 2 * DIM), np.float32)
    sent[place] = value
    with pytest.raises(PayloadError, match="points of length"):
        made().check_answer(question, {MOMENTS: sent}, ())
