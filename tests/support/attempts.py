"""The attempt of runs in a test's own process."""

from fedstrata.experiment import Experiment


def attempt_of(experiment: Experiment) -> str:
    """The attempt in which tests run an experiment: each message of these runs states it as its `run_id`."""
    return f"{experiment.run_id}/00000000"
