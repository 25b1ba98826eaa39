"""Streams: which tensors travel how far, where they lie, into which sums an update goes, and what is refused by key."""

import re
from typing import Any

import numpy as np
import pytest

from fedstrata.errors import ExperimentError, PayloadError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import TrainingSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import (
    Candidate,
    Channel,
    Facts,
    Method,
    Moment,
    Plan,
    Reach,
    make_method,
)
from fedstrata.rules import Route
from fedstrata.streams.homes import asks_in_training, home_of, homes_of, spans_lps
from fedstrata.streams.plan_checks import check_plan
from fedstrata.streams.streams import WEIGHT_GRID, Streams, shares_of
from fedstrata.tensors import Layout
from tests.support.gps_parts import TEXT
from tests.support.methods import method_with

MODEL = Layout.of({"fc1": (2, 2), "fc1.bias": (2,), "fc2": (3,), "own": (1,)})
CHANNELS = (
    Channel(name="shared", tensors=MODEL.select(["fc1.bias"]), reach=Reach.EVERYWHERE),
    Channel(name="head", tensors=MODEL.select(["fc1", "fc2"]), reach=Reach.CLUSTER),
    Channel(name="mine", tensors=MODEL.select(["own"]), reach=Reach.DEVICE),
)
STREAMS = Streams(model=MODEL, channels=CHANNELS, spans=True)


def experiment(*overrides: str) -> Experiment:
    return parse_experiment(TEXT, overrides=overrides)


# --- which and where ----------------------------------------------------------------------------------------


def test_what_travels_is_in_the_models_order_and_what_a_device_keeps_is_left_out() -> None:
    assert STREAMS.travelling.names == ("fc1", "fc1.bias", "fc2")
    assert STREAMS.everywhere.names == ("fc1.bias",)
    assert STREAMS.own.names == ("own",)


def test_streams_are_everybodys_and_then_cluster_by_cluster() -> None:
    assert [stream.name for stream in STREAMS.vector(2).streams] == ["shared", "0/head", "1/head"]
    assert STREAMS.vector(2).tensors.names == ("fc1.bias", "0/fc1", "0/fc2", "1/fc1", "1/fc2")
    assert STREAMS.vector(2).places == [slice(0, 2), slice(2, 9), slice(9, 16)]


def test_a_clusters_model_lies_in_the_vector_of_all_streams_in_stretches() -> None:
    # fc1 of cluster 1 is at 9 to 13, everybody's bias at 0 to 2, its fc2 at 13 to 16
    assert STREAMS.vector(2).of_cluster(1) == [slice(9, 13), slice(0, 2), slice(13, 16)]
    whole = Streams(model=MODEL, channels=(Channel(name="model", tensors=MODEL, reach=Reach.CLUSTER),), spans=True)
    assert whole.vector(3).of_cluster(1) == [slice(10, 20)]


@pytest.mark.parametrize(
    "channels", [CHANNELS[:2], (*CHANNELS, CHANNELS[0]), ()], ids=["one is missing", "one stands twice", "none"]
)
def test_a_method_says_of_every_tensor_once_how_far_it_travels(channels: tuple[Channel, ...]) -> None:
    with pytest.raises(PluginError, match=r"once; the model has fc1, fc1.bias, fc2, own, and the channels name"):
        Streams(model=MODEL, channels=channels, spans=False)


TABLES = (
    *CHANNELS,
    Channel(name="scores", tensors=Layout.of({"scores": (2, 2), "weights": (2,)}), reach=Reach.EVERYWHERE),
    Channel(name="diary", tensors=Layout.of({"diary": (1,)}), reach=Reach.DEVICE),
)


def test_tables_lie_behind_the_models_tensors_and_travel_as_far_as_their_channel_says() -> None:
    streams = Streams(model=MODEL, channels=TABLES, spans=True)
    assert streams.whole.names == (*MODEL.names, "scores", "weights", "diary")
    assert streams.everywhere.names == ("fc1.bias", "scores", "weights")
    assert streams.own.names == ("own", "diary")
    assert [stream.name for stream in streams.vector(2).streams] == ["shared", "scores", "0/head", "1/head"]
    assert streams.vector(1).tensors.names == ("fc1.bias", "scores", "weights", "0/fc1", "0/fc2")


def test_tables_begin_at_zero_and_are_put_behind_the_weights() -> None:
    streams, weights = Streams(model=MODEL, channels=TABLES, spans=True), np.arange(10, dtype=np.float32)
    assert streams.with_tables(weights).tolist() == [*range(10), *[0] * 7]
    tables = {"diary": np.ones(1), "scores": np.full((2, 2), 2.0), "weights": np.full(2, 3.0)}
    assert streams.with_tables(weights, tables).tolist() == [*range(10), 2, 2, 2, 2, 3, 3, 1]
    assert STREAMS.with_tables(weights) is weights


@pytest.mark.parametrize(
    "tables", [{}, {"scores": np.ones((2, 2)), "weights": np.ones(3), "diary": np.ones(1)}], ids=["none", "shape"]
)
def test_an_outcome_without_the_methods_tables_is_refused(tables: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match=r"the outcome of local training has tables .*'weights': \(2,\)"):
        Streams(model=MODEL, channels=TABLES, spans=True).with_tables(np.zeros(10, np.float32), tables)


@pytest.mark.parametrize("shapes", [{"scores": (2, 2)}, {"fc2": (4,)}], ids=["twice", "shape"])
def test_a_table_has_a_name_of_its_own(shapes: dict[str, tuple[int, ...]]) -> None:
    kept = [channel for channel in TABLES if not set(shapes) & set(channel.tensors.names) or "fc2" not in shapes]
    again = Channel(name="again", tensors=Layout.of(shapes), reach=Reach.EVERYWHERE)
    other = Channel(name="head", tensors=MODEL.select(["fc1"]), reach=Reach.CLUSTER)
    channels = (*kept, again) if "fc2" not in shapes else (*kept, other, again)
    with pytest.raises(PluginError, match="name a tensor twice, or a tensor of the model with another shape"):
        Streams(model=MODEL, channels=channels, spans=True)


# --- routes -------------------------------------------------------------------------------------------------


def test_an_update_goes_to_everybodys_stream_and_to_its_clusters_own_by_its_examples() -> None:
    # an update has fc1 at 0 to 4, the bias at 4 to 6 and fc2 at 6 to 9
    assert STREAMS.vector(2).routes(1, 30, {}) == [
        Route(place=slice(4, 6), stream=0, offset=0, weight=30),
        Route(place=slice(0, 4), stream=2, offset=0, weight=30),
        Route(place=slice(6, 9), stream=2, offset=4, weight=30),
    ]
    assert STREAMS.vector(2).weights(1, 30, {}) == [30, 0, 30]


def test_an_update_goes_into_every_stream_of_a_mixed_channel_that_it_has_a_share_in() -> None:
    shares = {"head": {0: 7, 1: 5}}
    assert STREAMS.vector(3).weights(1, 30, shares) == [30, 7, 5, 0]
    assert STREAMS.vector(3).weights(1, 30, {"head": {}}) == [30, 0, 0, 0]
    assert STREAMS.vector(2).weights(1, 30, {"shared": {0: 4}}) == [4, 0, 30]


def test_shares_are_rounded_to_the_grid_and_those_that_come_to_nothing_left_out() -> None:
    plan = Plan(clusters=((0,), (1,)), rule="", weights={"head": ({0: 1 / 3, 1: 0.4 / WEIGHT_GRID}, {1: 1})})
    assert shares_of(plan, 0) == {"head": {0: round(WEIGHT_GRID / 3)}}
    assert shares_of(plan, 1) == {"head": {1: WEIGHT_GRID}}
    assert shares_of(plan, 2) == {"head": {}}


# --- plans --------------------------------------------------------------------------------------------------


class Mixing(Method):
    mixes = True


class Withdrawing(Method):
    withdraws = True


class Fetching(Method):
    fetches_all = True


def own(kind: type[Method], lps_rounds: int = 1) -> Method:
    training = TrainingSettings(lps_rounds_per_global_round=lps_rounds)
    return method_with(kind, {"name": "own:method"}, Facts(device_count=2, training=training))


BOTH = ((0,), (1,))
FC2 = "fc2"
BEFORE = Plan(clusters=BOTH, rule="before")


@pytest.mark.parametrize(
    ("plan", "before"),
    [
        (Plan(clusters=BOTH, rule="", weights={"head": ({0: 1}, {1: 0.5})}), None),
        (Plan(clusters=BOTH, rule="", weights={"shared": ({0: 1, 1: 2},)}), None),
        (Plan(clusters=BOTH, rule="", parents=(1, 1)), BEFORE),
        (Plan(clusters=((0, 1),), rule=""), BEFORE),
    ],
)
def test_a_plan_may_say_weights_for_all_streams_of_a_channel_and_parents_for_all_clusters(
    plan: Plan, before: Plan | None
) -> None:
    check_plan(STREAMS, plan, own(Mixing), before)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(clusters=((0, 1),), rule=""), "changes 2 clusters to 1"),
        (Plan(clusters=BOTH, rule="", parents=(1, 0)), "with parents [1, 0]"),
        (Plan(clusters=((0,), (1,), ()), rule="", parents=(0, 1, 1)), "changes 2 clusters to 3"),
    ],
)
def test_clusters_do_not_change_within_a_global_round_of_several_lps_rounds(plan: Plan, said: str) -> None:
    with pytest.raises(PluginError, match=re.escape(said) + r".* 2 LPS rounds .* set training\.lps_rounds_per_global"):
        check_plan(STREAMS, plan, own(Method, lps_rounds=2), BEFORE)
    for parents in ((), (0, 1)):
        check_plan(STREAMS, Plan(clusters=((0, 1), ()), rule="", parents=parents), own(Method, lps_rounds=2), BEFORE)


def test_some_clusters_streams_lie_in_a_vector_as_those_of_all_do() -> None:
    assert [name for name, _ in STREAMS.vector([1, 3]).parts] == ["shared", "1/head", "3/head"]
    assert STREAMS.vector([0, 1]).tensors == STREAMS.vector(2).tensors
    assert STREAMS.vector([1, 3]).of_cluster(3) == STREAMS.vector(2).of_cluster(1)


@pytest.mark.parametrize(
    ("plan", "before", "reason"),
    [
        (Plan(clusters=BOTH, rule="", weights={"heads": ({0: 1}, {1: 1})}), None, "2 streams of 'heads', which has 0"),
        (Plan(clusters=BOTH, rule="", weights={"mine": ({0: 1}, {1: 1})}), None, "2 streams of 'mine', which has 0"),
        (Plan(clusters=BOTH, rule="", weights={"head": ({0: 1},)}), None, "1 streams of 'head', which has 2"),
        (Plan(clusters=BOTH, rule="", weights={"head": ({0: -1}, {1: 1})}), None, "'head' is negative or not finite"),
        (Plan(clusters=BOTH, rule="", weights={"head": ({0: float("nan")}, {})}), None, "is negative or not finite"),
        (Plan(clusters=BOTH, rule="", parents=(0, 1)), None, "parents [0, 1], and the previous plan had 0 clusters"),
        (Plan(clusters=BOTH, rule="", parents=(0, 2)), BEFORE, "parents [0, 2], and the previous plan had 2 clusters"),
        (
            Plan(clusters=BOTH, rule="", parents=(0,)),
            BEFORE,
            "has 2 clusters and parents [0], and the previous plan had 2",
        ),
        (Plan(clusters=((0,), (1,), ()), rule=""), BEFORE, "the plan has 3 clusters and parents [], and the previous"),
    ],
)
def test_a_plan_that_says_what_could_only_be_passed_over_is_refused(
    plan: Plan, before: Plan | None, reason: str
) -> None:
    with pytest.raises(PluginError) as raised:
        check_plan(STREAMS, plan, own(Mixing), before)
    assert reason in str(raised.value)


def test_weights_of_a_method_that_says_it_does_not_mix_are_refused() -> None:
    with pytest.raises(PluginError, match="set mixes = True in the method"):
        check_plan(STREAMS, Plan(clusters=BOTH, rule="", weights={"head": ({0: 1}, {1: 1})}), own(Method), None)


@pytest.mark.parametrize(
    "offers", [((0,),), ((0, 1), (0,)), ((1, 0), (1,)), ((0, 0), (1,)), ((0, 2), (1,)), ((-1, 0), (1,)), ((0,), ())]
)
def test_offers_that_do_not_name_some_clusters_and_the_own_in_order_are_refused(
    offers: tuple[tuple[int, ...], ...],
) -> None:
    with pytest.raises(PluginError, match=r"for 2 clusters; list for each cluster, in ascending order"):
        check_plan(STREAMS, Plan(clusters=BOTH, rule="", offers=offers), own(Fetching), None)


def test_tensors_that_are_withdrawn_stay_at_devices() -> None:
    streams = STREAMS.without(["fc2"])
    assert streams.travelling.names == ("fc1", "fc1.bias")
    assert streams.own.names == ("fc2", "own")
    assert streams.vector(2).tensors.names == ("fc1.bias", "0/fc1", "1/fc1")
    assert STREAMS.without([]) is STREAMS
    with pytest.raises(PayloadError, match="withdraws tensors that the model does not have: 'stranger'"):
        STREAMS.without(["stranger"])


@pytest.mark.parametrize(
    ("withdrawn", "before", "reason"),
    [((FC2,), (), ""), ((FC2,), (FC2,), ""), ((), (FC2,), "must stay withdrawn"), (("x",), (), "it can withdraw")],
)
def test_what_a_plan_withdraws_travels_and_does_not_come_back(
    withdrawn: tuple[str, ...], before: tuple[str, ...], reason: str
) -> None:
    plan, earlier = (Plan(clusters=BOTH, rule="", withdrawn=names) for names in (withdrawn, before))
    if not reason:
        check_plan(STREAMS, plan, own(Withdrawing), earlier)
        return
    with pytest.raises(PluginError, match=reason):
        check_plan(STREAMS, plan, own(Withdrawing), earlier)


def test_only_methods_that_say_so_withdraw_tensors() -> None:
    with pytest.raises(PluginError, match="set withdraws = True in the method"):
        check_plan(STREAMS, Plan(clusters=BOTH, rule="", withdrawn=(FC2,)), own(Method), None)


def test_offers_count_for_methods_alone_whose_devices_fetch_models_of_several_clusters() -> None:
    plan = Plan(clusters=BOTH, rule="", offers=((0, 1), (1,)))
    check_plan(STREAMS, plan, own(Fetching), None)
    with pytest.raises(PluginError, match="set fetches_all = True in the method"):
        check_plan(STREAMS, plan, own(Method), None)


def test_a_plan_has_every_device_in_one_cluster() -> None:
    devices = [Candidate(device_index=index) for index in (0, 1)]
    BEFORE.check_covers(devices)
    Plan(clusters=((), (0, 1)), rule="").check_covers(devices, may_be_empty=True)
    for clusters in (((0,),), ((0, 1), (1,)), ((0, 1, 2),), ((), (0, 1))):
        with pytest.raises(PluginError, match="must put every device into exactly one cluster"):
            Plan(clusters=clusters, rule="").check_covers(devices)


# --- LPSs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "spans"),
    [
        ([], False),
        (["method=fedavg"], False),
        (["topology={lps: 2}"], True),
        (["method={name: ifca, clusters: 2}"], True),
        (["method=cfl", "training.lps_rounds_per_global_round=1"], True),
    ],
)
def test_clusters_span_lpss_where_a_topology_says_so_or_devices_are_asked_in_rounds(
    overrides: list[str], spans: bool
) -> None:
    found = experiment(*overrides)
    assert spans_lps(found, make_method(found)) == spans


def test_questions_in_rounds_have_one_moment() -> None:
    ifca = experiment("method={name: ifca, clusters: 2}")
    cfl = experiment("method=cfl", "training.lps_rounds_per_global_round=1")
    assert asks_in_training(make_method(ifca)) is Moment.RECEIVED
    assert asks_in_training(make_method(cfl)) is Moment.TRAINED
    assert asks_in_training(make_method(experiment())) is None


def test_a_cluster_has_an_lps_of_its_own_unless_clusters_span() -> None:
    clusters = [(0, 2), (1, 3, 4)]
    alone, dealt = experiment(), experiment("topology={lps: 2}")
    said = experiment("topology={lps: 2, devices: [[4, 0], [1, 2, 3]]}")
    asking = experiment("method={name: ifca, clusters: 2}")
    assert homes_of(alone, make_method(alone), clusters) == clusters
    assert homes_of(dealt, make_method(dealt), clusters) == [(0, 2, 4), (1, 3)]
    assert homes_of(said, make_method(said), clusters) == [(0, 4), (1, 2, 3)]
    assert homes_of(asking, make_method(asking), clusters) == [(0, 1, 2, 3, 4)]
    assert [home_of(said, index) for index in range(5)] == [0, 1, 1, 1, 0]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["topology={lps: 6}"], "topology.lps is 6, more than the 5 devices"),
        (["topology={lps: 0}"], "topology.lps: "),
        (
            ["topology={lps: 2, devices: [[0, 1], [2, 3]]}"],
            "topology.devices lists 4 devices; list each of the devices 0 to 4 once",
        ),
        (
            ["topology={lps: 2, devices: [[0, 1], [2, 3, 5]]}"],
            "topology.devices lists 5 devices; list each of the devices 0 to 4 once",
        ),
        (
            ["topology={lps: 2, devices: [[0, 1], [1, 2, 3, 4]]}"],
            "a device is in two lists, and each device has one LPS; remove it from one list",
        ),
        (["topology={lps: 3, devices: [[0, 1], [2, 3, 4]]}"], "devices must have 3 lists, as lps is 3"),
        (
            ["topology={lps: 2, devices: [[], [0, 1, 2, 3, 4]]}"],
            "devices must have 2 lists, as lps is 2, and each list at least one device",
        ),
        (["topology={lps: 2, edges: 2}"], "topology.edges: unknown key"),
    ],
)
def test_what_the_tiers_cannot_give_is_refused_with_its_key(overrides: list[str], message: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        experiment(*overrides)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_lpss_with_rounds_of_their_own_may_send_what_the_link_encodes() -> None:
    found = experiment("topology={lps: 2}", "training.lps_rounds_per_global_round=2", "links.lps-gps.up=int8")
    assert found.links.lps_gps.up == "int8"


@pytest.mark.parametrize("flag", ["fetches_all", "mixes", "withdraws"])
def test_methods_whose_plans_need_every_cluster_have_their_streams_kept_by_the_gps(flag: str) -> None:
    found = experiment("training.lps_rounds_per_global_round=1")
    method = own(type("Own", (Method,), {flag: True}))
    assert spans_lps(found, method)
    assert homes_of(found, method, [(0, 2), (1, 3, 4)]) == [(0, 2), (1, 3, 4)]
    assert not spans_lps(found, own(Method))
