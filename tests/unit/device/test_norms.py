"""The limit for norms that `fedstrata check --try` proposes: every honest update of a run passes it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device.pace import data_here, training_job
from device.training import train
from device.update_norms import Norms, first_norms
from emulator.commands import main as cli
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment

FILE = """
name: norms
data: {name: digits}
partition: {kind: dirichlet, devices: 8, examples_per_device: 60, concentration: 0.3}
model: {name: mlp, hidden: [16]}
method: fedavg
training: {global_rounds: 8, lps_rounds_per_global_round: 1}
"""


def experiment_of(*overrides: str) -> Experiment:
    return parse_experiment(FILE, overrides=overrides)


def norms_of(*overrides: str) -> Norms | None:
    """The norms before the run, from the experiment's own data."""
    experiment = experiment_of(*overrides)
    return first_norms(experiment, data_here(experiment))


def honest_norms(experiment: Experiment) -> list[list[float]]:
    """The norms of all updates by round, computed without the tiers: the mean of the updates makes the next model."""
    jobs = [training_job(experiment, data_here(experiment), index) for index in range(experiment.device_count)]
    weights, norms = jobs[0].start, []
    for number in range(experiment.training.lps_rounds):
        updates = [train(replace(job, start=weights, lps_round=number)).weights - weights for job in jobs]
        norms.append([float(np.linalg.norm(update)) for update in updates])
        examples = [len(job.examples) for job in jobs]
        weights = weights + np.average(updates, axis=0, weights=examples).astype(np.float32)
    return norms


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.optimiser={learning_rate: 0.1, momentum: 0.9}", "training.local_epochs=3"),
        ("training.optimiser={name: adam}",),
        ("training.optimiser={learning_rate: 0.001}", "training.batch_size=8"),
        ("partition={kind: dirichlet, devices: 8, examples_per_device: 60, concentration: 0.05}", "model.hidden=[64]"),
    ],
)
def test_all_honest_updates_of_a_run_pass_the_proposed_limit_and_a_destroying_one_does_not(
    overrides: tuple[str, ...],
) -> None:
    experiment = experiment_of(*overrides)
    norms, honest = norms_of(*overrides), honest_norms(experiment)
    assert norms is not None
    assert set(norms.of_updates) <= set(honest[0])
    assert max(max(each) for each in honest) < norms.proposed < 10 * max(honest[0])


def test_only_the_weights_that_are_sent_are_measured() -> None:
    whole, part = norms_of(), norms_of("method=fedper")
    assert whole is not None
    assert part is not None
    experiment = experiment_of("method=fedper")
    job = training_job(experiment, data_here(experiment), 0)
    update = job.model.layout.views(train(job).weights - job.start)
    body = np.sqrt(sum(float(np.square(update[name]).sum()) for name in ("fc1.weight", "fc1.bias")))
    assert min(abs(norm - body) for norm in part.of_updates) < 1e-5
    assert max(part.of_updates) < max(whole.of_updates)


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=local",),
        ("method=scaffold",),
        ("secure_aggregation={min_devices: 3}",),
        ("privacy={noise: research, updates: {epsilon: 8, clip: 1}}",),
    ],
)
def test_no_limit_is_proposed_where_none_would_fit(overrides: tuple[str, ...]) -> None:
    assert norms_of(*overrides) is None


def test_an_update_that_is_not_finite_is_named_and_no_limit_is_proposed() -> None:
    with pytest.raises(ExperimentError, match=r"first update of device-\d+ is not finite; lower training"):
        norms_of("training.optimiser={learning_rate: 1.0e+38}")


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("null", "Without a limit one device can destroy the model; bounds: {max_update_norm: 4} leaves room"),
        ("0.9", "above bounds.max_update_norm, 0.9: honest devices are refused; set 4"),
        ("2", "and bounds.max_update_norm is 2"),
    ],
)
def test_the_line_has_the_norms_and_a_proposal(limit: str, says: str) -> None:
    said = Norms(of_updates=(0.5, 1.0)).said(experiment_of(f"bounds.max_update_norm={limit}"))
    assert said.startswith("first updates of 2 devices have L2 norms of 0.5 to 1")
    assert says in said


def test_check_try_prints_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "norms.yaml").write_text(FILE)
    assert cli.execute(["check", str(tmp_path / "norms.yaml"), "--try"]) == 0
    norms = norms_of()
    assert norms is not None
    assert f"bounds: {{max_update_norm: {norms.proposed:g}}}" in capsys.readouterr().out
