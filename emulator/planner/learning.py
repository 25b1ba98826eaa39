"""Find which candidates of a search train the same models, and which axes change only times. An axis is a list of
choices that a search file varies.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from emulator.estimates.retime import without_times
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment

Choices = Mapping[str, str]  # the choice on each axis


def models_digest(experiment: Experiment) -> str:
    """Return a digest of all that changes the models of a run. Two experiments with the same digest differ only in
    times, or in their names. In asynchronous rounds, times change models.
    """
    if experiment.training.rounds.asynchronous is None:
        return without_times(experiment.to_yaml(), "name=same").digest
    return parse_experiment(experiment.to_yaml(), overrides=["name=same"]).digest


def learning_axes(candidates: Sequence[tuple[Choices, str]]) -> tuple[str, ...]:
    """Return the names of the axes that change models. `candidates` has the choices of each candidate and its
    `models_digest`.

    An axis changes models if two candidates that differ on no other axis have different digests.
    """
    found = []
    for axis in candidates[0][0]:
        alike: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for choices, digest in candidates:
            alike[tuple(choice for name, choice in choices.items() if name != axis)].add(digest)
        if any(len(digests) > 1 for digests in alike.values()):
            found.append(axis)
    return tuple(found)
