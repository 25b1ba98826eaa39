"""What secure aggregation cannot do, refused with the key that says otherwise."""

from typing import TYPE_CHECKING

from fedstrata.cohort import cohort_size
from fedstrata.errors import ExperimentError
from fedstrata.methods import Method, Moment
from fedstrata.streams import asks_in_training, spans_lps

if TYPE_CHECKING:
    from fedstrata.experiment import Experiment


def check_secure_aggregation(experiment: "Experiment", method: Method) -> None:
    """Refuse secure aggregation where an LPS needs single updates, or has too few of them. Raises ExperimentError."""
    settings = experiment.secure_aggregation
    if settings is None:
        return
    if (why := _why_not(experiment, method)) is not None:
        raise ExperimentError(f"secure_aggregation: {why}")
    there = experiment.device_count - len(experiment.newcomer_indexes)
    asked = cohort_size(there, experiment.training.participation)
    if asked < settings.min_devices:
        raise ExperimentError(
            f"secure_aggregation: at most {asked} devices are asked in a round, and a sum of fewer than min_devices, "
            f"{settings.min_devices}, says too much of each; have more devices, or leave it out"
        )


def _why_not(experiment: "Experiment", method: Method) -> str | None:
    name = experiment.method.name
    if method.mixes:
        return f"method {name} gives each device weights that its LPS applies to single updates; choose another method"
    if asks_in_training(method) is Moment.TRAINED:
        return f"method {name} has devices answer about their updates, which tells what masks hide; take another method"
    if spans_lps(experiment, method):
        key = "topology" if experiment.topology is not None else f"method {name}"
        return f"with {key} clusters span LPSs, and sums of single clusters at one LPS are of few devices; leave it out"
    if experiment.limits.max_update_norm is not None:
        return "nobody can check bounds.max_update_norm of an update that is masked; leave one of them out"
    return None
