"""What the GPS keeps between global rounds, and how it moves: numbers to redo by hand."""

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from fedstrata.errors import NoUpdatesError, PayloadError
from fedstrata.methods import Channel, Facts, Method, Plan, Reach, all_layers, shared_and_rest
from fedstrata.models import Model
from fedstrata.rules import Gathering
from fedstrata.store import AnyModel, ModelInMemory
from fedstrata.store.model_file import joined
from fedstrata.streams.streams import WEIGHT_GRID, Streams, streams_of
from fedstrata.tensors import ExactSum, Flat, Layout
from gps.journal.answers import BEFORE
from gps.plans.keepers import Keeper
from gps.plans.places import Places
from tests.support.gatherings import NOWHERE, one_stream
from tests.support.gps_parts import GpsParts
from tests.support.methods import method_with

LAYOUT = Layout.of({"base": (2,), "head": (1,)})
TWO_LPSS = ("topology={lps: 2, devices: [[0, 1], [2, 3, 4]]}", "training.lps_rounds_per_global_round=1")


def initial(seed: int) -> Flat:
    return np.float32([1, 2, 3]) + np.float32(seed)


MODEL = Model(layout=LAYOUT, shared=("base",), initial=initial, outputs=lambda weights, inputs: inputs)


class Heads(Method):
    """`base` everywhere, a `head` in each cluster; the weights that cluster c begins with are c higher."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        return shared_and_rest(model, Reach.CLUSTER)

    def initial(self, model: Model, cluster: int) -> Flat:
        return model.initial(cluster)


class Mixing(Heads):
    """A whole model in each cluster, mixed from all devices."""

    mixes = True

    def channels(self, model: Model) -> tuple[Channel, ...]:
        return all_layers(model, Reach.CLUSTER)


def following(keeper: Keeper, model: AnyModel, sums: Gathering, global_round: int = 0) -> list[float]:
    """What the next global round starts from where the GPS has no optimiser of its own."""
    found: list[float] = []
    for change in keeper.changes(sums, global_round):
        base = model.read(change.start, change.stop)
        if change.update is not None:
            base = change.update if change.is_absolute else base + change.update
        found += base.tolist()
    return found


class Setting:
    """Five devices with 10, 10, 10, 20 and 20 examples on two LPSs, and the keeper of their streams."""

    def __init__(self, folder: Path, kind: type[Method] = Heads, *overrides: str) -> None:
        gps = GpsParts(folder, *TWO_LPSS, *overrides)
        gps.enrol(*range(5))
        method = method_with(kind, {"name": "own:method"}, Facts(device_count=5))
        self.places = Places(gps.experiment, method, gps.roster, gps.journal)
        self.streams: Streams = streams_of(gps.experiment, method, MODEL)
        self.keeper = Keeper(gps.experiment, method, MODEL, self.streams, self.places, folder=NOWHERE)
        self.places.make(BEFORE, Plan(clusters=((0, 2), (1, 3, 4)), rule="as given"))

    def model(self, *values: float, global_round: int = 0) -> AnyModel:
        return ModelInMemory(self.keeper.layout(global_round), np.float32(values), {})

    def sums(self) -> Gathering:
        return self.keeper.sums(self.places.examples(0), 0)

    def following(self, model: AnyModel, sums: Gathering, global_round: int = 0) -> list[float]:
        return following(self.keeper, model, sums, global_round)


def part(*updates: tuple[Sequence[float], int]) -> tuple[list[int], int]:
    """One LPS's partial sum of a stream, on the grid, and its weight."""
    total = ExactSum(len(updates[0][0]), 1000)
    for values, weight in updates:
        total.add(np.float32(values), weight)
    return total.sums().tolist(), total.num_examples


def send(sums: Gathering, lps_id: str, *parts: tuple[list[int], int]) -> None:
    """What an LPS sends of all streams, element by element: a payload may be cut anywhere."""
    values = np.int64([value for sums_of, _ in parts for value in sums_of])
    weights = [weight for _, weight in parts]
    sums.check(lps_id, weights)
    for at in range(len(values)):
        sums.take(lps_id, at, values[at : at + 1], weights)
    sums.accept(lps_id, weights)


NOBODY = ([0], 0)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


# --- streams ------------------------------------------------------------------------------------------------


def test_a_vector_has_what_everybody_shares_and_then_each_clusters_own(setting: Setting) -> None:
    assert setting.keeper.layout(0).names == ("base", "0/head", "1/head")
    assert joined(setting.keeper.initial()).tolist() == [1, 2, 3, 4]
    offer = setting.keeper.offer(setting.model(1, 2, 3, 4), 0)
    assert offer.clusters == 2
    assert offer.parts is not None
    assert [name for name, _ in offer.parts] == ["shared", "0/head", "1/head"]


def test_each_stream_moves_by_the_mean_update_of_the_devices_that_share_it(setting: Setting) -> None:
    sums = setting.sums()
    # on lps-0 device 0 (10 examples, cluster 0) and 1 (10, cluster 1); on lps-1 device 2 (10, cluster 0), 3 and 4 (20)
    send(sums, "lps-0", part(([1, 0], 10), ([0, 0], 10)), part(([3], 10)), part(([7], 10)))
    send(sums, "lps-1", part(([0, 0], 10), ([0, 7], 20), ([0, 0], 20)), part(([1], 10)), part(([2], 20), ([0.5], 20)))
    # base: 10/70 and 140/70; head of cluster 0: (30 + 10)/20; of cluster 1: (70 + 40 + 10)/50
    moved = setting.following(setting.model(1, 1, 1, 1), sums)
    assert moved == [np.float32(1) + np.float32(1 / 7), 3.0, 3.0, np.float32(1) + np.float32(2.4)]


def test_partial_sums_in_any_order_come_to_the_bits_of_one_sum(setting: Setting) -> None:
    rng = np.random.default_rng(0)
    updates, weights = rng.standard_normal((5, 2)).astype(np.float32), [10, 10, 10, 20, 20]
    one = ExactSum(2, 70)
    for update, weight in zip(updates, weights, strict=True):
        one.add(update, weight)
    expected = np.float32([5, 6]) + one.mean()
    found = []
    for order in permutations(range(5)):
        sums = setting.sums()
        for name, members in (("lps-0", {0, 1}), ("lps-1", {2, 3, 4})):
            own = [(updates[index].tolist(), weights[index]) for index in order if index in members]
            send(sums, name, part(*own), NOBODY, NOBODY)
        found.append(setting.following(setting.model(5, 6, 0, 0), sums)[:2])
    assert all(moved == expected.tolist() for moved in found)


def test_a_stream_that_nobody_is_in_stays_as_it_is(setting: Setting) -> None:
    sums = setting.sums()
    send(sums, "lps-0", part(([1, 1], 10)), part(([1], 10)), NOBODY)
    assert setting.following(setting.model(5, 6, 7, 8), sums) == [6, 7, 8, 8]


def test_an_empty_cluster_takes_nothing_and_keeps_its_model(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.places.make(0, Plan(clusters=((), (0, 1, 2, 3, 4)), rule="all in the second"))
    sums = setting.sums()
    with pytest.raises(PayloadError, match="states the weights"):
        sums.check("lps-0", [20, 1, 20])
    send(sums, "lps-0", part(([0, 0], 20)), NOBODY, part(([2], 20)))
    assert setting.following(setting.model(5, 6, 7, 8), sums) == [5, 6, 7, 10]


def test_a_new_cluster_goes_on_from_its_parents_model_and_this_rounds_updates_count_for_it(setting: Setting) -> None:
    plan = Plan(clusters=((0,), (1, 3, 4), (2,)), rule="3 by bipartition", parents=(0, 1, 0))
    setting.places.make(0, plan)
    assert setting.keeper.layout(0).names == ("base", "0/head", "1/head")
    assert setting.keeper.layout(1).names == ("base", "0/head", "1/head", "2/head")
    sums = setting.sums()
    send(sums, "lps-0", part(([0, 0], 20)), part(([1], 10)), part(([0], 10)), NOBODY)
    send(sums, "lps-1", part(([0, 0], 50)), NOBODY, part(([0], 40)), part(([-1], 10)))
    assert setting.following(setting.model(1, 2, 30, 40), sums) == [1, 2, 31, 40, 29]


def test_clusters_that_change_their_numbers_take_their_models_along(setting: Setting) -> None:
    setting.places.make(0, Plan(clusters=((1, 3, 4), (0, 2)), rule="the other way round", parents=(1, 0)))
    assert setting.following(setting.model(1, 2, 30, 40), setting.sums()) == [1, 2, 40, 30]


def test_a_mixed_stream_is_the_mean_itself_by_the_plans_weights(tmp_path: Path) -> None:
    setting = Setting(tmp_path, Mixing)
    mixed = {"model": ({0: 0.75, 3: 0.25}, {4: 1.0})}
    setting.places.make(0, Plan(clusters=((0, 2), (1, 3, 4)), rule="mixed", weights=mixed))
    sums = setting.sums()
    quarter = WEIGHT_GRID // 4
    send(sums, "lps-0", ([3 * quarter << 32, 0, 0], 3 * quarter), ([0, 0, 0], 0))  # 0.75 of (1, 0, 0)
    send(sums, "lps-1", ([quarter << 33, 0, 0], quarter), ([0, 4 * quarter << 32, 0], 4 * quarter))  # 0.25 of (2, 0, 0)
    # whatever the streams were before: 0.75 · 1 + 0.25 · 2, and the model of device 4 alone
    assert setting.following(setting.model(9, 9, 9, 9, 9, 9), sums) == [1.25, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("rounds", "most"),
    [
        ("{kind: synchronous}", [20, 10, 10]),
        ("{kind: buffered, buffer: 1, step: 2}", [20, 10, 10]),
        ("{kind: buffered, buffer: 1, step: 0.3}", [67, 34, 34]),  # the largest divisors: 20 / 0.3 and 10 / 0.3
    ],
)
def test_an_lps_has_at_most_the_weight_of_its_devices_in_a_stream(tmp_path: Path, rounds: str, most: list[int]) -> None:
    sums = Setting(tmp_path, Heads, f"training.rounds.lps={rounds}").sums()
    for weights in (most, [0, 0, 0]):
        sums.check("lps-0", weights)
    base, first, second = most
    wrong = ([base + 1, first, second], [base, first + 1, second], [base, first, -1], [base, first], [*most, 0])
    for weights in wrong:
        with pytest.raises(PayloadError, match=rf"lps-0 states the weights .* expected at most \[{base}, {first}, "):
            sums.check("lps-0", weights)


def test_sums_beyond_what_an_lpss_devices_can_come_to_are_refused(setting: Setting) -> None:
    sums = setting.sums()
    with pytest.raises(PayloadError, match="with 10 examples they can be at most"):
        sums.take("lps-0", 2, np.int64([2**62]), [20, 10, 10])
    send(sums, "lps-0", part(([0, 0], 20)), part(([1], 10)), part(([1], 10)))
    assert setting.following(setting.model(0, 0, 0, 0), sums) == [0, 0, 1, 1]


def test_lpss_with_rounds_of_their_own_send_means_not_sums(tmp_path: Path) -> None:
    setting = Setting(tmp_path, Heads, "training.lps_rounds_per_global_round=2")
    sums = setting.sums()
    sums.take("lps-0", 0, np.float32([1, 0, 3, 7]), [20, 10, 10])
    sums.accept("lps-0", [20, 10, 10])
    sums.take("lps-1", 0, np.float32([0, 2, 1, 2]), [50, 10, 0])  # of cluster 1 nobody took part: its 2 is nobody's
    sums.accept("lps-1", [50, 10, 0])
    moved = setting.following(setting.model(0, 0, 0, 0), sums)
    assert moved == pytest.approx([20 / 70, 100 / 70, 2, 7])


def test_an_lps_counts_at_most_by_all_its_devices_in_all_its_lps_rounds(tmp_path: Path) -> None:
    for name in ("spanning", "own"):
        (tmp_path / name).mkdir()
    sums = Setting(tmp_path / "spanning", Heads, "training.lps_rounds_per_global_round=3").sums()
    sums.check("lps-0", [60, 30, 30])
    for weights in ([61, 30, 30], [60, 31, 30]):
        with pytest.raises(PayloadError, match=r"expected at most \[60, 30, 30\]"):
            sums.check("lps-0", weights)
    own = shared_keeper(tmp_path / "own", "training.lps_rounds_per_global_round=3").sums({"lps-0": 20}, 0)
    own.check("lps-0", [60])
    with pytest.raises(PayloadError, match="from 1 to 60"):
        own.check("lps-0", [61])


def test_a_newcomer_counts_from_its_first_global_round_however_early_it_has_a_place(tmp_path: Path) -> None:
    gps = GpsParts(tmp_path, *TWO_LPSS, "newcomers={devices: [4], from_global_round: 3}")
    method = method_with(Heads, {"name": "own:method"}, Facts(device_count=5))
    places = Places(gps.experiment, method, gps.roster, gps.journal)
    keeper = Keeper(gps.experiment, method, MODEL, streams_of(gps.experiment, method, MODEL), places, folder=NOWHERE)
    gps.enrol(*range(4))
    places.make(BEFORE, Plan(clusters=((0, 2), (1, 3)), rule="as given"))
    founders = {"lps-0": [20, 10, 10], "lps-1": [30, 10, 20]}

    def share(weights: dict[str, list[int]], global_round: int) -> list[float]:
        sums = keeper.sums(places.examples(global_round), global_round)
        for lps_id, stated in weights.items():
            send(sums, lps_id, *(([0] * size, weight) for size, weight in zip((2, 1, 1), stated, strict=True)))
        return sums.taking_part

    assert share(founders, 1) == [1, 1, 1]
    gps.enrol(4)
    places.place(gps.roster.devices[4], 1, from_global_round=2)
    assert share(founders, 1) == [1, 1, 1]
    assert share(founders, 2) == [50 / 70, 1, 30 / 50]
    assert share({**founders, "lps-1": [50, 10, 40]}, 2) == [1, 1, 1]


def test_the_clusters_models_are_read_out_of_the_streams(setting: Setting) -> None:
    models = setting.keeper.models(setting.model(1, 2, 30, 40), 0)
    assert {name: model.read(0, 3).tolist() for name, model in models.items()} == {
        "cluster-0": [1, 2, 30],
        "cluster-1": [1, 2, 40],
    }
    assert all(model.layout == LAYOUT for model in models.values())


# --- the layers shared everywhere ---------------------------------------------------------------------------


def shared_keeper(folder: Path, *overrides: str) -> Keeper:
    """The keeper of five devices in two clusters, each on an LPS of its own."""
    gps = GpsParts(folder, *overrides)
    gps.enrol(*range(5))
    gps.places.make(BEFORE, Plan(clusters=((0, 1), (2, 3, 4)), rule="as given"))
    method = method_with(Heads, {"name": "own:method"}, Facts(device_count=5))
    return Keeper(gps.experiment, method, MODEL, streams_of(gps.experiment, method, MODEL), gps.places, folder=NOWHERE)


def test_where_each_cluster_has_an_lps_only_what_is_shared_everywhere_is_kept(tmp_path: Path) -> None:
    keeper = shared_keeper(tmp_path)
    assert keeper.layout(7).names == ("base",)
    assert joined(keeper.initial()).tolist() == [1, 2]
    model = ModelInMemory(keeper.layout(0), np.float32([1, 2]), {})
    assert keeper.offer(model, 0).clusters == 0
    assert keeper.models(model, 3) == {}


def test_shared_layers_move_by_the_clusters_mean_update_each_by_its_examples(tmp_path: Path) -> None:
    keeper = shared_keeper(tmp_path)
    model, sums = ModelInMemory(keeper.layout(0), np.float32([1, 2]), {}), keeper.sums({"lps-0": 20, "lps-1": 60}, 0)
    for name, update, examples in (("lps-0", [4, 0], 20), ("lps-1", [0, 1], 60)):
        sums.take(name, 0, np.float32(update), [examples])
        sums.accept(name, [examples])
    assert following(keeper, model, sums) == [2, 2.75]
    with pytest.raises(NoUpdatesError):
        following(keeper, model, one_stream(2, {"lps-0": 20}))
