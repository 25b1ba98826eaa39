"""What a plan tells all devices is there in every round, whether or not clusters have LPSs of their own."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.experiment_file import parse_experiment
from tests.support.disturbed import disturbed
from tests.support.records import summary_of
from tests.support.tiers import run_in_process

# Weights begin at 0 and grow in each LPS round by the step that the plan tells.
OWN = """
import numpy as np

from fedstrata.methods import Method, Outcome, Plan


class Stepping(Method):
    @property
    def clusters_known(self):
        return 2

    def initial(self, model, cluster):
        return np.zeros(model.layout.size, np.float32)

    def tells(self):
        return {"step": ("float32", (1,))}

    def plan(self, moment, answers, before):
        devices = [device.device_index for device in answers.devices]
        return Plan.ordered([devices[:2], devices[2:]], rule="two", told={"step": np.float32([0.25])})

    async def local(self, work):
        return Outcome(weights=work.start + work.told["step"], train_loss=0.0)

    async def measure(self, work):
        assert work.told["step"] == 0.25
        return await super().measure(work)
"""
EXPERIMENT = """
name: told
partition: {kind: iid, devices: 5, examples_per_device: 20}
model: {name: mlp, hidden: [4]}
method: "stepping:Stepping"
training: {global_rounds: 2, lps_rounds_per_global_round: 2}
"""


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stepping.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("topology", ["", "topology: {lps: 2}\n"], ids=["own-lps", "spanning"])
def test_what_a_plan_tells_is_with_devices_in_every_round(own_code: Path, topology: str) -> None:
    record = run_in_process(parse_experiment(EXPERIMENT + topology), own_code / "run")
    assert record.summary.status == "completed", record.summary.reason
    models = [load_file(path) for path in (record.folder / "models").iterdir()]
    assert len(models) == 2
    for model in models:
        assert all((tensor == 1.0).all() for tensor in model.values())  # four LPS rounds of 0.25


@pytest.mark.kills
def test_an_lps_that_begins_again_within_a_global_round_tells_it_again(own_code: Path) -> None:
    faults = [{"do": "kill", "process": "lps-0", "at": {"point": "aggregation", "round": 1}}]
    folder = disturbed(EXPERIMENT, faults, 2, own_code)
    assert summary_of(folder)["status"] == "completed"
    model = load_file(folder / "models" / "lps-0.safetensors")
    assert np.concatenate([tensor.ravel() for tensor in model.values()]).tolist() == [1.0] * sum(
        tensor.size for tensor in model.values()
    )
