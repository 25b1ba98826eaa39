"""Every example experiment runs, shortened."""

from pathlib import Path

import pytest
from programs import REPOSITORY
from tiers import run_in_process

from fedstrata.datasets import load_dataset
from fedstrata.errors import DataError
from fedstrata.experiment import Experiment, TaskPartition, load_experiment

EXAMPLES = sorted((REPOSITORY / "experiments").glob("*.yaml"))
EXAMPLES_PER_DEVICE = 40


def shortened(path: Path) -> Experiment:
    """An example with one global round and little data."""
    overrides = ["training.global_rounds=1"]
    partition = load_experiment(path).partition
    if isinstance(partition, TaskPartition):
        keys = [f"tasks.{number}.examples_per_device" for number in range(len(partition.tasks))]
    else:
        keys = ["examples_per_device"]
    return load_experiment(path, [*overrides, *(f"partition.{key}={EXAMPLES_PER_DEVICE}" for key in keys)])


def test_there_are_the_examples_that_the_documentation_names() -> None:
    assert {"digits", "fmnist_three_tasks", "fmnist_random"} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_a_completed_record(path: Path, tmp_path: Path) -> None:
    experiment = shortened(path)
    try:
        load_dataset(experiment.data)
    except DataError as error:
        pytest.skip(f"its data set is not here: {error}")
    summary = run_in_process(experiment, tmp_path / "run").summary
    assert summary.status == "completed"
    assert summary.rounds == 1
    assert sum(len(devices) for devices in summary.clusters.values()) == experiment.device_count
    assert not summary.excluded
    assert set(summary.model_sha256) == set(summary.clusters)
    assert summary.mean_accuracy is not None
