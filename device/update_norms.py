"""Measure the norms of honest updates before a run, and propose a limit for norms (`bounds.max_update_norm`)."""

from dataclasses import dataclass

import numpy as np

from device.pace import training_job
from device.training import train
from fedstrata.datasets import Dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.partitions import example_counts
from fedstrata.streams.architectures import Architectures
from fedstrata.tensors import taken

MOST_TRAINED = 5  # devices that are trained
# Later honest updates were at most 1.8 times as long as the longest first update (digits, five settings, 24 rounds).
ROOM = 4


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Hold the L2 norms of the first updates that some devices would send."""

    of_updates: tuple[float, ...]

    @property
    def proposed(self) -> float:
        """A limit for the norms of all rounds: four times the largest norm, rounded to two digits."""
        return float(f"{ROOM * max(self.of_updates):.2g}")

    def said(self, experiment: Experiment) -> str:
        """Return a line about the norms, with the proposed limit. If the experiment already has a limit, compare it
        with the norms.
        """
        least, most = min(self.of_updates), max(self.of_updates)
        said = f"first updates of {len(self.of_updates)} devices have L2 norms of {least:.3g} to {most:.3g}"
        limit = experiment.limits.max_update_norm
        if limit is None:
            return (
                f"{said}. Without a limit one device can destroy the model; bounds: {{max_update_norm: "
                f"{self.proposed:g}}} leaves room for later rounds"
            )
        if limit < most:
            return f"{said}, above bounds.max_update_norm, {limit:g}: honest devices are refused; set {self.proposed:g}"
        return f"{said}, and bounds.max_update_norm is {limit:g}"


def first_norms(experiment: Experiment, dataset: Dataset) -> Norms | None:
    """Train some devices for one LPS round from the initial weights, and return the norms of their updates. The devices
    with the fewest and the most examples are included. Corrections that a method applies to training are left out.

    Return None if no limit can be proposed: devices send no weights, or mask them, clip them, or send other arrays with
    the weights. Raises ExperimentError if an update is not finite.
    """
    streams = Architectures(experiment, make_method(experiment)).main.streams
    is_clipped = experiment.privacy is not None and experiment.privacy.updates is not None
    is_hidden = experiment.secure_aggregation is not None
    if is_hidden or is_clipped or streams.tables.size or not streams.travelling.size:
        return None
    counts = example_counts(experiment, dataset)
    by_size = sorted((n, index) for index, n in enumerate(counts) if n)
    places = np.linspace(0, len(by_size) - 1, min(MOST_TRAINED, len(by_size))).round().astype(int)
    found = []
    for place in places:
        job = training_job(experiment, dataset, by_size[place][1])
        update = train(job).weights - job.start
        sent = taken(update, streams.whole.slices_of(streams.travelling))
        with np.errstate(over="ignore"):
            found.append(float(np.linalg.norm(sent)))
        if not np.isfinite(found[-1]):
            raise ExperimentError(
                f"the first update of {experiment.device_ids()[by_size[place][1]]} is not finite; lower "
                "training.optimiser.learning_rate, or look for NaN in model and task"
            )
    return Norms(of_updates=tuple(found))
