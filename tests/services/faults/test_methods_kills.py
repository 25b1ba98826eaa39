"""Every method while the GPS, an LPS and a device process are killed: the bits of a run that nobody disturbs."""

from pathlib import Path

import pytest

from fedstrata.experiment_file import parse_experiment
from fedstrata.methods.registry import NAMES
from tests.services.methods.test_methods_bits import KEPT
from tests.support.every_method import experiment_of
from tests.support.records import summary_of
from tests.support.spanning_runs import disturbed
from tests.support.tiers import run_in_process

KILLS = [
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
    {"do": "kill", "process": "lps-0", "at": {"point": "aggregation", "round": 1}},
    {"do": "kill", "process": "device-001", "at": {"point": "upload", "round": 1}},
]


@pytest.mark.kills
@pytest.mark.parametrize("method", NAMES)
def test_a_method_whose_processes_are_killed_has_the_bits_of_one_whose_are_not(method: str, tmp_path: Path) -> None:
    experiment = experiment_of(method)
    calm = run_in_process(experiment, tmp_path / "calm").folder
    text = experiment.to_yaml().replace("faults: []\n", "")
    killed = disturbed(tmp_path / "killed", text, KILLS, processes=2)
    assert len(killed["restarts"]) == 3
    undisturbed = summary_of(calm)
    assert {key: killed[key] for key in KEPT} == {key: undisturbed[key] for key in KEPT}
    assert killed["lost_state"] == []


MASKED = """
name: masked
partition: {kind: iid, devices: 6, examples_per_device: 40}
model: {name: mlp, hidden: [16]}
method: fedavg
topology: {lps: 2}
training: {global_rounds: 3, lps_rounds_per_global_round: 2, batch_size: 16}
"""


@pytest.mark.kills
def test_masked_updates_of_a_cluster_that_spans_lpss_have_under_kills_the_bits_of_plain_ones(tmp_path: Path) -> None:
    plain = run_in_process(parse_experiment(MASKED), tmp_path / "plain")
    killed = disturbed(tmp_path / "killed", f"{MASKED}secure_aggregation: {{min_devices: 3}}\n", KILLS, processes=2)
    assert len(killed["restarts"]) == 3
    assert killed["model_sha256"] == dict(plain.summary.model_sha256)
    assert killed["excluded"] == []
