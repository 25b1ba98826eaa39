"""FedTSDP: its statistics by loops and by SciPy's own, its plans by hand, and what a device answers."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import jensenshannon

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.experiment import Experiment, ModelSettings, TrainingSettings
from fedstrata.methods import Answers, Arrays, Candidate, Facts, Moment, Plan, Reach
from fedstrata.methods.fed_tsdp import OUTPUTS, FedTsdp, grown
from fedstrata.methods.sketch import sketch_of
from fedstrata.methods.two_stages import groups_within, hopkins, jensen_shannon, softmax
from fedstrata.models import build_model
from fedstrata.partitions import public_data
from tests.support.device_work import Devices, on_digits

BATCH, CLASSES, SKETCH, DEVICES, PUBLIC = 4, 3, 16, 6, 20
INFO = DatasetInfo(input_shape=(5,), num_classes=CLASSES)
NAMES = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")


def method(**options: Any) -> FedTsdp:
    facts = Facts(
        device_count=DEVICES, seed=1, input_shape=(5,), num_classes=CLASSES, public_examples=PUBLIC,
        training=TrainingSettings(global_rounds=3, lps_rounds_per_global_round=1),
        make_model=lambda: build_model(ModelSettings(hidden=(2,)), INFO),
    )  # fmt: skip
    return FedTsdp(
        FedTsdp.Options.model_validate({"name": "fedtsdp", "batch": BATCH, "sketch": SKETCH, **options}), facts
    )


def experiment(*overrides: str) -> Experiment:
    return on_digits("{name: fedtsdp, batch: 8, sketch: 32}", "partition.public={examples: 30}", *overrides)


# --- statistics -------------------------------------------------------------------------------------------


def test_the_divergence_is_that_of_scipy_squared_and_averaged_over_the_batch() -> None:
    outputs = softmax(np.random.default_rng(0).normal(0, 2, (5 * BATCH, CLASSES))).reshape(5, BATCH, CLASSES)
    outputs[0, 0] = [1, 0, 0]  # a share of nothing counts for nothing
    found = jensen_shannon(outputs)
    for i, j in product(range(5), repeat=2):
        expected = np.mean([jensenshannon(outputs[i, k], outputs[j, k]) ** 2 for k in range(BATCH)])
        assert found[i, j] == pytest.approx(expected, abs=1e-12)
    assert jensen_shannon(np.array([[[1.0, 0]], [[0, 1.0]]]))[0, 1] == pytest.approx(np.log(2))


def test_the_hopkins_statistic_is_that_of_loops_over_the_same_draws() -> None:
    points = np.random.default_rng(2).normal(size=(9, 4))
    rng = np.random.default_rng(7)
    drawn = rng.choice(9, 5, replace=False)
    even = rng.uniform(points.min(axis=0), points.max(axis=0), (5, 4))
    own = sum(min(np.linalg.norm(points[i] - points[j]) for j in range(9) if j != i) for i in drawn)
    others = sum(min(np.linalg.norm(point - each) for each in points) for point in even)
    assert hopkins(points, 5, np.random.default_rng(7)) == pytest.approx(others / (others + own))


def test_the_hopkins_statistic_is_high_for_groups_and_not_for_what_is_evenly_spread() -> None:
    rng = np.random.default_rng(3)
    groups = np.concatenate([rng.normal(centre, 0.01, (20, 2)) for centre in (0, 1, 5)])
    assert hopkins(groups, 20, np.random.default_rng(0)) > 0.9
    assert hopkins(rng.uniform(size=(200, 2)), 50, np.random.default_rng(0)) == pytest.approx(0.5, abs=0.1)
    assert hopkins(np.ones((4, 2)), 3, np.random.default_rng(0)) == 0.5


def test_with_two_neighbours_groups_are_connected_components_and_who_is_alone_is_one() -> None:
    places = np.random.default_rng(4).uniform(0, 1, 40)
    distances = np.abs(places[:, None] - places[None])
    found = groups_within(distances, 0.02, 2)
    _, labels = connected_components(distances <= 0.02)
    expected = {tuple(np.flatnonzero(labels == label).tolist()) for label in labels}
    assert {tuple(sorted(group.tolist())) for group in found} == expected
    assert len(found) == len(expected) > 5
    assert 1 in {len(group) for group in found}


def test_a_batch_that_led_to_groups_comes_to_half_of_the_chances_and_as_printed_to_nearly_all() -> None:
    even = np.full(PUBLIC, 1 / PUBLIC)
    after = grown(even, [0, 1, 2, 3], "even")
    assert after.sum() == pytest.approx(1)
    assert after[:4].tolist() == pytest.approx([(1 / 20 + 1 / 4) / 2] * 4)
    assert grown(even, [0, 1, 2, 3], "literal")[:4].sum() == pytest.approx((4 / 20 + 20) / 21)


# --- plans --------------------------------------------------------------------------------------------------

SURE = np.eye(CLASSES)


def given(outputs: list[int], weights: list[float]) -> dict[int, Arrays]:
    """Answers of devices that are sure of one class, with weights on a line."""
    return {
        index: {
            "outputs": np.tile(SURE[label] * 0.98 + 0.02 / 3, (BATCH, 1)).astype(np.float32),
            "weights": np.eye(SKETCH)[0] * weight,
        }
        for index, (label, weight) in enumerate(zip(outputs, weights, strict=True))
    }


def planned(made: FedTsdp, answers: dict[int, Arrays], before: Plan | None = None, global_round: int = 0) -> Plan:
    devices = [Candidate(device_index=index, num_examples=10 * (index + 1)) for index in range(DEVICES)]
    before = before or made.plan(Moment.BEFORE, Answers(devices), None)
    return made.plan(Moment.TRAINED, Answers(devices, {OUTPUTS: answers}, global_round), before)


def test_at_first_all_devices_are_one_group_and_every_example_is_as_likely() -> None:
    made = method()
    plan = made.plan(Moment.BEFORE, Answers([Candidate(device_index=i) for i in range(DEVICES)]), None)
    assert plan.clusters == (tuple(range(DEVICES)),)
    assert plan.withdrawn == ()
    assert set(plan.memory["sampling"]) == {1 / PUBLIC}
    assert len(set(plan.told["batch"].tolist())) == BATCH
    assert plan.told["batch"].dtype == np.int64


def test_devices_are_grouped_by_outputs_and_each_group_by_weights_once_hopkins_is_high() -> None:
    answers = given([0, 1, 0, 0, 1, 2], [0, 0, 1, 9, 0, 0])
    plan = planned(method(hopkins=0.5, hopkins_points=5), answers)
    assert plan.clusters == ((0, 2), (1, 4), (3,), (5,))  # 3 says what 0 and 2 say, and is far from them
    assert plan.parents == (0, 0, 0, 0)
    assert [dict(shares) for shares in plan.weights["shared"]] == [
        pytest.approx({0: 10 / 40, 2: 30 / 40}), pytest.approx({1: 20 / 70, 4: 50 / 70}), {3: 1.0}, {5: 1.0}
    ]  # fmt: skip
    assert plan.memory["layers"] == pytest.approx(2 * 0.98)
    assert plan.withdrawn == ()  # ceil(2 · 1.96) = 4 tensors


def test_where_hopkins_is_low_the_groups_stay_and_nothing_grows_or_shrinks() -> None:
    made = method(hopkins=0.5, hopkins_points=5)
    before = planned(made, given([0, 1, 0, 0, 1, 2], [0, 0, 1, 9, 0, 0]))
    rng = np.random.default_rng(0)
    spread = {
        index: {"outputs": softmax(rng.normal(size=(BATCH, CLASSES))).astype(np.float32), "weights": np.zeros(SKETCH)}
        for index in range(DEVICES)
    }
    after = planned(method(hopkins=0.9, hopkins_points=5), spread, before, 1)
    assert after.clusters == before.clusters
    assert after.parents == (0, 1, 2, 3)
    assert after.withdrawn == before.withdrawn
    assert after.memory["sampling"] == before.memory["sampling"]
    assert after.memory["layers"] == before.memory["layers"]
    assert after.told["batch"].tolist() != before.told["batch"].tolist()


@pytest.mark.parametrize(
    ("options", "first_gone"), [({}, [3, 2, 2, 1, 1, 1]), ({"rounding": "down"}, [2, 1, 1, 1, 1, 1])]
)
def test_layers_are_withdrawn_one_after_the_other_and_one_tensor_stays_shared(
    options: dict[str, str], first_gone: list[int]
) -> None:
    made, plan = method(hopkins=0.01, hopkins_points=5, shrink=0.7, **options), None
    gone = []
    for number in range(6):  # layers: 1.4, 0.98, 0.69, 0.48 …
        plan = planned(made, given([0, 1, 0, 0, 1, 2], [0] * 6), plan, number)
        gone.append(plan.withdrawn)
    assert gone == [NAMES[first:] for first in first_gone]


def test_who_has_not_answered_is_alone_and_goes_on_from_its_group() -> None:
    answers = given([0, 1, 0, 0, 1, 2], [0] * 6)
    del answers[4]
    plan = planned(method(hopkins=0.01, hopkins_points=4), answers)
    assert plan.clusters == ((0, 2, 3), (1,), (4,), (5,))


def test_layers_beyond_the_first_ones_are_a_devices_own_from_the_start() -> None:
    model = build_model(ModelSettings(hidden=(2,)), INFO)
    shared, own = method(layers=1).channels(model)
    assert (shared.tensors.names, shared.reach) == (NAMES[:2], Reach.CLUSTER)
    assert (own.tensors.names, own.reach) == (NAMES[2:], Reach.DEVICE)
    assert method(layers=9).channels(model)[0].tensors.names == NAMES


# --- at a device --------------------------------------------------------------------------------------------


def by_hand(devices: Devices, weights: NDArray[np.float32], inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    """The softmax of a network of one hidden layer, in NumPy and float64."""
    w = {name: view.astype(np.float64) for name, view in devices.model.layout.views(weights).items()}
    hidden = np.maximum(inputs.reshape(len(inputs), -1) @ w["fc1.weight"].T + w["fc1.bias"], 0)
    raised = np.exp(hidden @ w["fc2.weight"].T + w["fc2.bias"])
    return raised / raised.sum(1, keepdims=True)


async def test_a_device_says_what_its_trained_model_makes_of_the_batch_that_it_is_told() -> None:
    devices = Devices(experiment())
    batch = np.array([2, 3, 5, 8, 13, 21, 25, 29])
    work = devices.work(1, lps_round=0, told={"batch": batch})
    work.trained = devices.model.initial(9)
    (question,) = devices.method.questions()
    answer = await devices.method.answer(question, work, {})
    inputs = public_data(devices.experiment, devices.dataset).inputs[batch]
    np.testing.assert_allclose(answer["outputs"], by_hand(devices, work.trained, inputs), atol=1e-6)
    assert answer["weights"].tolist() == sketch_of(work.trained - devices.model.initial(3), 32, 3).tolist()
    devices.method.check_answer(question, answer, ())


@pytest.mark.parametrize("batch", [[], [-1], [30]])
async def test_public_examples_that_there_are_not_are_refused(batch: list[int]) -> None:
    devices = Devices(experiment())
    work = devices.work(1, lps_round=0, told={"batch": np.array(batch, np.int64)})
    work.trained = devices.model.initial(9)
    with pytest.raises(PayloadError, match="each from 0 to 29"):
        await devices.method.answer(devices.method.questions()[0], work, {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outputs": np.full((BATCH, CLASSES), 0.5, np.float32)}, "each row of outputs in the answer must have shares"),
        (
            {"outputs": np.tile(np.float32([2, -1, 0]), (BATCH, 1))},
            "each row of outputs in the answer must have shares",
        ),
        ({"weights": np.array([0, 2e30])}, r"a sketch with numbers outside ±1e\+30"),
    ],
)
def test_an_answer_that_cannot_be_one_is_refused(change: dict[str, Any], reason: str) -> None:
    made = method()
    with pytest.raises(PayloadError, match=reason):
        made.check_answer(made.questions()[0], {**given([0], [0])[0], **change}, ())


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("partition.public=null", "set their number in partition.public.examples"),
        ("method.batch=31", "method.batch is 31, more than partition.public.examples, 30"),
    ],
)
def test_what_does_not_go_together_is_refused(override: str, reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason):
        experiment(override)
