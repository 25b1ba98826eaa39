"""Adaptive clusters: cosines by hand, the cut, what a round begins with, the first round as the pre-training."""

import numpy as np
import pytest
from scipy.spatial.distance import cosine

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, Candidate, Facts, Moment, Plan
from fedstrata.methods.adaptive import Adaptive, compared, cosine_affinity
from fedstrata.tensors.layout import Layout
from tests.support.device_work import Devices, on_digits
from tests.support.methods import method_with

NAME = {"name": "adaptive"}
CNN = Layout.of(
    {"conv.weight": (2, 1, 3, 3), "conv.bias": (2,), "a.weight": (4, 8), "a.bias": (4,), "b.weight": (2, 4)}
)


def experiment(*overrides: str) -> Experiment:
    return on_digits("adaptive", *overrides)


def planned(vectors: list[list[float]], **options: object) -> Plan:
    method = method_with(Adaptive, {**NAME, **options}, Facts(device_count=len(vectors)))
    answers = {index: {"layers": np.array(vector, np.float32)} for index, vector in enumerate(vectors)}
    devices = [Candidate(device_index=index) for index in answers]
    return method.plan(Moment.BEFORE, Answers(devices, {"pretrained": answers}), None)


# --- clusters -----------------------------------------------------------------------------------------------


def test_affinity_is_the_cosine_brought_to_zero_to_one() -> None:
    vectors = np.array([[1, 0], [3, 3], [-2, 0], [0, 0]], np.float32)
    root = (1 + np.sqrt(0.5)) / 2
    expected = [[1, root, 0, 0.5], [root, 1, 1 - root, 0.5], [0, 1 - root, 1, 0.5], [0.5, 0.5, 0.5, 1]]
    np.testing.assert_allclose(cosine_affinity(vectors), expected, atol=1e-15)


def test_affinity_agrees_with_scipys_cosine() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
    expected = [[1 - cosine(one, other) / 2 for other in vectors] for one in vectors]
    np.testing.assert_allclose(cosine_affinity(vectors), expected, atol=1e-6)


def at(*degrees: float) -> list[list[float]]:
    """Unit vectors in these directions."""
    return [[float(np.cos(np.radians(each))), float(np.sin(np.radians(each)))] for each in degrees]


def test_clusters_are_joined_while_the_mean_cosine_is_at_least_the_threshold() -> None:
    # cos 20° = 0.940 joins 0° and 20°; from them 50° is cos 50° and cos 30° away, (0.643 + 0.866) / 2 = 0.754
    assert planned(at(0, 20, 50), threshold=0.9).clusters == ((0, 1), (2,))
    assert planned(at(0, 20, 50), threshold=0.75).clusters == ((0, 1, 2),)
    assert planned(at(0, 20, 50), threshold=0.76).clusters == ((0, 1), (2,))
    plan = planned(at(0, 20, 50), threshold=0.95)
    assert plan.clusters == ((0,), (1,), (2,))
    assert plan.rule == "3 at cosine 0.95"


def test_a_number_of_clusters_is_made_whatever_the_cosines() -> None:
    assert planned(at(0, 1, 180, 181, 2), clusters=2).clusters == ((0, 1, 4), (2, 3))


def test_the_number_is_read_off_the_dendrogram_where_nothing_is_said() -> None:
    assert planned(at(0, 5, 120, 125, 240)).clusters == ((0, 1), (2, 3), (4,))


@pytest.mark.parametrize("options", [{"threshold": 0.9}, {}])
def test_one_device_is_one_cluster(options: dict[str, float]) -> None:
    assert planned(at(7), **options).clusters == ((0,),)


# --- what is compared ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "names"), [("last", ("b.weight",)), ("dense", ("a.weight", "a.bias", "b.weight")), ("all", CNN.names)]
)
def test_compared_layers_are_the_last_the_dense_or_all(layers: str, names: tuple[str, ...]) -> None:
    assert compared(CNN, layers).names == names


def test_a_model_without_dense_layers_has_none_to_compare() -> None:
    with pytest.raises(ExperimentError, match="has no dense layers; choose all"):
        compared(Layout.of({"conv.weight": (2, 1, 3, 3)}), "dense")


async def test_a_device_sends_the_last_layer_of_its_update_or_of_its_weights() -> None:
    updates, weights = Devices(experiment()), Devices(experiment("method.compare=weights", "method.layers=all"))
    sent = [
        (await each.method.answer(each.method.questions()[0], each.work(1), {}))["layers"]
        for each in (updates, weights)
    ]
    initial = updates.model.initial(3)
    assert len(sent[0]) == 10 * 6 + 10
    assert len(sent[1]) == len(initial)
    assert (sent[0] == (sent[1] - initial)[-70:]).all()
    assert sent[0].any()


# --- local work ---------------------------------------------------------------------------------------------


async def test_the_first_round_is_the_pretraining_to_the_bit_whatever_the_link_made_of_the_weights() -> None:
    devices = Devices(experiment("method.compare=weights", "method.layers=all"))
    sent = (await devices.method.answer(devices.method.questions()[0], devices.work(1), {}))["layers"]
    received = devices.model.initial(3).astype(np.float16).astype(np.float32)
    outcome = await devices.method.local(devices.work(1, 0, received=[received]))
    assert outcome.weights.tobytes() == sent.tobytes()
    assert not outcome.personal


async def test_the_pretraining_takes_its_own_number_of_epochs() -> None:
    two, three = Devices(experiment("method.pretrain_epochs=2")), Devices(experiment("method.pretrain_epochs=3"))
    outcomes = [await each.method.local(each.work(0, 0, received=[each.model.initial(3)])) for each in (two, three)]
    longer = await two.work(0, 0).train(two.model.initial(3), epochs=3)
    assert (outcomes[1].weights == longer.weights).all()
    assert (outcomes[0].weights != longer.weights).any()


async def test_a_round_begins_with_the_mix_and_keeps_what_was_trained() -> None:
    devices = Devices(experiment("method.own_share=0.25"))
    own, received = np.full((2, devices.model.layout.size), [[4.0], [8.0]], np.float32) / 100
    work = devices.work(0, 5, received=[received], personal={"model": own})
    outcome = await devices.method.local(work)
    expected = await devices.work(0, 5).train(np.float32(0.25) * own + np.float32(0.75) * received)
    assert (outcome.weights == expected.weights).all()
    assert outcome.personal["model"] is outcome.weights
    assert outcome.measured == expected.measured


async def test_without_weights_of_its_own_a_device_begins_with_its_clusters() -> None:
    devices = Devices(experiment("method.own_share=1"))
    received = np.full(devices.model.layout.size, 0.01, np.float32)
    outcome = await devices.method.local(devices.work(0, 1, received=[received]))
    assert (outcome.weights == (await devices.work(0, 1).train(received)).weights).all()


@pytest.mark.parametrize("measure", ["mixed", "own"])
async def test_accuracy_is_that_of_the_mix_or_of_the_own_weights(measure: str) -> None:
    devices = Devices(experiment(f"method.measure={measure}"))
    size = devices.model.layout.size
    own, received = (np.random.default_rng(seed).normal(size=size).astype(np.float32) for seed in (1, 2))
    work = devices.work(0, 5, received=[received], personal={"model": own})
    looked_at = {"own": own, "mixed": np.float32(0.25) * own + np.float32(0.75) * received}[measure]
    expected = await work.measure(looked_at)
    assert (await devices.method.local(work)).measured == expected
    assert await devices.method.measure(work) == (expected, await work.measure(received))


# --- nonsense -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method.clusters=5"], "method.clusters is 5, more than the 4 devices"),
        (["method.clusters=2", "method.threshold=0.9"], "method.threshold decides the number of clusters"),
        (["method.own_share=1.5"], "method.own_share: must be at most 1"),
        (["method.pretrain_epochs=0"], "method.pretrain_epochs: must be at least 1"),
        (["method.threshold=2"], "method.threshold: must be at most 1"),
        (["method.compare=losses"], "method.compare: must be 'updates' or 'weights'"),
    ],
)
def test_options_that_make_no_sense_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        experiment(*overrides)
    assert message in str(raised.value)


def experiment_method() -> Adaptive:
    method = Devices(experiment()).method
    assert isinstance(method, Adaptive)
    return method
