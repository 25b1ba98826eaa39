"""Methods that make a plan in every global round: IFCA and CFL, and the sketches that stand for updates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedstrata.datasets import DatasetInfo
from fedstrata.errors import PayloadError
from fedstrata.experiment import ModelSettings
from fedstrata.methods import Answers, Candidate, Facts, Measurement, Method, Moment, Plan, Reach
from fedstrata.methods.cfl import UPDATE, Cfl
from fedstrata.methods.ifca import LOSSES, Ifca
from fedstrata.methods.sketch import sketch_of
from fedstrata.models import build_model
from fedstrata.tensors import Flat
from tests.support.methods import method_with

MODEL = build_model(ModelSettings(hidden=(3,)), DatasetInfo(input_shape=(4,), num_classes=2))
LENGTH = 64


def devices(count: int, examples: Sequence[int] | None = None) -> list[Candidate]:
    return [Candidate(device_index=i, num_examples=examples[i] if examples else 10) for i in range(count)]


def made(kind: type[Method], count: int = 6, seed: int = 0, **options: Any) -> Method:
    return method_with(kind, {"name": "tried", **options}, Facts(device_count=count, seed=seed))


# --- IFCA ---------------------------------------------------------------------------------------------------


def ifca_plan(losses: dict[int, list[float]], before: Plan | None = None, count: int = 6) -> Plan:
    """The plan that IFCA with three clusters makes of devices' losses."""
    method = made(Ifca, count, clusters=3)
    before = before or method.plan(Moment.BEFORE, Answers(devices(count)), None)
    told = {index: {"losses": np.array(each)} for index, each in losses.items()}
    return method.plan(Moment.RECEIVED, Answers(devices(count), {LOSSES: told}, 0), before)


def test_a_device_joins_the_cluster_whose_model_has_the_least_loss() -> None:
    losses = {0: [0.1, 0.2, 0.3], 1: [3, 2, 1], 2: [0.2, 0.1, 0.3], 3: [5, 6, 4], 4: [1, 2, 3], 5: [0, 0.1, 0.1]}
    plan = ifca_plan(losses)
    assert plan.clusters == ((0, 4, 5), (2,), (1, 3))
    assert plan.rule == "3 as given, by least loss"
    assert ifca_plan(dict(reversed(losses.items()))) == plan


def test_among_equal_losses_the_first_cluster_is_joined_and_a_cluster_may_be_empty() -> None:
    assert ifca_plan({index: [1.0, 1.0, 1.0] for index in range(6)}).clusters == ((0, 1, 2, 3, 4, 5), (), ())


def test_a_device_that_has_not_answered_stays_where_it_was() -> None:
    before = Plan(clusters=((0, 1), (2, 3), (4, 5)), rule="before")
    assert ifca_plan({0: [2, 2, 1]}, before).clusters == ((1,), (2, 3), (0, 4, 5))


@given(st.lists(st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=6, max_size=6))
def test_nobody_is_in_a_cluster_that_does_worse_on_its_data_than_another(losses: list[list[float]]) -> None:
    plan = ifca_plan(dict(enumerate(losses)))
    for index, each in enumerate(losses):
        assert each[plan.cluster_of(index)] == min(each)


def test_before_anybody_is_asked_devices_are_dealt_out() -> None:
    plan = made(Ifca, 5, clusters=2).plan(Moment.BEFORE, Answers(devices(5)[::-1]), None)
    assert plan.clusters == ((0, 2, 4), (1, 3))


@dataclass
class Measuring:
    """A device whose models' losses are known."""

    losses: list[float]
    received: list[Flat] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.received = [np.full(1, number, np.float32) for number in range(len(self.losses))]

    async def measure(self, weights: Flat, *, on_own: bool = False) -> Measurement:
        assert on_own  # not on held-out examples
        return Measurement(loss_sum=20 * self.losses[int(weights[0])], sums=(0,), num_examples=20)


async def test_a_device_answers_with_the_mean_loss_of_every_cluster_and_a_diverged_model_has_the_largest() -> None:
    method = made(Ifca, clusters=4)
    (question,) = method.questions()
    answer = await method.answer(question, Measuring([0.5, float("nan"), 0.25, float("inf")]), {})  # type: ignore[arg-type]
    most = np.finfo(np.float64).max
    assert answer["losses"].tolist() == [0.5, most, 0.25, most]
    method.check_answer(question, answer, ())
    with pytest.raises(PayloadError, match="the answer has a loss of -1; expected 0 or more"):
        method.check_answer(question, {"losses": np.array([0.5, -1, 0.25, 0])}, ())


def test_clusters_begin_with_weights_of_their_own_the_first_with_those_of_any_method() -> None:
    method = made(Ifca, clusters=3, seed=5)
    drawn = [method.initial(MODEL, cluster) for cluster in range(3)]
    assert drawn[0].tobytes() == MODEL.initial(5).tobytes()
    assert len({each.tobytes() for each in drawn}) == 3
    assert drawn[1].tobytes() == made(Ifca, clusters=2, seed=5).initial(MODEL, 1).tobytes()
    assert drawn[1].tobytes() != made(Ifca, clusters=2, seed=6).initial(MODEL, 1).tobytes()


def test_layers_are_shared_by_all_clusters_only_where_that_is_said() -> None:
    assert [channel.reach for channel in made(Ifca).channels(MODEL)] == [Reach.CLUSTER]
    shared, head = made(Ifca, shares_layers=True).channels(MODEL)
    assert (shared.reach, head.reach) == (Reach.EVERYWHERE, Reach.CLUSTER)
    assert shared.tensors.names + head.tensors.names == MODEL.layout.names


# --- CFL ----------------------------------------------------------------------------------------------------


def cfl_plan(
    updates: dict[int, NDArray[np.float64]], before: Plan | None = None, *, global_round: int = 9,
    examples: Sequence[int] | None = None, **options: Any,
) -> Plan:  # fmt: skip
    """The plan that CFL makes in a global round of what stands for devices' updates."""
    there = devices(max(updates) + 1, examples)
    method = made(Cfl, len(there), sketch=LENGTH, **options)
    before = before or method.plan(Moment.BEFORE, Answers(there), None)
    told = {index: {"sketch": update} for index, update in updates.items()}
    return method.plan(Moment.TRAINED, Answers(there, {UPDATE: told}, global_round), before)


def groups(*directions: NDArray[np.float64], each: int = 3, noise: float = 0.05) -> dict[int, NDArray[np.float64]]:
    """Updates of devices dealt out to directions: device 0 has the first, device 1 the second, and so on."""
    rng = np.random.default_rng(1)
    count = each * len(directions)
    return {i: directions[i % len(directions)] + noise * rng.standard_normal(LENGTH) for i in range(count)}


X, Y = np.eye(LENGTH)[:2] * 3


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_two_groups_that_pull_in_opposite_directions_are_split(linkage: str) -> None:
    updates = groups(X, -X)
    plan = cfl_plan(updates, linkage=linkage)
    assert plan.clusters == ((0, 2, 4), (1, 3, 5))
    assert plan.parents == (0, 0)  # both go on from what the one cluster had
    assert plan.rule == "2 by bipartition"
    assert cfl_plan(dict(reversed(updates.items())), linkage=linkage) == plan


def test_one_group_stays_together() -> None:
    plan = cfl_plan(groups(X))
    assert plan.clusters == ((0, 1, 2),)
    assert plan.parents == (0,)
    assert plan.rule == "one cluster"


def test_groups_at_a_right_angle_are_split_only_where_the_ratio_says_so() -> None:
    # the mean of x and y is as long as x by √2 / 2 = 0.707
    updates = groups(X, Y, noise=0.0)
    assert len(cfl_plan(updates, mean_ratio=0.70).clusters) == 1
    assert cfl_plan(updates, mean_ratio=0.71).clusters == ((0, 2, 4), (1, 3, 5))


def test_the_mean_is_weighted_by_examples_since_that_is_what_the_model_would_move_by() -> None:
    # equal devices: the mean of x, −x, x, −x is zero. With 9 and 1 examples it is 0.8 x
    updates = groups(X, -X, each=2, noise=0.0)
    assert len(cfl_plan(updates).clusters) == 2
    assert len(cfl_plan(updates, examples=[9, 1, 9, 1]).clusters) == 1


def test_a_cluster_that_has_come_to_rest_is_not_split() -> None:
    assert len(cfl_plan({index: np.zeros(LENGTH) for index in range(4)}).clusters) == 1


def test_nothing_is_split_before_the_first_round_that_may_nor_where_there_are_fewer_than_three() -> None:
    updates = groups(X, -X)
    assert len(cfl_plan(updates, global_round=3).clusters) == 1  # the fourth
    assert len(cfl_plan(updates, global_round=4).clusters) == 2
    assert len(cfl_plan(updates, global_round=0, first_round=1).clusters) == 2
    assert len(cfl_plan({0: X, 1: -X}).clusters) == 1


def test_the_larger_part_keeps_its_number_and_other_clusters_keep_theirs() -> None:
    before = Plan(clusters=((0, 1, 2, 3, 4), (5, 6)), rule="2 by bipartition", parents=(0, 0))
    updates = {0: X, 1: -X, 2: -X, 3: X, 4: -X, 5: Y, 6: Y}
    plan = cfl_plan(updates, before)
    assert plan.clusters == ((1, 2, 4), (5, 6), (0, 3))
    assert plan.parents == (0, 1, 0)
    assert plan.rule == "3 by bipartition"


def test_who_has_not_answered_stays_in_the_part_that_keeps_its_number() -> None:
    before = Plan(clusters=((0, 1, 2, 3, 4, 5),), rule="one cluster")
    assert cfl_plan({0: X, 1: -X, 2: X, 5: -X}, before).clusters == ((0, 2, 3, 4), (1, 5))


def test_three_updates_as_far_from_each_other_are_split_all_the_same() -> None:
    third = {i: np.cos(angle) * X + np.sin(angle) * Y for i, angle in enumerate(np.arange(3) * 2 * np.pi / 3)}
    assert sorted(len(cluster) for cluster in cfl_plan(third).clusters) == [1, 2]


def test_a_sketch_that_no_update_has_is_refused() -> None:
    method = made(Cfl, sketch=LENGTH)
    with pytest.raises(PayloadError, match=r"the answer has a sketch with numbers outside ±1e\+30"):
        method.check_answer(method.questions()[0], {"sketch": np.full(LENGTH, -2e30)}, ())


# --- sketches -----------------------------------------------------------------------------------------------


def test_a_sketch_is_linear_and_a_function_of_its_seed() -> None:
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((2, 300)).astype(np.float32)
    np.testing.assert_allclose(sketch_of(u, 32, 1) + 2 * sketch_of(v, 32, 1), sketch_of((u + 2 * v), 32, 1), atol=1e-5)
    assert sketch_of(u, 32, 1).tobytes() == sketch_of(u, 32, 1).tobytes()
    assert sketch_of(u, 32, 1).tobytes() != sketch_of(u, 32, 2).tobytes()


def test_every_coordinate_is_added_with_a_sign_to_one_place() -> None:
    for coordinate in range(20):
        sketch = sketch_of(np.eye(20, dtype=np.float32)[coordinate], 7, 3)
        assert sorted(np.abs(sketch)) == [0, 0, 0, 0, 0, 0, 1]


def test_norms_and_cosines_are_kept_within_the_deviation_that_is_stated() -> None:
    length, draws = 64, 400
    rng = np.random.default_rng(4)
    u = rng.standard_normal(500).astype(np.float32)
    v = (0.6 * u + 0.8 * rng.standard_normal(500)).astype(np.float32)
    scale = float(np.linalg.norm(u) * np.linalg.norm(v))
    products = np.array([sketch_of(u, length, seed) @ sketch_of(v, length, seed) for seed in range(draws)])
    stated = scale * (2 / length) ** 0.5
    assert products.std() < stated * (1 + 3 / (2 * draws) ** 0.5)
    assert products.std() > stated / 2  # a bound, and not a far one
    assert abs(products.mean() - float(u @ v)) < 3 * stated / draws**0.5  # unbiased
