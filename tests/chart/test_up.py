"""What `fedstrata up` works out of an experiment, rendered: the chart takes it, and the pods are as it says."""

from pathlib import Path

import pytest

from emulator.cluster.chart_values import merge_values, with_lps_count, with_memory
from fedstrata.experiment_file import load_experiment
from fedstrata.methods import make_method
from fedstrata.streams.homes import lps_known
from tests.support.charts import EXPERIMENTS, experiment_values, render, workload


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_pods_of_every_example_are_as_up_works_them_out(path: Path) -> None:
    experiment = load_experiment(path)
    worked_out = with_memory(with_lps_count({}, {}, experiment), {}, experiment, None)
    objects = render(merge_values([experiment_values(path), worked_out]))
    lps = workload(objects, "lps")
    assert lps["replicas"] == lps_known(experiment, make_method(experiment))
    assert requested(lps) == f"{worked_out['lps']['memoryMi']['pod']}Mi"
    if experiment.partition.kind != "local":
        devices = workload(objects, "device")
        assert devices["replicas"] == experiment.device_count
        assert requested(devices) == f"{sum(worked_out['device']['memoryMi'].values())}Mi"


def requested(spec: dict[str, object]) -> object:
    return spec["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"]  # type: ignore[index]
