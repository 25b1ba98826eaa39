"""Three devices on the virtual clock that share a link up, with a deadline: a setting whose numbers can be redone."""

from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment

S = 10**9
NAMES = ("device-000", "device-001", "device-002")
TEXT = """
name: late
partition: {kind: iid, devices: 3, examples_per_device: 100}
method: fedavg
clock: virtual
links: {shared: {device-lps: {up_rate: 24kbit/s}}}
compute: {per_example: 10ms}
deadlines: {lps: {deadline_s: 1, quorum_ratio: 0.3}}
"""


def shared_experiment(*overrides: str) -> Experiment:
    """The experiment, with other settings where they are said."""
    return parse_experiment(TEXT, overrides=overrides)
