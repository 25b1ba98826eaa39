"""The memory that `fedstrata check` says, beside the memory that a process with devices takes."""

from pathlib import Path

import pytest

from benchmarks.memory_devices import peak_mb
from emulator.estimates.sizing import device_memory
from fedstrata.datasets import load_dataset
from fedstrata.experiment_file import parse_experiment


@pytest.mark.runs
@pytest.mark.parametrize(
    ("data", "devices", "changes", "model"),
    [
        ("skewed", 20, ["method=one_shot"], "{name: mlp}"),
        ("pixels", 100, [], "{name: cnn}"),
        ("pixels", 100, ["training.participation=10"], "{name: cnn, hidden: [512]}"),
    ],
)
def test_a_process_takes_no_more_than_is_estimated_and_not_much_less(
    data: str, devices: int, changes: list[str], model: str, tmp_path: Path
) -> None:
    text = f"""
name: memory
data: {{name: "tests.support.owned_data:{data}", input_shape: [1, 28, 28], num_classes: 10}}
partition: {{kind: natural, by: owner, devices: {devices}}}
model: {model}
method: fedavg
training: {{global_rounds: 1, lps_rounds_per_global_round: 1, local_steps: 2, batch_size: 16}}
"""
    experiment = parse_experiment(text, overrides=changes)
    estimated = device_memory(experiment, load_dataset(experiment.data, experiment.seed)).of(devices) / 1e6
    measured = peak_mb(experiment, tmp_path)
    most = 2 if "cnn" in model else 1.5  # beside its tensors, a convolution takes what the processor's kernels need
    assert measured <= estimated <= most * measured, (estimated, measured)
