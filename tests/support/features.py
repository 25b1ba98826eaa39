"""The features of an experiment file and their values, by the settings' models, and arrays that cover all pairs.

A value is what is changed of `BASE`, by key. Where the models say which values there are, they are taken from there;
`test_every_section_has_a_feature` holds the rest against the models.
"""

import json
import random
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, get_args

from fedstrata.attacks import registry as attacks
from fedstrata.datasets import dataset_info
from fedstrata.errors import FedstrataError
from fedstrata.experiment import Experiment
from fedstrata.experiment.faults import Fault
from fedstrata.experiment.schedule import KINDS
from fedstrata.experiment.sections import MODELS, Encoding, ServerOptimiserSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.registry import NAMES
from fedstrata.models import build_model
from fedstrata.rules import registry as rules

BASE = """
name: pairs
partition:
  kind: tasks
  minority_ratio: 0.1
  public: {examples: 60, labelled: true}
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 60}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 3, examples_per_device: 50}
model: {name: mlp, hidden: [16]}
method: fedavg
clock: none
training: {global_rounds: 2, lps_rounds_per_global_round: 1, batch_size: 16}
"""
DEFAULT: Mapping[str, Any] = {}
LEFT_OUT = {
    "name",
    "seed",
    "data",
    "files",
    "devices",
}  # no features: every row is of digits, on the CPU, with a seed of its own; `files` is computed
# What a kind needs beside its name, where the models do not say it.
METHODS = {
    "adaptive": {"clusters": 2}, "cfl": {"first_round": 1, "mean_ratio": 1.0}, "fedclust": {"clusters": 2},
    "fedfomo": {"offered": 2},
    "fedtsdp": {"batch": 20, "hopkins_points": 4}, "flux": {"clusters": 2}, "ifca": {"clusters": 2},
    "label_means": {"clusters": 2},
    "one_shot": {"clusters": 2}, "pacfl": {"clusters": 2}, "random": {"clusters": 2},
    "user_centric": {"streams": 2, "batches": 2},
}  # fmt: skip
EVEN = {"devices": 6, "examples_per_device": 40, "public": {"examples": 60, "labelled": True}}
PARTITIONS: dict[str, dict[str, Any]] = {
    "tasks": {},
    "groups": {
        "groups": [
            {"name": "up", "devices": 3, "examples_per_device": [30, 50]},
            {"name": "down", "devices": 3, "examples_per_device": 40, "rotation": 180},
        ]
    },
    "dirichlet": EVEN, "iid": EVEN,
    "given": {"examples": [[f"{40 * device}-{40 * device + 39}"] for device in range(6)]},
    "local": {"names": ["a", "b", "c"]},
}  # fmt: skip
SCHEDULE: dict[str, dict[str, Any]] = {
    "set": {"link": "device-lps", "devices": [0], "latency": "40ms"},
    "cut": {"link": "lps-gps", "for": "200ms"},
    "leave": {"devices": [1], "for": "1s"},
    "move": {"devices": [2], "to": "lps-1"},
}
RULES = {"trusted": {"children": ["device-000"]}}
FAULTS: dict[str, dict[str, Any]] = {
    "kill": {"process": "lps-0", "at": {"global_round": 1}},
    "pause": {"process": "device-000", "for_s": 0.2, "at": {"phase": "training"}},
    "cut": {"link": "device-lps", "for_s": 0.2, "at": {"global_round": 1}},
}


def kinds(union: Any) -> list[str]:
    """The names that a discriminated union's members go by."""
    inner, field = get_args(union)
    return [str(get_args(member.model_fields[field.discriminator].annotation)[0]) for member in get_args(inner)]


def _optimisers(key: str) -> dict[str, dict[str, Any]]:
    return {kind: {f"training.{key}": {"name": kind}} for kind in kinds(ServerOptimiserSettings)}


FEATURES: dict[str, dict[str, Mapping[str, Any]]] = {
    "method": {name: {"method": {"name": name, **METHODS.get(name, {})}} for name in NAMES},
    "clock": {kind: {"clock": kind} for kind in get_args(Experiment.model_fields["clock"].annotation)},
    "partition": {
        kind: {"partition": {"kind": kind, **keys}} if kind != "tasks" else DEFAULT
        for kind, keys in PARTITIONS.items()  # the other kinds differ only in who owns what
    },
    "model": {
        name: {"model": {"name": name}} if name != "mlp" else DEFAULT
        for name in MODELS
        if name != "resnet18"  # minutes a row for its eleven million weights, and no code but its layers
    },
    "task": {"default": DEFAULT, "classification": {"task": {"name": "classification"}}},  # the others want other data
    "shared": {"default": DEFAULT, "none": {"model.shared": []}},
    "architectures": {
        "one": DEFAULT,
        "two": {"architectures": [{"devices": [0], "model": {"name": "mlp", "hidden": [8]}}]},
        "later": {"architectures": [{"devices": [0], "from_global_round": 2, "model": {"name": "mlp", "hidden": [8]}}]},
    },
    "up": {kind: {"links.device-lps.up": kind} for kind in get_args(Encoding)},
    "down": {kind: {"links.device-lps.down": kind} for kind in get_args(Encoding)},
    "above": {kind: {"links.lps-gps": {"up": kind, "down": kind}} for kind in get_args(Encoding)},
    "rates": {
        "none": DEFAULT,
        "preset": {"links.device-lps.preset": "wifi"},
        "trace": {"links.device-lps.down_trace": "lte-driving"},
        "override": {"links.overrides": [{"devices": [0], "latency": "30ms"}]},
        "shared": {"links.shared": {"device-lps": {"up_rate": "200Mbit/s"}}},
        "broadcast": {"links.shared": {"device-lps": {"down_rate": "200Mbit/s", "broadcast": True}}},
    },
    "compute": {"none": DEFAULT, "spread": {"compute": {"per_example": "0.1ms", "devices": {"pi4": [0, 1]}}}},
    "energy": {"none": DEFAULT, "watts": {"energy": {"compute": "4W"}}},
    "schedule": {"none": DEFAULT, **{kind: {"schedule": [{"at": "100ms", kind: SCHEDULE[kind]}]} for kind in KINDS}},
    "participation": {"all": DEFAULT, "two": {"training.participation": 2}, "half": {"training.participation": 0.5}},
    "rounds": {
        "synchronous": DEFAULT,
        "buffered": {"training.rounds.lps": {"kind": "buffered", "buffer": 2}},
        "timed": {"training.rounds.lps": {"kind": "timed", "period": "200ms", "step": 0.5}},
    },
    "lps_rounds": {"one": DEFAULT, "two": {"training.lps_rounds_per_global_round": 2}},
    "local": {"epoch": DEFAULT, "steps": {"training.local_steps": 2}},
    "evaluate": {"each": DEFAULT, "second": {"training.evaluate_every": 2}},
    "lps_optimiser": _optimisers("lps_optimiser"),
    "gps_optimiser": _optimisers("gps_optimiser"),
    **{f"{tier} deadline": {"none": DEFAULT, "hour": {f"deadlines.{tier}.deadline_s": 3600}}
       for tier in ("enrolment", "lps", "gps")},
    "bounds": {"none": DEFAULT, "norm": {"bounds": {"max_update_norm": 1e6}}},
    "newcomers": {
        "none": DEFAULT,
        "train": {"newcomers": {"devices": [4], "from_global_round": 2}},
        "use": {"newcomers": {"share": 0.2, "from_global_round": 3}},
    },
    "topology": {"none": DEFAULT, "two": {"topology": {"lps": 2}},
                 "lists": {"topology": {"lps": 2, "devices": [[0, 3, 5], [1, 2, 4]]}}},
    "secure": {"no": DEFAULT, "yes": {"secure_aggregation": {"min_devices": 3}}},
    "privacy": {
        "none": DEFAULT,
        "profiles": {"privacy": {"noise": "research", "profiles": {"epsilon": 8.0, "clip": 4.0, "min_examples": 10}}},
        "updates": {"privacy": {"noise": "research", "updates": {"epsilon": 50.0, "clip": 1.0}}},
        "sum": {"privacy": {"noise": "research", "updates": {"epsilon": 50.0, "clip": 1.0, "covers": "sum"}}},
    },
    "rule": {name: {"aggregation.lps": {"name": name, **RULES.get(name, {})}} for name in rules.REGISTRY},
    "gps_rule": {"mean": DEFAULT, "median": {"aggregation.gps": "median"}},
    "attacks": {
        "none": DEFAULT,
        **{name: {"attacks": [{"name": name, "devices": [0]}]} for name in attacks.REGISTRY},
        "lps": {"attacks": [{"name": "sign_flip", "lps": [0]}]},
    },
    "faults": {"none": DEFAULT, **{kind: {"faults": [{"do": kind, **FAULTS[kind]}]} for kind in kinds(Fault)}},
}  # fmt: skip
# What some values need of others.
BESIDE: tuple[Mapping[str, str], ...] = (
    {},
    {"method": "one_shot"},
    {"method": "scores"},
    {"topology": "two"},
    {"secure": "yes"},
)
Row = dict[str, str]  # by feature its value; the others have their first
Pair = tuple[tuple[str, str], tuple[str, str]]


def changed(row: Row) -> list[str]:
    """What a row changes, as `--set` takes it."""
    settings = {key: value for feature, value in row.items() for key, value in FEATURES[feature][value].items()}
    return [f"{key}={json.dumps(value)}" for key, value in sorted(settings.items(), key=lambda item: len(item[0]))]


def experiment_of(row: Row, seed: int = 0) -> Experiment:
    """A row's experiment. Raises FedstrataError where its features do not go together, as `fedstrata check` does."""
    experiment = parse_experiment(BASE, overrides=changed(row), seed=seed)
    build_model(experiment.model, dataset_info(experiment.data))
    return experiment


def pairs() -> Iterator[Pair]:
    """Every value of a feature with every value of another."""
    for one, other in combinations(FEATURES, 2):
        for value in FEATURES[one]:
            for beside in FEATURES[other]:
                yield (one, value), (other, beside)


def with_pair(pair: Pair) -> Row | None:
    """The least row in which the two go together, beside what one may need; None where there is none."""
    return next((row for row in ({**beside, **dict(pair)} for beside in BESIDE) if _goes(row)), None)


def rows(seed: int) -> Iterator[Row]:
    """Rows, until each pair that is allowed is in one: each begins with one that is in none, and takes in what else
    goes together with what it has, by which it covers most."""
    rng = random.Random(seed)  # an address, no secret
    left = list(pairs())
    rng.shuffle(left)
    uncovered = dict.fromkeys(left)
    while uncovered:
        pair = next(iter(uncovered))
        row = with_pair(pair)
        if row is None:  # it is refused, which `test_each_pair_is_read_or_refused_in_one_line` looks at
            del uncovered[pair]
            continue
        features = [feature for feature in FEATURES if feature not in row]
        rng.shuffle(features)
        for feature in features:
            values = rng.sample(list(FEATURES[feature]), len(FEATURES[feature]))
            values.sort(key=lambda value: -_new(row, feature, value, uncovered))
            row[feature] = next((v for v in values if _goes({**row, feature: v})), values[0])
        for pair in _pairs_of(row):
            uncovered.pop(pair, None)
        yield row


def _goes(row: Row) -> bool:
    try:
        experiment_of(row)
    except FedstrataError:
        return False
    return True


def _new(row: Row, feature: str, value: str, uncovered: Mapping[Pair, None]) -> int:
    return sum(_pair((feature, value), known) in uncovered for known in row.items())


def _pairs_of(row: Row) -> Iterator[Pair]:
    for one, other in combinations(row.items(), 2):
        yield _pair(one, other)


ORDER = {feature: place for place, feature in enumerate(FEATURES)}


def _pair(one: tuple[str, str], other: tuple[str, str]) -> Pair:
    return (one, other) if ORDER[one[0]] < ORDER[other[0]] else (other, one)
