"""User-centric aggregation: gradients against NumPy's own, the mixing weights by hand, streams from rows of W."""

import numpy as np
import pytest

from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, Arrays, Candidate, Facts, Moment, Plan
from fedstrata.methods.row_groups import row_groups
from fedstrata.methods.user_centric import UserCentric, likeness, mean_and_variance, shuffled_parts
from tests.support.device_work import Devices, on_digits
from tests.support.methods import method_with

NAME = {"name": "user_centric"}


def experiment(*overrides: str) -> Experiment:
    return on_digits("user_centric", *overrides)


def planned(answers: dict[int, Arrays], examples: dict[int, int], **options: object) -> Plan:
    """The plan of a method with these options, of devices that answered this and hold so many examples."""
    method = method_with(UserCentric, {**NAME, **options}, Facts(device_count=len(answers)))
    devices = [Candidate(device_index=index, num_examples=examples[index]) for index in answers]
    return method.plan(Moment.BEFORE, Answers(devices, {"gradient": answers}), None)


def answer(gradient: list[float], variance: float) -> Arrays:
    return {"gradient": np.array(gradient, np.float32), "variance": np.array([variance])}


# --- at a device --------------------------------------------------------------------------------------------


def by_hand(devices: Devices, places: np.ndarray) -> np.ndarray:
    """The gradient of a network of one hidden layer at the initial weights, by the chain rule in NumPy, float64."""
    work = devices.work(1)
    w = {name: view.astype(np.float64) for name, view in work.model.layout.views(work.start).items()}
    examples = work.examples.take(places)
    inputs = examples.inputs.reshape(len(places), -1).astype(np.float64)
    before = inputs @ w["fc1.weight"].T + w["fc1.bias"]
    hidden = np.maximum(before, 0)
    scores = np.exp(hidden @ w["fc2.weight"].T + w["fc2.bias"])
    error = (scores / scores.sum(1, keepdims=True) - np.eye(10)[examples.labels]) / len(places)
    back = (error @ w["fc2.weight"]) * (before > 0)
    return np.concatenate([(back.T @ inputs).ravel(), back.sum(0), (error.T @ hidden).ravel(), error.sum(0)])


async def test_a_device_sends_its_gradient_at_the_initial_weights_and_how_much_a_batch_differs_from_it() -> None:
    devices = Devices(experiment("method.batches=5"))
    sent = await devices.method.answer(devices.method.questions()[0], devices.work(1), {})
    order = np.random.default_rng([3, 1, 0x0CE712]).permutation(37)
    batches = [by_hand(devices, order[start:stop]) for start, stop in ((0, 8), (8, 16), (16, 23), (23, 30), (30, 37))]
    whole = by_hand(devices, np.arange(37))
    np.testing.assert_allclose(sent["gradient"], whole, rtol=1e-4, atol=1e-7)
    expected = np.mean([((batch - whole) ** 2).sum() for batch in batches])
    assert sent["variance"] == pytest.approx(expected, rel=1e-4)
    assert sent["gradient"].dtype == np.float32


async def test_a_sketch_stands_for_the_gradient_and_the_variance_stays_that_of_the_gradient() -> None:
    whole, short = Devices(experiment()), Devices(experiment("method.sketch=4096"))
    answers = [await each.method.answer(each.method.questions()[0], each.work(2), {}) for each in (whole, short)]
    assert [len(each["gradient"]) for each in answers] == [whole.model.layout.size, 4096]
    assert answers[0]["variance"] == answers[1]["variance"]
    norms = [float(np.linalg.norm(each["gradient"].astype(np.float64))) for each in answers]
    assert norms[1] == pytest.approx(norms[0], rel=0.1)


def test_batches_are_cut_from_shuffled_examples_and_none_is_empty() -> None:
    parts = shuffled_parts(10, 4, [0, 0])
    assert [len(part) for part in parts] == [3, 3, 2, 2]
    assert sorted(np.concatenate(parts).tolist()) == list(range(10))
    assert np.concatenate(parts).tolist() != list(range(10))
    assert [len(part) for part in shuffled_parts(2, 4, [0, 0])] == [1, 1]


def test_the_mean_weighs_batches_by_their_examples_and_the_variance_does_not() -> None:
    # gradients 0 and 4 of batches of three and one: mean 1, squared distances 1 and 9
    mean, variance = mean_and_variance([np.array([0.0]), np.array([4.0])], [np.arange(3), np.arange(1)])
    assert mean.tolist() == [1.0]
    assert variance == 5.0


# --- the mixing weights -------------------------------------------------------------------------------------


def test_likeness_falls_with_the_squared_distance_and_rises_with_both_variances() -> None:
    # distance² is 9 + 16; σ_i σ_j is √4 · √25 = 10
    matrix = likeness(np.array([[0, 0], [3, 4]], np.float32), np.array([4.0, 25.0]))
    np.testing.assert_allclose(matrix, [[1, np.exp(-25 / 20)], [np.exp(-25 / 20), 1]])


def test_a_device_without_variance_is_like_those_of_the_same_gradient_only() -> None:
    matrix = likeness(np.array([[1, 2], [1, 2], [1, 3]], np.float32), np.array([0.0, 1.0, 1.0]))
    assert matrix[0].tolist() == [1, 1, 0]


def test_rows_of_shares_are_the_papers_equation_six() -> None:
    gradients, variances, sizes = [[0.0, 1.0], [2.0, 1.0], [2.0, 3.0]], [1.0, 4.0, 0.25], [10, 30, 60]
    plan = planned(
        {i: answer(gradients[i], variances[i]) for i in range(3)}, dict(enumerate(sizes))
    )  # fmt: skip
    for i, shares in enumerate(plan.weights["model"]):
        raw = [
            sizes[j] / sizes[i] * np.exp(-sum((np.array(gradients[i]) - gradients[j]) ** 2)
            / (2 * np.sqrt(variances[i]) * np.sqrt(variances[j])))
            for j in range(3)
        ]  # fmt: skip
        assert [shares[j] for j in range(3)] == pytest.approx([each / sum(raw) for each in raw], rel=1e-12)
    assert plan.clusters == ((0,), (1,), (2,))


def test_devices_of_one_distribution_are_weighed_as_by_fedavg() -> None:
    plan = planned({i: answer([1.0], 1.0) for i in range(3)}, {0: 10, 1: 30, 2: 60})
    assert plan.clusters == ((0, 1, 2),)
    assert list(plan.weights["model"][0].values()) == pytest.approx([0.1, 0.3, 0.6])


def test_a_stream_is_the_mix_by_the_centroid_of_its_devices_rows() -> None:
    # devices 1 and 4 are far from 2 and 7; shares of the others are below 1e-6
    answers = {2: answer([100.0], 1.0), 7: answer([100.5], 1.0), 1: answer([0.0], 1.0), 4: answer([1.0], 1.0)}
    plan = planned(answers, dict.fromkeys(answers, 10), streams=2)
    assert plan.clusters == ((1, 4), (2, 7))
    assert list(plan.related) == [1, 2, 4, 7]
    (first, second) = plan.weights["model"]
    assert [first[1], first[4], second[2], second[7]] == pytest.approx([0.5] * 4)
    assert sum(first.values()) == pytest.approx(1.0)
    assert plan.affinity is not None
    assert plan.affinity[0, 2] == pytest.approx(np.exp(-0.5))


# --- streams ------------------------------------------------------------------------------------------------


def blocks(*sizes: int) -> np.ndarray:
    """Rows that share equally inside blocks, each a little more with itself."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    rows = (owner[:, None] == owner[None, :]) + 0.1 * np.eye(len(owner))
    return np.asarray(rows / rows.sum(1, keepdims=True))


def test_silhouette_finds_the_number_of_blocks() -> None:
    groups, rule = row_groups(blocks(4, 3, 3), "auto", 16)
    assert groups == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert rule.startswith("auto: 3 streams, by the highest silhouette (0.")


def test_auto_looks_at_no_more_streams_than_it_may() -> None:
    assert len(row_groups(blocks(4, 3, 3), "auto", 2)[0]) == 2


def test_rows_in_another_order_are_grouped_alike() -> None:
    order = np.array([7, 2, 9, 0, 4, 1, 8, 3, 6, 5])
    groups, _ = row_groups(blocks(4, 3, 3)[np.ix_(order, order)], 3, 16)
    assert sorted(sorted(order[group].tolist()) for group in groups) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize("count", ["auto", "all", 1, 3])
def test_rows_that_are_the_same_are_one_group(count: object) -> None:
    assert row_groups(np.full((5, 5), 0.2), count, 16)[0] == [[0, 1, 2, 3, 4]]  # type: ignore[arg-type]


def test_two_devices_have_a_stream_each_as_far_as_a_silhouette_can_tell() -> None:
    assert row_groups(np.eye(2), "auto", 16)[0] == [[0], [1]]


# --- nonsense -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.streams=5", "method.streams is 5, more than the 4 devices"),
        ("method.streams=0", "method.streams"),
        ("method.batches=1", "method.batches: must be at least 2"),
        ("method.sketch=3", "method.sketch: must be at least 16"),
    ],
)
def test_options_that_make_no_sense_are_refused(override: str, message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        experiment(override)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answer([2e30] * 16, 1.0), "the answer has a gradient with numbers outside ±1e+30"),
        (answer([0.0] * 16, -1.0), "variance [-1.0]; expected one number from 0 to 1e+30"),
    ],
)
def test_an_answer_that_cannot_be_one_is_refused(given: Arrays, message: str) -> None:
    method = method_with(UserCentric, {**NAME, "sketch": 16}, Facts(device_count=2))
    with pytest.raises(PayloadError) as raised:
        method.check_answer(method.questions()[0], given, ())
    assert message in str(raised.value)
