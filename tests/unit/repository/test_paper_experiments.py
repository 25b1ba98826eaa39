"""The experiments of `experiments/papers/`: each can be read, and has the groups that its paper is about."""

from pathlib import Path

import pytest

from emulator.sweeps.file import load_sweep, read_document, sweep_file, sweep_of
from emulator.sweeps.tuning import candidates_of
from fedstrata.datasets import dataset_info
from fedstrata.experiment import DataSettings
from fedstrata.experiment_file import load_experiment
from fedstrata.methods.registry import NAMES
from fedstrata.models import build_model

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "papers"
GROUPS = {
    "adaptive_pairs": (16, 8),
    "adaptive_overlap": (16, 4),
    "fedtsdp": (20, None),
    "scores": (3, 3),
    "user_centric_label": (20, None),
    "user_centric_covariate": (20, 4),
    "user_centric_concept": (20, 4),
    "user_centric_time": (20, 4),
    "rivals": (10, 3),
}


@pytest.mark.parametrize("name", GROUPS)
def test_an_experiment_has_its_papers_devices_and_groups(name: str) -> None:
    experiment = load_experiment(FOLDER / f"{name}.yaml")
    groups = experiment.task_of_devices()
    assert (experiment.device_count, len(set(groups)) if groups else None) == GROUPS[name]
    assert experiment.name == name.replace("_", "-")


def test_every_experiment_of_a_paper_is_looked_at() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(GROUPS)


LABEL_MEANS = {"local", "label_means"}
USER_CENTRIC = {"local", "fedavg", "cfl", "fedfomo", "user_centric"}
# Scores exchanges no weights, and needs public labels; flux is in label_means; the models have no statistics.
NOT_RIVALS = {
    "scores", "flux", "fedbn", "fedavg_ft", "fedrep", "fedbabu", "lg_fedavg", "scaffold", "fednova", "perfedavg",
    "pfedme", "apfl", "fedavgm", "fedadagrad", "fedyogi", "fedadam", "moon", "fedrod", "fedproto", "feddc", "fedala",
}  # fmt: skip
LISTS = {  # by name how many runs, the baseline, and the methods
    "adaptive": (10 * 2 * 5, "local", {"local", "adaptive"}),
    "fedtsdp": (8 * 4 * 5, "local", {"local", "fedavg", "fedprox", "ditto", "fedper", "cfl", "fedtsdp"}),
    "grouping": (5 * 10 * 5, "pacfl", {"one_shot", "pacfl"}),
    "label_means_accuracy": (4 * 2 * 5, "local", LABEL_MEANS | {"oracle", "user_centric"}),
    "label_means_adaptive": (4 * 2 * 5, "local", LABEL_MEANS | {"oracle", "adaptive"}),
    "label_means_label_shift": (4 * 2 * 5, "local", LABEL_MEANS | {"user_centric", "ditto"}),
    "rivals": (18 * 5, "fedavg", {*NAMES} - NOT_RIVALS),
    "scores": (5 * 5, "local", {"scores"}),
    "scores_held_out": (5 * 5, "local", {"scores"}),
    "user_centric_groups": (6 * 2 * 5, "local", USER_CENTRIC | {"oracle"}),
    "user_centric_label": (7 * 5, "local", USER_CENTRIC),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_table_has_its_papers_methods_and_no_seed_that_was_tuned_on(name: str) -> None:
    sweep = load_sweep(FOLDER.parent / "sweeps" / f"{name}.yaml")
    assert (len(sweep.runs), sweep.baseline, {run.experiment.method.name for run in sweep.runs}) == LISTS[name]
    assert not {run.experiment.seed for run in sweep.runs} & {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "readings"),
    [("scores", {"rows", "columns", "alone"}), ("scores_held_out", {"rows", "columns", "alone", "labels"})],
)
def test_the_tables_of_scores_have_what_needs_no_exchange(name: str, readings: set[str]) -> None:
    sweep = load_sweep(FOLDER.parent / "sweeps" / f"{name}.yaml")
    assert {run.experiment.method.model_dump()["reading"] for run in sweep.runs} == readings


PUBLISHED = {"one_shot": {"cifar-10"}, "adaptive": {"cifar-100"}}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_papers_own_settings_have_their_data_local_training_and_models_that_can_be_built(name: str) -> None:
    sweep = load_sweep(FOLDER.parent / "sweeps" / "published" / f"{name}.yaml")
    experiments = [run.experiment for run in sweep.runs]
    assert {experiment.data.name for experiment in experiments} == PUBLISHED[name]
    assert {experiment.seed for experiment in experiments} == {3, 4, 5, 6, 7}
    assert "local" in {experiment.method.name for experiment in experiments}
    built = {experiment.model.model_dump_json() + experiment.data.name: experiment for experiment in experiments}
    for model, data in ((experiment.model, experiment.data.name) for experiment in built.values()):
        assert build_model(model, dataset_info(DataSettings(name=data))).layout.size > 0


def test_every_setting_of_a_paper_is_looked_at() -> None:
    assert sorted(path.stem for path in (FOLDER.parent / "sweeps" / "published").glob("*.yaml")) == sorted(PUBLISHED)


def test_the_table_of_baselines_has_twelve_methods_four_splits_and_the_cnn_of_the_paper_about_fedavg() -> None:
    """144 runs are tuned with three rates on one seed, and 144 are reported on three seeds."""
    path = FOLDER.parent / "sweeps" / "baselines.yaml"
    document = read_document(path, "sweep file")
    file = sweep_file(document, str(path))
    assert file.tune is not None
    rows = len(file.places())
    assert rows * file.tune.num_candidates == rows * len(file.seeds) == 144
    candidates = candidates_of(document, file, file.tune)
    candidates["vary"] = {**candidates["vary"], "training.optimiser.learning_rate": [0.01]}
    tuning = sweep_of(candidates, name="baselines", where=str(path), beside=path.parent)
    assert {len(run.experiment.device_ids()) for run in tuning.runs} == {100}
    assert len({run.experiment.method.name for run in tuning.runs}) == len(file.cells) == 12
    assert {run.experiment.partition.test_set for run in tuning.runs} == {"validation"}
    one = tuning.runs[0].experiment
    assert build_model(one.model, dataset_info(one.data)).layout.size == 1_663_370


def test_the_short_table_of_baselines_has_the_same_methods_and_tunes_on_the_images_that_it_leaves_out() -> None:
    """72 runs are tuned with three rates on one seed, and 72 are reported on three seeds."""
    path = FOLDER.parent / "sweeps" / "baselines_short.yaml"
    document, large = (read_document(each, "sweep file") for each in (path, path.with_name("baselines.yaml")))
    file = sweep_file(document, str(path))
    assert file.tune is not None
    assert (document["cells"], document["tune"]["grid"]) == (large["cells"], large["tune"]["grid"])
    assert len(file.places()) * file.tune.num_candidates == len(file.places()) * len(file.seeds) == 72
    assert document["base"]["partition"]["validation_share"] == file.tune.validation_share == 0.85
