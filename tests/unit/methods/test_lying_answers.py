"""What one device that lies in its answers can do to the others' shares, clusters and offers, method by method."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import PayloadError
from fedstrata.experiment.sections import TrainingSettings
from fedstrata.methods import Answers, Arrays, Candidate, Facts, Method, Moment, Plan
from fedstrata.methods.adaptive import PRETRAINED, Adaptive
from fedstrata.methods.cfl import UPDATE, Cfl
from fedstrata.methods.fed_fomo import GAINS, FedFomo
from fedstrata.methods.fed_tsdp import FedTsdp
from fedstrata.methods.ifca import LOSSES, Ifca
from fedstrata.methods.one_shot import RELEVANCE, OneShot
from fedstrata.methods.pacfl import SUBSPACE, Pacfl
from fedstrata.methods.scores import LABELS, Scores
from fedstrata.methods.user_centric import GRADIENT, UserCentric, capped
from tests.support.methods import method_with

LENGTH = 16  # numbers of a sketch


def made(kind: type[Method], devices: int, **options: Any) -> Method:
    facts = Facts(
        device_count=devices, input_shape=(4,), num_classes=2, public_examples=8, public_labelled=True,
        training=TrainingSettings(lps_rounds_per_global_round=1),
    )  # fmt: skip
    return method_with(kind, {"name": "tried", **options}, facts)


def planned(
    method: Method, question: str, answers: Mapping[int, Arrays], *, moment: Moment = Moment.BEFORE,
    before: Plan | None = None, global_round: int = -1,
) -> Plan:  # fmt: skip
    devices = [Candidate(device_index=index, num_examples=10) for index in sorted(answers)]
    return method.plan(moment, Answers(devices, {question: answers}, global_round), before)


def refused(method: Method, answer: Mapping[str, Any], examples: int = 10) -> str:
    """Why an answer to a method's last question is refused."""
    question = method.questions()[-1]
    arrays = {name: np.array(value, question.arrays[name][0]) for name, value in answer.items()}
    with pytest.raises(PayloadError) as raised:
        method.check_answer_of(Candidate(device_index=0, num_examples=examples), question, arrays, ())
    return str(raised.value)


# --- user_centric -------------------------------------------------------------------------------------------


def gradients(liars_variance: float, liars_distance: float = 6.0, honest: int = 5) -> dict[int, Arrays]:
    """Five devices with the same gradient and variance 1, and after them one at this distance from them."""
    answers = {i: {"gradient": np.zeros(2, np.float32), "variance": np.array([1.0])} for i in range(honest)}
    answers[honest] = {"gradient": np.float32([0, liars_distance]), "variance": np.array([liars_variance])}
    return answers


def test_a_device_that_claims_any_variance_is_as_like_others_as_one_of_three_times_the_usual_sigma() -> None:
    # Δ is 36 and 2 σ_i σ_j is 2 · 1 · 3: a likeness of exp(-6), where the claim alone would make it 1, a share of 1/6
    method = made(UserCentric, 6)
    for claimed in (9.0, 1e3, 1e30):
        plan = planned(method, GRADIENT, gradients(claimed))
        share = plan.weights["model"][plan.cluster_of(0)][5]
        assert share == pytest.approx(np.exp(-6) / (5 + np.exp(-6)), rel=1e-12)
        assert share < 0.0005
    honest = planned(method, GRADIENT, gradients(1.0))
    assert honest.weights["model"][0][5] == pytest.approx(np.exp(-18) / (5 + np.exp(-18)), rel=1e-9)


def test_a_device_that_claims_no_variance_leaves_the_others_shares_as_without_it() -> None:
    plan = planned(made(UserCentric, 6), GRADIENT, gradients(0.0))
    assert [plan.weights["model"][0][i] for i in range(6)] == pytest.approx([0.2] * 5 + [0.0])


def test_of_two_devices_the_smaller_variance_says_what_is_usual() -> None:
    assert capped(np.array([1.0, 1e30]), np.ones(2)).tolist() == [1, 9]
    assert capped(np.array([0.0, 0.0]), np.ones(2)).tolist() == [0, 0]


def test_a_device_with_small_batches_has_the_variance_of_small_batches() -> None:
    # a batch of 1 has 20 times the variance of a batch of 20; 9 times that is believed, and no more
    assert capped(np.array([1.0, 1.0, 100.0]), np.array([20, 20, 1.0])).tolist() == [1, 1, 100]
    assert capped(np.array([1.0, 1.0, 500.0]), np.array([20, 20, 1.0])).tolist() == [1, 1, 180]


def test_variances_and_gradients_that_do_not_add_up_are_refused() -> None:
    method = made(UserCentric, 6, sketch=LENGTH)
    flat = np.zeros(LENGTH)
    assert "expected one number from 0 to 1e+30" in refused(method, {"gradient": flat, "variance": [1e300]})
    assert "outside ±1e+30" in refused(method, {"gradient": flat + 2e30, "variance": [1]})


# --- CFL ----------------------------------------------------------------------------------------------------


def cfl(updates: Mapping[int, Any]) -> Plan:
    method = made(Cfl, len(updates), sketch=LENGTH)
    before = method.plan(Moment.BEFORE, Answers([Candidate(device_index=i) for i in updates]), None)
    answers = {index: {"sketch": np.array(update, np.float64)} for index, update in updates.items()}
    return planned(method, UPDATE, answers, moment=Moment.TRAINED, before=before, global_round=9)


X, Y = np.eye(LENGTH)[:2]


def test_a_loud_device_does_not_split_the_others() -> None:
    # nine move by 1 along X, the tenth by 2 at most: the mean is at least 0.7 long, and the bound 0.25 · 2
    alike = dict.fromkeys(range(9), X)
    for loudness in (5.0, 1e6, 1e30):
        for direction in (X, -X, Y):
            assert len(cfl({**alike, 9: loudness * direction}).clusters) == 1


def test_a_loud_device_does_not_keep_together_what_pulls_apart() -> None:
    # 8 of 9 stand still between X and -X; the ninth adds at most 2/9, and the bound is 0.25 · 2
    apart = {i: X if i % 2 else -X for i in range(8)}
    for loudness in (1.0, 1e6, 1e30):
        assert len(cfl({**apart, 8: loudness * Y}).clusters) == 2


def test_an_update_up_to_twice_as_long_as_the_median_counts_as_it_is() -> None:
    # the mean is 0.5 long; of a longest of 1.9 a quarter is 0.475, of one of 2 it would be 0.5
    updates = {0: 1.9 * X, 1: -1.0 * X, 2: 0.6 * X}
    assert len(cfl(updates).clusters) == 1


@pytest.mark.parametrize(("kind", "name"), [(Cfl, "sketch"), (FedTsdp, "weights")])
def test_a_sketch_that_does_not_add_up_is_refused(kind: type[Method], name: str) -> None:
    options = {"batch": 4} if kind is FedTsdp else {}
    method, outputs = made(kind, 4, sketch=LENGTH, **options), np.full((4, 2), 0.5)
    said = {"outputs": outputs} if kind is FedTsdp else {}
    for sketch in (np.full(LENGTH, 1e308), -np.full(LENGTH, 1e31)):
        assert "outside ±1e+30" in refused(method, {**said, name: sketch})


# --- what a device says of itself concerns itself -----------------------------------------------------------


def test_whatever_losses_a_device_claims_the_others_clusters_stay() -> None:
    method = made(Ifca, 4, clusters=2)
    before = method.plan(Moment.BEFORE, Answers([Candidate(device_index=i) for i in range(4)]), None)
    for said in ([0, 1e308], [1e308, 0], [1e308, 1e308]):
        answers = {i: {"losses": np.array([1.0, 2.0] if i % 2 else [2.0, 1.0])} for i in range(3)}
        answers[3] = {"losses": np.array(said, np.float64)}
        plan = planned(method, LOSSES, answers, moment=Moment.RECEIVED, before=before, global_round=0)
        assert [plan.cluster_of(index) for index in range(3)] == [1, 0, 1]
    assert "a loss of -1; expected 0 or more" in refused(method, {"losses": [0, -1]})


def test_whatever_gains_a_device_claims_the_others_are_offered_what_they_were() -> None:
    method = made(FedFomo, 5, offered=2, explore=0)
    first = planned(method, GAINS, {i: {} for i in range(5)})
    plans = []
    for claimed in (1.0, 1e30, -1e30):
        answers = {i: {"gains": np.arange(len(first.offers[i]), dtype=np.float64)} for i in range(4)}
        answers[4] = {"gains": np.full(len(first.offers[4]), claimed)}
        plans.append(planned(method, GAINS, answers, moment=Moment.RECEIVED, before=first, global_round=0))
    assert len({plan.offers[:4] for plan in plans}) == 1


def test_a_device_moves_its_relevance_to_another_by_a_half_at_most_and_nobody_elses() -> None:
    honest = np.array([[1, 0.9, 0.2], [0.9, 1, 0.2], [0.2, 0.2, 1]])

    def plan(said: float) -> np.ndarray:
        told = honest.copy()
        told[2, :2] = said
        rows = {
            i: {"devices": np.delete(np.arange(3), i), "values": np.delete(told[i], i)} for i in range(3)
        }  # fmt: skip
        found = planned(made(OneShot, 3, clusters=2), RELEVANCE, rows).affinity
        assert found is not None
        return found

    least, most = plan(0.0), plan(1.0)
    assert least[0, 1] == most[0, 1] == 0.9
    np.testing.assert_allclose(most[2, :2] - least[2, :2], 0.5)


@pytest.mark.parametrize(
    ("kind", "question", "of", "lie"),
    [
        (Pacfl, SUBSPACE, lambda i: {"vectors": np.eye(4, dtype=np.float32)[i : i + 1]}, {"vectors": np.eye(4)}),
        (Adaptive, PRETRAINED, lambda i: {"layers": np.eye(4, dtype=np.float32)[i]}, {"layers": np.full(4, 3e38)}),
    ],
)
def test_a_device_moves_its_own_row_of_the_matrix_and_no_other(
    kind: type[Method], question: str, of: Any, lie: Any
) -> None:
    method = made(kind, 4, clusters=2)
    honest = planned(method, question, {i: of(i) for i in range(4)}).affinity
    lied = planned(
        method, question, {**{i: of(i) for i in range(3)}, 3: {k: v.astype(np.float32) for k, v in lie.items()}}
    ).affinity
    assert honest is not None
    assert lied is not None
    assert honest[:3, :3].tolist() == lied[:3, :3].tolist()
    assert np.isfinite(lied).all()


def test_a_subspace_has_no_more_vectors_than_the_device_has_examples_and_by_place_they_are_orthonormal() -> None:
    whole, by_place = made(Pacfl, 4, vectors=2), made(Pacfl, 4, vectors=2, by_label=False)
    assert "the answer has 4 vectors, more than the device's 3 examples" in refused(
        whole, {"vectors": np.eye(4)}, examples=3
    )
    assert "the answer has 1 eigenvectors; expected 2" in refused(by_place, {"vectors": np.eye(4)[:1]})
    assert "orthogonal" in refused(by_place, {"vectors": np.eye(4)[[0, 0]]})


def test_a_device_that_claims_all_labels_changes_who_is_said_to_own_one_and_no_share() -> None:
    method = made(Scores, 3)
    plans = []
    for said in ([0, 1], [1, 1]):
        answers = {i: {"owned": np.array([1, 0])} for i in range(2)} | {2: {"owned": np.array(said)}}
        plans.append(planned(method, LABELS, answers))
    assert [plan.told["owners"].tolist() for plan in plans] == [[2, 1], [3, 1]]
    assert plans[0].weights == plans[1].weights
    assert "a 0 or a 1 for each class" in refused(method, {"owned": [1 << 62, 0]})
