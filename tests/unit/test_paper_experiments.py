"""The experiments of `experiments/papers/`: each can be read, and has the groups that its paper is about."""

from pathlib import Path

import pytest

from fedstrata.experiment import load_experiment

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "papers"
GROUPS = {
    "adaptive_pairs": (16, 8),
    "adaptive_overlap": (16, 4),
    "user_centric_label": (20, None),
    "user_centric_covariate": (20, 4),
    "user_centric_concept": (20, 4),
    "user_centric_time": (20, 4),
}


@pytest.mark.parametrize("name", GROUPS)
def test_an_experiment_has_its_papers_devices_and_groups(name: str) -> None:
    experiment = load_experiment(FOLDER / f"{name}.yaml")
    groups = experiment.task_of_devices()
    assert (experiment.device_count, len(set(groups)) if groups else None) == GROUPS[name]
    assert experiment.name == name.replace("_", "-")


def test_every_experiment_of_a_paper_is_looked_at() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(GROUPS)
