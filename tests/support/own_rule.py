"""An experiment with a rule and an attack of the user's own, in files beside it."""

import shutil
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("agreeing.py", "opposing.py")
EXPERIMENT = """
name: own-rule
partition: {kind: iid, devices: 12, examples_per_device: 100}
model: {name: mlp, hidden: [32]}
method: fedavg
topology: {lps: 2}
aggregation: {lps: {name: "agreeing:Agreeing", least: 0.1}}
attacks:
  - {name: "opposing:Opposing", times: 5, devices: [1, 2, 5]}
training:
  global_rounds: 6
  lps_rounds_per_global_round: 1
  local_epochs: 1
  batch_size: 16
  optimiser: {learning_rate: 0.2, momentum: 0.5}
"""


def written(folder: Path) -> Path:
    """Write the files into a folder, and return the experiment file."""
    for name in FILES:
        shutil.copy(HERE / name, folder)
    experiment = folder / "own_rule.yaml"
    experiment.write_text(EXPERIMENT)
    return experiment
