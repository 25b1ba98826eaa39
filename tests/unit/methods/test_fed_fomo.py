"""FedFOMO: gains and mixes by hand and against NumPy's own losses, and whose models are offered to whom."""

import numpy as np
import pytest

from fedstrata.datasets import Examples
from fedstrata.errors import DataError, PayloadError
from fedstrata.experiment import Experiment, TrainingSettings
from fedstrata.methods import Answers, Candidate, Facts, Moment, Plan
from fedstrata.methods.fed_fomo import BEGAN, GAINS, LARGEST, FedFomo, distances, gains_of, mixed, split
from fedstrata.tensors import Flat
from tests.support.device_work import Devices, on_digits


def experiment(*overrides: str) -> Experiment:
    return on_digits("{name: fedfomo, offered: 2}", *overrides)


def method(devices: int, *, seed: int = 0, **options: object) -> FedFomo:
    training = TrainingSettings(global_rounds=1, lps_rounds_per_global_round=1)
    return FedFomo(
        FedFomo.Options.model_validate({"name": "fedfomo", **options}),
        Facts(device_count=devices, seed=seed, training=training),
    )


def f32(*values: float) -> Flat:
    return np.array(values, np.float32)


# --- gains and mixes --------------------------------------------------------------------------------------


def test_a_gain_is_how_much_less_the_loss_is_over_how_far_the_model_is() -> None:
    began, models = f32(1, 1), [f32(4, 5), f32(1, 1), f32(1, 3)]
    assert distances(began, models) == [5, 0, 2]
    assert gains_of(2.0, [1.0, 2.0, 3.0], [5, 0, 2]).tolist() == [0.2, 0, -0.5]


def test_a_model_that_has_diverged_is_of_no_gain_and_any_is_of_gain_to_one_that_has() -> None:
    assert gains_of(2.0, [float("nan"), float("inf"), 1.0], [1, 1e-9, 1])[:2].tolist() == [-LARGEST, -LARGEST]
    assert gains_of(float("nan"), [2.0, float("nan")], [1, 1]).tolist() == [LARGEST, 0]


def test_the_mix_is_the_mean_of_the_models_that_help_by_their_gains() -> None:
    models = [f32(1, 0), f32(0, 1), f32(9, 9)]
    assert mixed(f32(5, 5), models, np.array([0.3, 0.1, -2])).tolist() == f32(0.75, 0.25).tolist()
    assert mixed(f32(5, 5), models, np.array([LARGEST, LARGEST, 0])).tolist() == [0.5, 0.5]


def test_where_no_model_helps_the_device_begins_where_it_began() -> None:
    assert mixed(f32(5, 5), [f32(1, 0), f32(0, 1)], np.array([0, -1])).tolist() == [5, 5]


# --- at a device --------------------------------------------------------------------------------------------


def examples_of(count: int) -> Examples:
    return Examples(inputs=np.arange(count, dtype=np.float32)[:, None], labels=np.zeros(count, np.int64))


@pytest.mark.parametrize(("count", "share", "aside"), [(10, 0.2, 2), (37, 0.2, 7), (2, 0.2, 1), (3, 0.9, 2)])
def test_some_examples_are_set_aside_and_no_example_is_in_both_parts(count: int, share: float, aside: int) -> None:
    training, validation = split(examples_of(count), share, [0, 1])
    assert len(validation) == aside
    assert sorted([*training.inputs[:, 0], *validation.inputs[:, 0]]) == list(range(count))


def test_which_are_set_aside_is_drawn_for_each_device_by_the_seed() -> None:
    drawn = [split(examples_of(40), 0.2, address)[1].inputs.tobytes() for address in ([0, 1], [0, 1], [0, 2], [1, 1])]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_a_device_with_one_example_has_nothing_to_set_aside() -> None:
    with pytest.raises(DataError, match="needs at least two; a device has 1"):
        split(examples_of(1), 0.5, [0])


def loss_by_hand(devices: Devices, weights: Flat, examples: Examples) -> float:
    """The mean cross-entropy of a network of one hidden layer, in NumPy and float64."""
    w = {name: view.astype(np.float64) for name, view in devices.model.layout.views(weights).items()}
    hidden = np.maximum(examples.inputs.reshape(len(examples), -1) @ w["fc1.weight"].T + w["fc1.bias"], 0)
    logits = hidden @ w["fc2.weight"].T + w["fc2.bias"]
    chosen = logits[np.arange(len(examples)), examples.labels]
    return float(np.mean(np.log(np.exp(logits).sum(1)) - chosen))


def models_by_hand(devices: Devices) -> tuple[Flat, list[Flat]]:
    """Where a device began, and three models beside it."""
    rng, began = np.random.default_rng(5), devices.model.initial(3)
    return began, [began + rng.normal(0, 0.1, began.shape).astype(np.float32) for _ in range(3)]


async def test_a_device_weighs_what_it_is_offered_on_examples_that_it_does_not_train_on() -> None:
    devices = Devices(experiment())
    began, models = models_by_hand(devices)
    work = devices.work(1, lps_round=1, received=models, offered=(0, 1, 3), cluster=1, personal={BEGAN: began})
    sent = await devices.method.answer(devices.method.questions()[0], work, {})

    order = np.random.default_rng([3, 1, 0xF0405E]).permutation(37)
    validation, training = (work.examples.take(np.sort(part)) for part in (order[:7], order[7:]))
    losses = [loss_by_hand(devices, each, validation) for each in (began, *models)]
    lengths = [np.linalg.norm(each.astype(np.float64) - began) for each in models]
    expected = [(losses[0] - loss) / length for loss, length in zip(losses[1:], lengths, strict=True)]
    np.testing.assert_allclose(sent["gains"], expected, rtol=1e-4, atol=1e-7)
    assert min(expected) < 0 < max(expected)  # so that some help and some do not

    outcome = await devices.method.local(work)
    positive = np.maximum(expected, 0)
    mix = sum(share * each for share, each in zip(positive / positive.sum(), models, strict=True))
    np.testing.assert_allclose(outcome.personal[BEGAN], mix, atol=1e-5)
    again = devices.work(1, lps_round=1, received=models)
    trained = await again.train(outcome.personal[BEGAN], on=training)
    assert outcome.weights.tobytes() == trained.weights.tobytes()
    assert outcome.measured is not None
    assert outcome.measured.loss == pytest.approx(
        loss_by_hand(devices, outcome.personal[BEGAN], devices.held_out(1)), rel=1e-4
    )


async def test_what_a_device_weighed_for_its_answer_is_not_weighed_again_and_not_needed() -> None:
    devices = Devices(experiment())
    began, models = models_by_hand(devices)
    rest = {"lps_round": 1, "received": models, "offered": (0, 1, 3), "cluster": 1, "personal": {BEGAN: began}}
    asked, begun_anew = devices.work(1, **rest), devices.work(1, **rest)
    await devices.method.answer(devices.method.questions()[0], asked, {})
    assert set(asked.noted) == {GAINS}
    outcomes = [await devices.method.local(work) for work in (asked, begun_anew)]
    assert outcomes[0].weights.tobytes() == outcomes[1].weights.tobytes()


# --- whose models are offered to whom -----------------------------------------------------------------------


def plans(made: FedFomo, told: list[dict[int, list[float]]], devices: int) -> list[Plan]:
    """The plan before training, and that of each round in which devices answered this."""
    there = [Candidate(device_index=10 * index) for index in range(devices)]
    found = [made.plan(Moment.BEFORE, Answers(there), None)]
    for number, gains in enumerate(told):
        given = {GAINS: {index: {"gains": np.array(each)} for index, each in gains.items()}}
        found.append(made.plan(Moment.RECEIVED, Answers(there, given, number), found[-1]))
    return found


def test_a_device_is_offered_its_own_model_and_those_that_have_helped_it_most() -> None:
    made = method(4, offered=2, explore=0)
    (before,) = plans(made, [], 4)
    assert before.clusters == ((0,), (10,), (20,), (30,))
    places = before.offers[1]
    assert len(places) == 3
    assert 1 in places
    stranger = next(place for place in range(4) if place not in places)
    other = next(place for place in places if place not in {1, stranger})
    gains = [-1.0 if place == other else 2.0 for place in places]
    _, after = plans(made, [{10: gains}], 4)
    assert after.clusters == before.clusters
    assert stranger in after.offers[1]  # one that has not been tried is better than one that does harm
    assert other not in after.offers[1]
    expected = dict(zip(places, gains, strict=True)) | {stranger: 0}
    assert after.memory["affinity"][1] == [expected[place] for place in range(4)]


def test_gains_are_added_up_over_the_rounds_and_who_does_not_answer_keeps_his() -> None:
    made = method(2, offered=1)
    told = [{0: [0.5, 1.0], 10: [3.0, 0.0]}, {0: [0.25, -4.0]}]
    assert plans(made, told, 2)[-1].memory["affinity"] == [[0.75, -3.0], [3.0, 0.0]]


def test_offers_are_a_function_of_the_seed_the_round_and_the_device() -> None:
    first, again, other = (plans(method(12, seed=seed), [{}], 12) for seed in (1, 1, 2))
    assert [plan.offers for plan in first] == [plan.offers for plan in again]
    assert first[0].offers != first[1].offers
    assert first[0].offers != other[0].offers


def test_exploring_gets_less_with_the_rounds() -> None:
    made = method(30, offered=10, explore=1, explore_less=0.1)
    liked = {10 * index: [0.0] * 11 for index in range(30)}
    found = plans(made, [liked], 30)
    found[1].memory["affinity"][0][1:] = list(range(29, 0, -1))  # device 0 likes those of the lowest numbers best
    there = [Candidate(device_index=10 * index) for index in range(30)]

    def best(number: int) -> int:
        """How many of the ten that device 0 likes best it is offered."""
        offered = made.plan(Moment.RECEIVED, Answers(there, {}, number), found[1]).offers[0]
        assert len(offered) == 11
        return len(set(offered) & set(range(1, 11)))

    assert best(9) == 10
    assert best(0) < best(9)


def test_where_there_are_fewer_others_all_are_offered() -> None:
    assert plans(method(3), [], 3)[0].offers == ((0, 1, 2),) * 3
    assert plans(method(1), [], 1)[0].offers == ((0,),)
    assert (method(3).most_offered, method(9).most_offered) == (3, 6)


@pytest.mark.parametrize("gains", [[], [1e31], [-1e31]])
def test_gains_that_cannot_be_added_up_are_refused(gains: list[float]) -> None:
    made = method(3)
    with pytest.raises(PayloadError, match="must have at least one gain, and gains from -1e"):
        made.check_answer(made.questions()[0], {"gains": np.array(gains)}, ())
