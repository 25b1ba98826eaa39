"""The table of features that do not go together: every row has a case here, and the page shows every row."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from fedstrata.checks.combinations import FEATURES, REFUSALS, Refusal, refusals
from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import overridden, parse_experiment
from fedstrata.methods import NAMES, Method, make_method, method_settings
from fedstrata.methods.registry import facts_of, method_class
from fedstrata.partitions.registry import partition_settings
from tests.support.methods import method_with

ROOT = Path(__file__).parents[3]
BASE = """
name: pairs
partition: {kind: iid, devices: 12, examples_per_device: 100, public: {examples: 100, labelled: true}}
model: {name: mlp, hidden: [4]}
method: fedavg
training: {global_rounds: 3, lps_rounds_per_global_round: 1}
"""
TASKS = BASE.replace(
    "kind: iid, devices: 12,", "kind: tasks, tasks: [{name: all, labels: [0, 1], devices: 12,"
).replace("per_device: 100,", "per_device: 40}],")
MASKS, ROUNDS = "secure_aggregation={min_devices: 3}", "training.lps_rounds_per_global_round=2"
LATE = "newcomers={devices: [1], from_global_round: 2}"
TOPOLOGY = "topology={lps: 2}"
UPDATES = "privacy={noise: research, updates: {epsilon: 8, clip: 1}}"
PROFILES = "privacy={noise: research, profiles: {epsilon: 8, clip: 4, min_examples: 10}}"
SUM = "privacy={noise: research, updates: {epsilon: 8, clip: 1, covers: sum}}"
NORMED = "model={name: 'tests.support.normed:Normed'}"
CONVOLUTION = "model={name: 'tests.support.convolution:Only'}"
RULE, GPS_RULE = (f"aggregation.{tier}={{name: 'tests.support.medians:Median'}}" for tier in ("lps", "gps"))
FLIP, COLLUDE = (f"attacks=[{{name: {name}, devices: [0]}}]" for name in ("sign_flip", "alie"))
IFCA = "method={name: ifca, clusters: 2}"
TIMED, VIRTUAL = "training.rounds.lps={kind: timed}", "clock=virtual"
# By feature that does not go with asynchronous rounds: what is changed of BASE, and what the message names.
ASYNCHRONOUS: dict[str, tuple[str, str]] = {
    "training.participation": ("training.participation=4", "training.participation 4"),
    "deadlines.lps in virtual time": ("deadlines.lps.deadline_s=3", "deadlines.lps.deadline_s 3.0"),
    "schedule.leave": ("schedule=[{at: 1s, leave: {devices: [1], for: 2s}}]", "schedule.0.leave"),
    "schedule.move": ("schedule=[{at: 1s, move: {devices: [0], to: lps-1}}]", "schedule.0.move"),
    "newcomers": (LATE, "newcomers"),
    "secure_aggregation": (MASKS, "secure_aggregation"),
    "privacy.updates": (UPDATES, "privacy.updates"),
    "asks in each round": (IFCA, "method ifca"),
    "plans mix updates": ("method=user_centric", "method user_centric"),
    "state over all devices": ("method=scaffold", "method scaffold"),
    "aggregation.lps": (RULE, "aggregation.lps tests.support.medians:Median"),
    "aggregation.gps": (GPS_RULE, "aggregation.gps tests.support.medians:Median"),
    "attacks at parents": (COLLUDE, "attacks.0 alie"),
    "training.lps_optimiser": ("training.lps_optimiser={name: adam}", "training.lps_optimiser adam"),
    "averaged statistics": (NORMED, "model.buffers average"),
}
# By row of the table: what is changed of BASE, and how the message begins.
CASES: dict[tuple[str, str], tuple[list[str], str]] = {
    ("training.lps_rounds_per_global_round", "plans mix updates"): (
        [ROUNDS, "method=user_centric"],
        "training.lps_rounds_per_global_round 2 does not go with method user_centric: ",
    ),
    ("training.lps_rounds_per_global_round", "asks after training"): (
        [ROUNDS, "method=cfl"], "training.lps_rounds_per_global_round 2 does not go with method cfl: "
    ),
    ("training.lps_optimiser", "clusters span LPSs"): (
        [TOPOLOGY, "training.lps_optimiser={name: adam}"], "training.lps_optimiser adam does not go with topology: "
    ),
    ("partition.tests: global", "several clusters"): (
        ["partition.tests=global", "method={name: ifca, clusters: 2}"],
        "partition.tests global does not go with method ifca: ",
    ),
    ("links.lps-gps.up", "partial sums"): (
        [TOPOLOGY, "links.lps-gps.up=int8"], "links.lps-gps.up int8 does not go with topology: "
    ),
    ("training.lps_optimiser", "averaged statistics"): (
        [NORMED, "training.lps_optimiser={name: adam}"],
        "training.lps_optimiser adam does not go with model.buffers average: ",
    ),
    ("training.gps_optimiser", "averaged statistics"): (
        [NORMED, "training.gps_optimiser={name: adam}"],
        "training.gps_optimiser adam does not go with model.buffers average: ",
    ),
    ("links.device-lps.up", "averaged statistics"): (
        [NORMED, "links.device-lps.up=int8"], "links.device-lps.up int8 does not go with model.buffers average: "
    ),
    ("links.lps-gps.up", "averaged statistics"): (
        [NORMED, "links.lps-gps.up=int8"], "links.lps-gps.up int8 does not go with model.buffers average: "
    ),
    ("privacy.updates", "averaged statistics"): (
        [NORMED, UPDATES], "privacy.updates does not go with model.buffers average: "
    ),
    ("aggregation.lps", "secure_aggregation"): (
        [RULE, MASKS], "aggregation.lps tests.support.medians:Median does not go with secure_aggregation: "
    ),
    ("aggregation.lps", "plans mix updates"): (
        [RULE, "method=user_centric"],
        "aggregation.lps tests.support.medians:Median does not go with method user_centric: ",
    ),
    ("attacks at parents", "plans mix updates"): (
        [COLLUDE, "method=user_centric"], "attacks.0 alie does not go with method user_centric: "
    ),
    ("attacks at parents", "absent devices count"): (
        [COLLUDE, "method=scaffold", "training.participation=4"],
        "attacks.0 alie does not go with training.participation 4 with method scaffold: ",
    ),
    ("attacks at parents", "asks in each round"): (
        [COLLUDE, IFCA], "attacks.0 alie does not go with method ifca: "
    ),
    ("attacks", "partition.kind: local"): (
        [FLIP, "partition={kind: local, names: [a, b]}", "data={name: folder, input_shape: [4], num_classes: 2}"],
        "attacks.0 sign_flip does not go with partition.kind local: ",
    ),
    ("attacks", "privacy.updates.covers: sum"): (
        [FLIP, MASKS, SUM], "attacks.0 sign_flip does not go with privacy.updates.covers sum: "
    ),
    ("attacks", "averaged statistics"): (
        [FLIP, NORMED], "attacks.0 sign_flip does not go with model.buffers average: "
    ),
    ("attacks.lps", "no topology"): (
        ["attacks=[{name: scale, lps: [0]}]"], "attacks.0 scale needs topology: "
    ),
    ("devices that collude", "secure_aggregation"): (
        [COLLUDE, MASKS], "attacks.0 alie does not go with secure_aggregation: "
    ),
    ("aggregation.gps", "plans mix updates"): (
        [GPS_RULE, "method=user_centric"],
        "aggregation.gps tests.support.medians:Median does not go with method user_centric: ",
    ),
    ("aggregation.lps", "asks in each round"): (
        [RULE, IFCA], "aggregation.lps tests.support.medians:Median does not go with method ifca: "
    ),
    ("aggregation.gps", "asks in each round"): (
        [GPS_RULE, IFCA], "aggregation.gps tests.support.medians:Median does not go with method ifca: "
    ),
    ("aggregation.lps", "absent devices count"): (
        [RULE, "method=scaffold", "training.participation=4"],
        "aggregation.lps tests.support.medians:Median does not go with training.participation 4 with method scaffold: ",
    ),
    ("aggregation.gps", "absent devices count"): (
        [GPS_RULE, "method=scaffold", "training.participation=4"],
        "aggregation.gps tests.support.medians:Median does not go with training.participation 4 with method scaffold: ",
    ),
    ("task without labels", "needs labels"): (
        [
            "data={name: 'own:load', input_shape: [4], target_shape: [2]}",
            "partition={kind: iid, devices: 3, examples_per_device: 9}",
            "task={name: regression}",
            "method=user_centric",
        ],
        "task regression does not go with method user_centric: ",
    ),
    ("times", "no clock"): (["links.device-lps.latency=1ms"], "links.device-lps.latency needs a clock: "),
    ("deadlines.enrolment.deadline_s", "clock: virtual"): (
        ["clock=virtual", "deadlines.enrolment.deadline_s=3"],
        "deadlines.enrolment.deadline_s 3.0 does not go with clock virtual: ",
    ),
    ("deadlines.gps.deadline_s", "clock: virtual"): (
        ["clock=virtual", "deadlines.gps.deadline_s=3"],
        "deadlines.gps.deadline_s 3.0 does not go with clock virtual: ",
    ),
    ("schedule.move", "no topology"): (
        ["clock=virtual", "schedule=[{at: 1s, move: {devices: [0], to: lps-1}}]"], "schedule.0.move needs topology: "
    ),
    ("newcomers", "places no late device"): ([LATE, "method=scores"], "newcomers does not go with method scores: "),
    ("newcomers", "plans mix updates"): (
        [LATE, "method=user_centric"], "newcomers does not go with method user_centric: "
    ),
    ("newcomers", "asks in each round"): ([LATE, IFCA], "newcomers does not go with method ifca: "),
    ("secure_aggregation", "plans mix updates"): (
        [MASKS, "method=user_centric"], "secure_aggregation does not go with method user_centric: "
    ),
    ("secure_aggregation", "asks after training"): (
        [MASKS, "method=cfl"], "secure_aggregation does not go with method cfl: "
    ),
    ("secure_aggregation", "several clusters span LPSs"): (
        [MASKS, TOPOLOGY, "method={name: one_shot, clusters: 2}"],
        "secure_aggregation does not go with topology: masks cancel only in the sum over all devices of an LPS",
    ),
    ("secure_aggregation", "bounds.max_update_norm"): (
        [MASKS, "bounds={max_update_norm: 2}"],
        "secure_aggregation does not go with bounds.max_update_norm 2.0: ",
    ),
    ("privacy.updates", "plans mix updates"): (
        [UPDATES, "method=user_centric"], "privacy.updates does not go with method user_centric: "
    ),
    ("privacy.updates", "asks in each round"): ([UPDATES, IFCA], "privacy.updates does not go with method ifca: "),
    ("privacy.updates", "answers without noise"): (
        [UPDATES, "method={name: one_shot, clusters: 1}"],
        "privacy.updates needs privacy.profiles with method one_shot (profile, relevance): ",
    ),
    ("privacy.updates.covers: sum", "no secure_aggregation"): (
        [SUM], "privacy.updates.covers sum needs secure_aggregation: "
    ),
    ("privacy.updates.covers: sum", "links.device-lps.up"): (
        [SUM, MASKS, "links.device-lps.up=int8"],
        "privacy.updates.covers sum does not go with links.device-lps.up int8: ",
    ),
    ("privacy.profiles", "profiles without noise"): (
        [PROFILES, "method=pacfl"], "privacy.profiles does not go with method pacfl: "
    ),
    ("period: auto", "no timeline"): ([TIMED], "training.rounds.lps.period auto needs clock: virtual: "),
    **{
        ("asynchronous rounds", feature): (
            [TIMED, VIRTUAL, TOPOLOGY, change], f"training.rounds.lps timed does not go with {said}: "
        )
        for feature, (change, said) in ASYNCHRONOUS.items()
    },
}  # fmt: skip
METHODS = {"scores": "{name: scores, normalised: false}"}
LEAVES = ["clock=virtual", "schedule=[{at: 1s, leave: {devices: [1], for: 2s}}]"]
AWAY: dict[str, tuple[list[str], str]] = {
    "training.participation": (["training.participation=4"], "training.participation 4"),
    "schedule.leave": (LEAVES, "schedule.0.leave"),
    "newcomers that train": ([LATE], "newcomers"),
    "quorum below 1": (["deadlines.lps.quorum_ratio=0.5"], "deadlines.lps.quorum_ratio 0.5"),
}
VARIATES, ROUNDS_KEY = ("feddyn", "scaffold", "feddc"), "training.lps_rounds_per_global_round"
FED_OPT = ("fedavgm", "fedadagrad", "fedyogi", "fedadam")
OPTIMISERS = ("training.gps_optimiser", "training.lps_optimiser")
# By method and feature: what is changed of BASE, and how the message begins.
OWN: dict[tuple[str, str], tuple[list[str], str]] = {
    **{
        (method, feature): case
        for method in (*VARIATES, "scores")
        for feature, case in AWAY.items()
        if method == "scores" or feature in {"newcomers that train", "quorum below 1"}
    },
    **{
        (method, key): ([f"{key}={{name: adam}}"], f"{key} adam")
        for method in (*VARIATES, *FED_OPT, "fedproto")
        for key in OPTIMISERS
    },
    **{(method, "averaged statistics"): ([NORMED], "model.buffers average") for method in (*FED_OPT, "feddc")},
    **{
        (method, "LPS rounds apart"): ([TOPOLOGY, ROUNDS], f"{ROUNDS_KEY} 2 with topology")
        for method in ("feddyn", "feddc")
    },
    ("feddc", "LPS rounds with topology"): ([TOPOLOGY, ROUNDS], f"{ROUNDS_KEY} 2 with topology"),
    **{(method, "privacy.updates"): ([UPDATES], "privacy.updates") for method in VARIATES},
    **{
        (method, "not plain SGD"): (["training.optimiser={name: adam}"], "training.optimiser adam")
        for method in ("scaffold", "feddc", "fednova")
    },
    **{(method, "privacy.updates"): ([UPDATES], "privacy.updates") for method in ("fednova", "fedproto")},
    **{
        (method, "asynchronous rounds"): ([TIMED, VIRTUAL], "training.rounds.lps timed")
        for method in ("feddyn", "fedproto")
    },
    **{
        (name, "no body and head"): (["model.shared=[]"], "model.shared []")
        for name in ("fedrep", "fedbabu", "lg_fedavg")
    },
    ("fedbn", "no normalisation"): ([], "model mlp"),
    **{
        (name, "no dense last layer"): ([CONVOLUTION], "model tests.support.convolution:Only")
        for name in ("moon", "fedrod", "fedproto")
    },
    ("local", "privacy.updates"): ([UPDATES], "privacy.updates"),
    ("scores", "training.gps_optimiser"): (["training.gps_optimiser={name: adam}"], "training.gps_optimiser adam"),
    ("fedfomo", "training.lps_rounds_per_global_round"): ([ROUNDS], "training.lps_rounds_per_global_round 2"),
    ("fedtsdp", "training.participation"): AWAY["training.participation"],
    ("fedtsdp", "architectures"): (["architectures=[{devices: [1], model: {name: cnn}}]"], "architectures"),
}


def found(overrides: Sequence[str]) -> list[str]:
    """All refusals of a file, which is read without checks across sections."""
    document = overridden(yaml.safe_load(BASE), overrides)
    own = {"method": method_settings(document["method"]), "partition": partition_settings(document["partition"])}
    plain = Experiment.model_validate({**document, **own})
    return refusals(plain, make_method(plain))


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: " × ".join(row.when))
def test_every_row_refuses_its_features_by_key_with_the_reason_and_what_to_do(row: Refusal) -> None:
    overrides, begins = CASES[row.when]
    said = next(message for message in found(overrides) if row.why in message)
    assert said.startswith(begins)
    assert said.endswith(f": {row.why}; {FEATURES[row.when[0]].without}, or {FEATURES[row.when[1]].without}")
    with pytest.raises(ExperimentError, match=re.escape(found(overrides)[0])) as raised:
        parse_experiment(BASE, overrides=overrides)
    assert "\n" not in str(raised.value)


def test_every_row_is_of_two_features_that_there_are_and_stands_once() -> None:
    pairs = [row.when for row in REFUSALS]
    assert {name for pair in pairs for name in pair} <= set(FEATURES)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == len(CASES)


@pytest.mark.parametrize(("method", "feature"), OWN)
def test_a_method_refuses_features_with_reasons_of_its_own(method: str, feature: str) -> None:
    overrides, begins = OWN[method, feature]
    said = found([f"method={METHODS.get(method, method)}", *overrides])
    without = FEATURES[feature].without
    assert any(
        message.startswith(f"{begins} does not go with method {method}: ")
        and message.endswith(f"; {without}, or choose another method")
        for message in said
    )


def test_all_that_methods_refuse_is_tried_here() -> None:
    facts = facts_of(parse_experiment(TASKS))
    methods = [method_class(name) for name in NAMES]
    options = {"ifca": {"clusters": 2}, "scores": {"normalised": False}}
    made = [
        method_with(kind, {"name": name, **options.get(name, {})}, facts)
        for name, kind in zip(NAMES, methods, strict=True)
    ]
    assert {(method.options.name, feature) for method in made for feature in method.refuses()} == set(OWN)


@pytest.mark.parametrize("shared", ["[]", "[fc1, fc2]"])
def test_a_body_or_a_head_alone_is_no_split(shared: str) -> None:
    assert found(["method=fedrep", "model.shared=[fc1]"]) == []
    assert (
        "list some of the layers that train, but not all, in model.shared"
        in found(["method=fedrep", f"model.shared={shared}"])[0]
    )


def test_refusals_do_not_stop_at_the_first() -> None:
    said = found([MASKS, ROUNDS, "method=cfl"])
    assert [message.partition(" ")[0] for message in said] == [
        "training.lps_rounds_per_global_round",
        "secure_aggregation",
        "secure_aggregation",
    ]


def test_a_method_that_refuses_what_is_no_feature_is_told_which_there_are() -> None:
    plain = parse_experiment(BASE)
    own = type("Own", (Method,), {"refuses": lambda self: {"clocks": "it has none"}})
    with pytest.raises(
        PluginError, match=r"refuses 'clocks', which is not a feature; choose from training.participation, "
    ):
        refusals(plain, own(plain.method, facts_of(plain)))


@pytest.mark.parametrize(
    "overrides",
    [
        [LATE, "clock=virtual"],
        [LATE, "clock=real"],
        ["method=feddyn", ROUNDS],
        [TOPOLOGY, ROUNDS, "links.lps-gps.up=int8"],
        [NORMED, "model.buffers=device", UPDATES, "links.device-lps.up=int8", "training.gps_optimiser.name=adam"],
        *(["method=feddyn", f"training.participation={everybody}"] for everybody in ("12", "99", "1.0")),
        ["method=feddyn", "schedule=[{at: 3s, leave: {devices: [1]}}]", "clock=none"],
        ["method=feddyn", "newcomers={devices: [1], from_global_round: 4}"],
    ],
)
def test_what_goes_together_is_not_refused(overrides: list[str]) -> None:
    parse_experiment(BASE, overrides=overrides)
    assert found(overrides) == []
