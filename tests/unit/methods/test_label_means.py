"""Label means: against sums and likeness written out example by example, and groups that are plain to see."""

import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

from fedstrata.checks.combinations import check_combinations
from fedstrata.errors import ExperimentError, PayloadError
from fedstrata.experiment.privacy import PrivacySettings, ProfilePrivacy
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Answers, Candidate, Facts, Moment
from fedstrata.methods.base import places_late
from fedstrata.methods.ditto import Ditto
from fedstrata.methods.flux import Flux
from fedstrata.methods.label_means import LABELS, SUMS, LabelMeans
from fedstrata.methods.profiles.label_means import (
    check_sums,
    label_sums,
    likeness,
    means_of,
    noise_deviation,
    noised,
    projected,
    spread_of,
)
from fedstrata.noise import ResearchNoise
from fedstrata.tasks.reconstruction import Reconstruction
from tests.support.methods import method_with

Matrix = NDArray[np.float64]
DIM, CLASSES = 6, 3


def made(devices: int, privacy: PrivacySettings | None = None, **options: Any) -> LabelMeans:
    facts = Facts(device_count=devices, seed=4, input_shape=(DIM,), num_classes=CLASSES, privacy=privacy)
    return method_with(LabelMeans, {"name": "label_means", **options}, facts)


def points_of(seed: int, shares: list[float], centres: Matrix, count: int = 60) -> tuple[Matrix, NDArray[np.int64]]:
    """Points near the centre of their label, of at most length one, and labels by these shares."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, count, p=shares)
    points = centres[labels] + 0.05 * rng.standard_normal((count, DIM))
    return points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1.0), labels


def plan_of(method: LabelMeans, sums: Mapping[int, Matrix], late: int | None = None) -> Any:
    there = [Candidate(device_index=index, num_examples=60) for index in sums if index != late]
    given = {index: {SUMS: each.astype(np.float32)} for index, each in sums.items()}
    return method.plan(Moment.BEFORE, Answers(there, {LABELS: given}), None), Answers(there, {LABELS: given})


UPRIGHT = np.eye(DIM)[:CLASSES] * 0.8
TURNED = np.eye(DIM)[CLASSES:] * 0.8
RENAMED = UPRIGHT[[1, 2, 0]]
EVEN, UNEVEN = [1 / 3] * 3, [0.8, 0.1, 0.1]


# --- what a device sends --------------------------------------------------------------------------------------


def test_the_projection_keeps_lengths_on_average_and_shortens_to_one() -> None:
    rows = np.random.default_rng(2).standard_normal((4000, 30))
    found = projected(rows, 10, 7, clip=2.0)  # of length 1/2 on average, so that few are shortened
    assert np.linalg.norm(found, axis=1).max() <= 1 + 1e-12
    assert (4 * (found**2).sum(axis=1)).mean() == pytest.approx(1.0, abs=0.02)
    np.testing.assert_array_equal(found, projected(rows, 10, 7, clip=2.0))
    assert not np.array_equal(found, projected(rows, 10, 8, clip=2.0))
    assert not projected(np.zeros((1, 30)), 10, 7, clip=1.0).any()


def test_sums_are_those_added_up_example_by_example() -> None:
    points, labels = points_of(1, UNEVEN, UPRIGHT)
    expected = np.zeros((CLASSES, DIM + 2))
    for point, label in zip(points, labels, strict=True):
        expected[label] += [*point, 1.0, 0.25 * (point @ point)]
    np.testing.assert_allclose(label_sums(points, labels, CLASSES), expected, atol=1e-12)


def test_a_question_has_a_row_a_label_and_at_most_as_many_numbers_as_an_input() -> None:
    (question,) = made(2, sketch=4).questions()
    assert (question.arrays, question.relayed) == ({SUMS: ("float32", (CLASSES, 6))}, False)
    assert made(2).questions()[0].arrays[SUMS][1] == (CLASSES, DIM + 2)


def test_a_task_without_labels_is_refused_by_name() -> None:
    experiment = parse_experiment("{name: a, partition: {kind: iid, devices: 2, examples_per_device: 10}}")
    facts = Facts(
        device_count=2, input_shape=(DIM,), task=Reconstruction(Reconstruction.Options(name="reconstruction"))
    )
    for kind in (LabelMeans, Flux):
        with pytest.raises(ExperimentError, match="the method needs labels"):
            check_combinations(experiment, method_with(kind, {"name": "any"}, facts))


# --- noise ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_noise_is_what_the_library_takes_for_what_one_example_moves(epsilon: float) -> None:
    settings = ProfilePrivacy(epsilon=epsilon, delta=1e-5, clip=1)
    expected = get_sigma_gaussian(epsilon, 1e-5) * math.sqrt(4 + 2 / 16)
    assert noise_deviation(settings, (10, 66)) == pytest.approx(expected, rel=1e-5)


def test_no_example_replaced_by_another_moves_an_answer_by_more() -> None:
    rng = np.random.default_rng(5)
    points = rng.standard_normal((400, DIM))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[1::2] = -points[::2]
    moved = [
        np.linalg.norm(label_sums(points[[i]], np.array([0]), 3) - label_sums(points[[j]], np.array([label]), 3))
        for i, j in zip(range(399), range(1, 400), strict=True)
        for label in (0, 1)
    ]
    assert 2.0 <= max(moved) <= math.sqrt(4 + 2 / 16) + 1e-12


def test_noise_has_the_deviation_that_is_said_and_few_examples_are_refused() -> None:
    settings, source = ProfilePrivacy(epsilon=8, clip=1), ResearchNoise(0, "device-000")
    sums = np.zeros((50, 102))
    found = noised(sums, 100, settings, source)
    assert found.std() == pytest.approx(noise_deviation(settings, sums.shape), rel=0.05)
    np.testing.assert_array_equal(found, noised(sums, 100, settings, source))
    with pytest.raises(ExperimentError, match="min_examples"):
        noised(sums, 99, settings, source)


# --- what the GPS believes ------------------------------------------------------------------------------------

FAIR = label_sums(*points_of(1, EVEN, UPRIGHT), CLASSES)


def changed(place: tuple[int, int], value: float) -> Matrix:
    sums = FAIR.copy()
    sums[place] = value
    return sums


@pytest.mark.parametrize(
    ("sums", "reason"),
    [
        (changed((0, 0), 61.0), "beyond ±60"),
        (changed((0, DIM), FAIR[0, DIM] + 1), "labels of 61 examples"),
        (changed((0, DIM), -1.0), "labels of"),
        (changed((0, DIM + 1), 0.0), "points of length one or less cannot have"),
        (changed((0, DIM + 1), 50.0), "points of length one or less cannot have"),
        (changed((0, 0), 59.0), "points of length one or less cannot have"),
    ],
)
def test_sums_that_no_device_has_are_refused(sums: Matrix, reason: str) -> None:
    method = made(2)
    device, (question,) = Candidate(device_index=0, num_examples=60), method.questions()
    method.check_answer_of(device, question, {SUMS: FAIR.astype(np.float32)}, ())
    with pytest.raises(PayloadError, match=reason):
        method.check_answer_of(device, question, {SUMS: sums.astype(np.float32)}, ())


def test_noised_sums_are_bounded_too() -> None:
    check_sums(FAIR + 3.0, 60, 1.0)
    with pytest.raises(PayloadError, match="beyond ±70"):
        check_sums(changed((1, 1), -71.0), 60, 1.0)


# --- likeness and groups --------------------------------------------------------------------------------------


def plainly(one: Matrix, other: Matrix, spread: float) -> tuple[float, float]:
    """Mass and meaning of two answers without noise, label by label."""
    mass = total = weights = 0.0
    for a, b in zip(one, other, strict=True):
        if a[-2] < 2 or b[-2] < 2:
            continue
        bias = spread / a[-2] + spread / b[-2]
        squared = float(((a[:-2] / a[-2] - b[:-2] / b[-2]) ** 2).sum())
        alike = math.exp(-2 * max(squared - bias, 0.0) / spread)
        mass += min(a[-2] / one[:, -2].sum(), b[-2] / other[:, -2].sum()) * alike
        total, weights = total + alike / bias, weights + 1 / bias
    return mass, total / weights


def test_likeness_is_that_of_pairs_written_out() -> None:
    shown = [(1, EVEN, UPRIGHT), (2, UNEVEN, UPRIGHT), (3, UNEVEN, UPRIGHT + 0.05), (4, EVEN, RENAMED)]
    data = [points_of(*each) for each in shown]
    answers = [label_sums(points, labels, CLASSES) for points, labels in data]
    within = sorted(
        sum(((points[labels == c] - points[labels == c].mean(axis=0)) ** 2).sum() for c in range(CLASSES))
        / (len(points) - CLASSES)
        for points, labels in data
    )
    means = means_of(answers, 0.0, spread_of(answers, 0.0))
    assert means.spread == pytest.approx(within[1])  # the lower median of four
    found = likeness(means, means)
    for i, one in enumerate(answers):
        for j, other in enumerate(answers):
            assert (found["mass"][i, j], found["meaning"][i, j]) == pytest.approx(plainly(one, other, within[1]))


def test_devices_without_two_examples_of_a_label_do_not_change_the_spread() -> None:
    """Here they are most devices, and say nothing about how far examples of one label are apart."""
    whole = [label_sums(*points_of(seed, EVEN, UPRIGHT), CLASSES) for seed in range(2)]
    tiny = [label_sums(UPRIGHT, np.arange(CLASSES), CLASSES)] * 3
    found, alone = (means_of(answers, 0.0, spread_of(answers, 0.0)) for answers in (whole + tiny, whole))
    assert found.spread == alone.spread > 1e-3
    assert likeness(found, found)["mass"][0, 1] == likeness(alone, alone)["mass"][0, 1] > 0.8
    assert spread_of(tiny, 0.0) == 1e-6
    plan, _ = plan_of(made(5), dict(enumerate(whole + tiny)))
    assert plan.affinity[2, 3] == 0.0
    assert (np.diag(plan.affinity) == 1.0).all()


SETTINGS = {
    "label shares": ([(EVEN, UPRIGHT), (UNEVEN, UPRIGHT)], "mass"),
    "inputs": ([(EVEN, UPRIGHT), (EVEN, TURNED)], None),
    "meaning": ([(EVEN, UPRIGHT), (EVEN, RENAMED)], None),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("clusters", ["auto", 2])
def test_groups_of_each_kind_are_found_and_late_devices_join_them(name: str, clusters: Any) -> None:
    kinds, view = SETTINGS[name]
    data = {index: label_sums(*points_of(index, *kinds[index % 2]), CLASSES) for index in range(9)}
    method = made(9, clusters=clusters)
    plan, answers = plan_of(method, data, late=8)
    assert plan.clusters == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert plan.memory["view"] == view or view is None
    assert method.place(Candidate(device_index=8), answers, plan) == 0
    backwards, _ = plan_of(method, dict(reversed(data.items())), late=8)
    assert (backwards.clusters, backwards.rule) == (plan.clusters, plan.rule)
    expected = fcluster(linkage(squareform(1 - plan.affinity, checks=False), "average"), 2, "maxclust")
    assert len(set(zip(expected, [0, 1] * 4, strict=True))) == 2


def test_devices_that_differ_by_chance_alone_are_one_cluster() -> None:
    data = {index: label_sums(*points_of(index, EVEN, UPRIGHT, 600), CLASSES) for index in range(12)}
    assert plan_of(made(12), data)[0].clusters == (tuple(range(12)),)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("clusters", ["auto", 1, 2, 3])
def test_few_devices_are_grouped(devices: int, clusters: Any) -> None:
    data = {index: label_sums(*points_of(index, EVEN, UPRIGHT), CLASSES) for index in range(devices)}
    plan, answers = plan_of(made(3, clusters=clusters), data)
    plan.check_covers(answers.devices)
    assert clusters == "auto" or len(plan.clusters) == min(clusters, devices)


def test_many_devices_join_the_groups_of_those_drawn() -> None:
    kinds = [(EVEN, UPRIGHT), (UNEVEN, UPRIGHT), (EVEN, TURNED)]
    data = {index: label_sums(*points_of(index, *kinds[index % 3]), CLASSES) for index in range(90)}
    plan, _ = plan_of(made(90, landmarks=20, clusters=3, view="mass"), data)
    found = [plan.cluster_of(index) for index in range(90)]
    assert adjusted_rand_score([index % 3 for index in range(90)], found) > 0.98
    assert plan.affinity is not None
    assert plan.affinity.shape == (20, 20)
    assert len(plan.related) == 20


def test_a_plan_of_twice_the_devices_takes_the_same_memory() -> None:
    def peak(devices: int) -> int:
        facts = Facts(device_count=devices, input_shape=(64,), num_classes=10)
        method = method_with(LabelMeans, {"name": "label_means", "clusters": 2, "landmarks": 16}, facts)
        rng = np.random.default_rng(1)
        sums = rng.random((devices, 10, 66), np.float32) + 2  # ten labels with at least two examples each
        given = {index: {SUMS: each} for index, each in enumerate(sums)}
        answers = Answers([Candidate(device_index=index) for index in given], {LABELS: given})
        tracemalloc.start()
        method.plan(Moment.BEFORE, answers, None)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(2048) < 1.2 * peak(1024)


def test_a_device_that_lies_moves_its_own_row_alone() -> None:
    data = {index: label_sums(*points_of(index, EVEN, UPRIGHT), CLASSES) for index in range(5)}
    lie = FAIR * np.array([*[0.0] * DIM, 1.0, 1.0])  # no mean, as far from it as may be
    honest, lying = (plan_of(made(6, view="mass"), {**data, 5: each})[0] for each in (FAIR, lie))
    np.testing.assert_allclose(honest.affinity[:5, :5], lying.affinity[:5, :5], atol=0.1)  # by v, a median


def test_what_travels_is_an_option_and_other_training_a_base_class() -> None:
    from fedstrata.datasets import DatasetInfo
    from fedstrata.experiment import ModelSettings
    from fedstrata.models import build_model

    model = build_model(ModelSettings(hidden=(3,)), DatasetInfo(input_shape=(DIM,), num_classes=CLASSES))
    reaches = {
        averaging: [channel.reach.value for channel in made(2, averaging=averaging).channels(model)]
        for averaging in ("all", "shared", "without_heads")
    }
    assert reaches == {"all": ["cluster"], "shared": ["everywhere", "cluster"], "without_heads": ["cluster", "device"]}

    class InGroups(LabelMeans, Ditto):
        class Options(LabelMeans.Options, Ditto.Options):
            pass

    assert InGroups.local is Ditto.local
    assert (InGroups.plan, places_late(InGroups)) == (LabelMeans.plan, True)
