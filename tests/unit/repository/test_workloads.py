"""The experiments of experiments/workloads: their files are read, and their modules give what their tasks compare."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emulator.sweeps.file import load_sweep
from experiments.workloads.machines import bands, window
from fedstrata.datasets import DatasetInfo
from fedstrata.models.building import build_model
from fedstrata.tasks import make_task

ROOT = Path(__file__).parents[3]
NAMES = ("anomalies", "images", "machines", "schools", "text")


@pytest.mark.parametrize("name", NAMES)
def test_each_workload_compares_its_method_with_local_training_and_fedavg_in_five_seeds(name: str) -> None:
    sweep = load_sweep(ROOT / f"experiments/sweeps/workload_{name}.yaml")
    assert len(sweep.seeds) == 5
    assert {"local", "fedavg"} < {run.experiment.method.name for run in sweep.runs}


@pytest.mark.parametrize("name", NAMES)
def test_each_module_gives_outputs_of_the_shape_that_its_task_needs(name: str) -> None:
    experiment = load_sweep(ROOT / f"experiments/sweeps/workload_{name}.yaml").runs[0].experiment
    data, tokens = experiment.data, experiment.task.name == "next_token"
    assert data.input_shape is not None
    info = DatasetInfo(input_shape=data.input_shape, num_classes=data.num_classes or 0, target_shape=data.target_shape)
    model = build_model(experiment.model, info)
    weights = {key: torch.tensor(view) for key, view in model.layout.views(model.initial(0)).items()}
    inputs = torch.zeros(2, *data.input_shape, dtype=torch.int64 if tokens else torch.float32)
    assert model.outputs(weights, inputs).shape == (2, *make_task(experiment).output_shape(info))


def test_imbalance_on_springs_sounds_as_looseness_does_elsewhere_but_for_the_hum() -> None:
    windows = {
        (state, springs): np.stack([window(30.0, state, springs, np.random.default_rng(seed)) for seed in range(50)])
        for state in (1, 2)
        for springs in (False, True)
    }
    strengths = {key: bands(each[:, None]).mean(0) for key, each in windows.items()}
    assert strengths[1, True][:3] == pytest.approx(strengths[2, False][:3], rel=0.1)
    assert strengths[1, True][4] - strengths[2, False][4] > 0.5 * 128 / 2 / 8  # 310 Hz: one of the fifth band's bins
    assert strengths[1, False][0] > 1.5 * strengths[1, True][0]
