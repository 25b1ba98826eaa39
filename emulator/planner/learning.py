"""Find which candidates of a search train the same models, and which axes therefore change only times."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fedstrata.experiment import Experiment
from fedstrata.experiment.schedule import changes_who_trains
from fedstrata.experiment_file import parse_experiment

Choices = Mapping[str, str]  # the choice on each axis


def models_digest(experiment: Experiment) -> str:
    """Return a digest of all that changes the models of a run. Two experiments with the same digest differ only in
    times.
    """
    if models_depend_on_times(experiment):
        return experiment.digest
    return parse_experiment(experiment.to_yaml(), overrides=["clock=none"]).digest


def models_depend_on_times(experiment: Experiment) -> bool:
    """Return whether on other links or boards other devices would take part in a round."""
    return (
        experiment.deadlines.lps.deadline_s is not None
        or experiment.training.rounds.asynchronous is not None
        or changes_who_trains(experiment.schedule)
    )


def learning_axes(candidates: Sequence[tuple[Choices, str]]) -> tuple[str, ...]:
    """Return the axes that change models. `candidates` has the choices of each candidate and its `models_digest`.

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
