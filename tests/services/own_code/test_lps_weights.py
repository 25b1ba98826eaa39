"""By how much an LPS counts at the GPS where a global round has several LPS rounds, against a loop in NumPy."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import device_data
from tests.support.disturbed import disturbed
from tests.support.plain_pytorch import Weights, initial_weights, trained_by, weighted_mean
from tests.support.records import summary_of
from tests.support.tiers import run_in_process

# Seven devices of 20 to 90 examples, drawn by the seed, in two clusters that share fc1.
EXPERIMENT = """
name: lps-weights
partition:
  kind: groups
  groups:
    - {name: a, devices: 4, examples_per_device: [20, 90], label_permutation: 0}
    - {name: b, devices: 3, examples_per_device: [20, 90], label_permutation: 1}
model: {name: mlp, hidden: [16]}
method: oracle
training: {global_rounds: 3, lps_rounds_per_global_round: 2, local_epochs: 1, batch_size: 16, participation: 0.5}
"""
SHARED, HEAD = ("fc1.weight", "fc1.bias"), ("fc2.weight", "fc2.bias")
COHORT = 0x636F686F  # docs/experiment.md


@pytest.mark.parametrize(
    "overrides",
    [
        ["topology={lps: 2}"],
        ["topology={lps: 3}", "training.lps_rounds_per_global_round=3"],
        [],  # each cluster has an LPS of its own, and only fc1 meets at the GPS
        ["training.lps_rounds_per_global_round=3", "training.participation=1"],
    ],
    ids=["spanning", "spanning-three", "own-lps", "own-lps-one-device"],
)
def test_an_lps_counts_by_the_examples_of_all_lps_rounds_of_a_global_round(
    tmp_path: Path, overrides: list[str]
) -> None:
    models, expected = found_and_expected(parse_experiment(EXPERIMENT, overrides=overrides), tmp_path, SHARED)
    assert len(models) == 2
    for name, weights in expected.items():
        for tensor in (*SHARED, *HEAD):
            assert np.abs(models[name][tensor] - weights[tensor]).max() < 1e-6, (name, tensor)


TWO_TASKS = """
name: dropped
partition:
  kind: tasks
  tasks:
    - {name: low, labels: [0, 1, 2, 3, 4], devices: 3, examples_per_device: 40}
    - {name: high, labels: [5, 6, 7, 8, 9], devices: 3, examples_per_device: 40}
model: {name: mlp, hidden: [16], shared: []}
method: oracle
topology: {lps: 1}
training: {global_rounds: 1, lps_rounds_per_global_round: 2, local_epochs: 1, participation: 1}
"""


def test_what_a_cluster_trained_counts_if_none_of_its_devices_is_in_the_last_lps_round(tmp_path: Path) -> None:
    experiment = parse_experiment(TWO_TASKS)
    first, second = (drawn(experiment, range(6), lps_round) for lps_round in (0, 1))
    assert [device // 3 for device in (*first, *second)] in ([0, 1], [1, 0])  # one device of each cluster
    models, expected = found_and_expected(experiment, tmp_path, ())
    initial = initial_weights(experiment)
    for name, weights in expected.items():
        assert np.abs(models[name]["fc2.weight"] - initial["fc2.weight"]).max() > 1e-3
        for tensor in (*SHARED, *HEAD):
            assert np.abs(models[name][tensor] - weights[tensor]).max() < 1e-6, (name, tensor)


# --- killed processes -----------------------------------------------------------------------------


@pytest.mark.kills
@pytest.mark.parametrize("topology", ["", "topology: {lps: 2}\n"], ids=["own-lps", "spanning"])
def test_an_lps_killed_between_lps_rounds_counts_by_what_was_trained_before(tmp_path: Path, topology: str) -> None:
    text = EXPERIMENT.replace("global_round: 2", "global_round: 3") + topology
    faults = [
        {"do": "kill", "process": "lps-0", "at": {"point": "aggregation", "round": 4}},  # the second of three
        {"do": "kill", "process": "lps-1", "at": {"point": "upload", "round": 8}},  # the last of three
    ]
    found = []
    for name, happens in (("undisturbed", []), ("killed", faults)):
        (tmp_path / name).mkdir()
        folder = disturbed(text, happens, 2, tmp_path / name)
        found.append(summary_of(folder)["model_sha256"])
    assert len(found[0]) == 2
    assert found[1] == found[0]


# --- the plain loop -------------------------------------------------------------------------------


def found_and_expected(
    experiment: Experiment, folder: Path, shared: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Weights]]:
    """Every cluster's weights after a run, and after the loop below."""
    record = run_in_process(experiment, folder / "run")
    assert record.summary.status == "completed"
    clusters = numbers_of(record.summary.clusters)
    homes = numbers_of(record.summary.homes or record.summary.clusters)
    models = {path.stem: load_file(path) for path in sorted((record.folder / "models").iterdir())}
    return models, in_lpss(experiment, clusters, list(homes.values()), shared)


def numbers_of(devices: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    return {name: [int(device[-3:]) for device in ids] for name, ids in devices.items()}


def drawn(experiment: Experiment, home: Sequence[int], lps_round: int) -> list[int]:
    """Who takes part in an LPS round, as docs/experiment.md says it."""
    share = experiment.training.participation
    assert share is not None
    count = math.ceil(share * len(home)) if isinstance(share, float) else share
    draws = {device: np.random.default_rng([experiment.seed, COHORT, lps_round, device]).random() for device in home}
    return sorted(sorted(home, key=lambda device: draws[device])[:count])


def in_lpss(
    experiment: Experiment, clusters: Mapping[str, list[int]], homes: list[list[int]], shared: Sequence[str]
) -> dict[str, Weights]:
    """Each cluster's weights: of each stream every LPS sends how far it moved, and counts by all who moved it."""
    training = experiment.training
    cluster_of = {device: name for name, devices in clusters.items() for device in devices}
    dataset = load_dataset(experiment.data, experiment.seed)
    size_of = {device: len(device_data(experiment, dataset, device).train) for device in cluster_of}
    models = dict.fromkeys(clusters, initial_weights(experiment))
    for global_round in range(training.global_rounds):
        moves: dict[tuple[str, str], list[tuple[Any, int]]] = {}  # by cluster and tensor, each LPS's and its weight
        for home in homes:
            here, weights = dict(models), dict.fromkeys(((name, t) for name in models for t in (*SHARED, *HEAD)), 0)
            for local in range(training.lps_rounds_per_global_round):
                lps_round = global_round * training.lps_rounds_per_global_round + local
                cohort = drawn(experiment, home, lps_round)
                trained = {d: trained_by(experiment, d, here[cluster_of[d]], lps_round, global_round) for d in cohort}
                moved = {name: dict(model) for name, model in here.items()}
                for name, tensor in weights:
                    part = [d for d in cohort if tensor in shared or cluster_of[d] == name]
                    if part:
                        mean = weighted_mean([{tensor: trained[d][tensor]} for d in part], [size_of[d] for d in part])
                        moved[name][tensor] = mean[tensor]
                        weights[name, tensor] += sum(size_of[d] for d in part)
                here = moved
            for (name, tensor), weight in weights.items():
                moves.setdefault((name, tensor), []).append((here[name][tensor] - models[name][tensor], weight))
        models = {name: dict(model) for name, model in models.items()}
        for (name, tensor), parts in moves.items():
            if any(weight for _, weight in parts):
                models[name][tensor] = models[name][tensor] + np.average(
                    [move for move, _ in parts], axis=0, weights=[weight for _, weight in parts]
                )
    return models
