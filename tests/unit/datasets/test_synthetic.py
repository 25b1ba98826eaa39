"""Synthetic(α, β): the published law, computed here number by number, and the seed of its draw."""

import math

import numpy as np
import pytest

from fedstrata.datasets import Dataset, load_dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import DataSettings, SyntheticSettings
from fedstrata.experiment_file import parse_experiment
from fedstrata.partitions import device_data

EXPERIMENT = """
name: synthetic
seed: 5
data: {name: synthetic, synthetic: {num_devices: 4}}
partition: {kind: natural, devices: 4}
method: fedavg
"""


def drawn(seed: int, **law: float) -> Dataset:
    return load_dataset(DataSettings(name="synthetic", synthetic=SyntheticSettings.model_validate(law)), seed)


def of(dataset: Dataset, device: int) -> tuple[np.ndarray, list[int]]:
    """Return all inputs and labels of a device, in the order of the draw."""
    parts = [(part.inputs[part.column("device") == device], part.labels[part.column("device") == device])
             for part in (dataset.train, dataset.test)]  # fmt: skip
    return np.concatenate([inputs for inputs, _ in parts]), [int(label) for _, labels in parts for label in labels]


def test_a_device_has_the_published_law_number_by_number() -> None:
    dataset = drawn(alpha=0.5, beta=2, num_devices=3, seed=7)
    normal = np.random.default_rng([0x73796E74, 7, 2]).standard_normal
    size = math.floor(math.exp(4 + 2 * normal())) + 50
    centre_of_model, centre_of_means = 0.5 * normal(), 2 * normal()
    # in the order of the file: the size, the centre of the model, the centre of the mean inputs, and the mean inputs
    means = [centre_of_means + normal() for _ in range(60)]
    weights = [[centre_of_model + normal() for _ in range(10)] for _ in range(60)]
    biases = [centre_of_model + normal() for _ in range(10)]
    inputs, labels = of(dataset, 2)
    assert len(inputs) == size
    for example in range(20):
        x = [means[j] + (j + 1) ** (-1.2 / 2) * normal() for j in range(60)]
        scores = [biases[c] + sum(x[j] * weights[j][c] for j in range(60)) for c in range(10)]
        assert inputs[example] == pytest.approx(x, rel=1e-6)
        assert labels[example] == max(range(10), key=scores.__getitem__)


def test_nine_tenths_of_each_device_rounded_down_are_for_training() -> None:
    dataset = drawn(num_devices=10, seed=1)
    for device in range(10):
        trained, tested = (int((part.column("device") == device).sum()) for part in (dataset.train, dataset.test))
        assert trained == math.floor(0.9 * (trained + tested)) >= 45


def test_sizes_are_log_normal_and_the_mean_inputs_of_devices_differ_by_beta() -> None:
    dataset = drawn(alpha=0, beta=3, num_devices=200, seed=0)
    owners = np.concatenate([dataset.train.column("device"), dataset.test.column("device")])
    inputs = np.concatenate([dataset.train.inputs, dataset.test.inputs])
    sizes = np.bincount(owners)
    logs = np.log(sizes - 50 + 0.5)  # of whole numbers: the middle of what is rounded down
    assert np.median(logs) == pytest.approx(4, abs=0.55)  # ± 3 standard errors, 1.25 · 2 / √200 each
    means = np.array([np.bincount(owners, inputs[:, j]) / sizes for j in range(60)])
    assert means.mean(axis=0).std() == pytest.approx(math.hypot(3, 1 / math.sqrt(60)), abs=0.45)
    within = inputs - means.T[owners]
    assert within.std(axis=0) == pytest.approx(np.arange(1, 61) ** -0.6, rel=0.02)


def test_devices_that_are_alike_have_one_model_and_mean_inputs_of_0() -> None:
    dataset = drawn(alike=True, num_devices=100, seed=3)
    rng = np.random.default_rng([0x73796E75, 3])
    weights, biases = rng.normal(0, 1, (60, 10)), rng.normal(0, 1, 10)
    labels = np.argmax(dataset.train.inputs @ weights + biases, axis=1)
    assert (labels == dataset.train.labels).mean() > 0.9999  # inputs are rounded to float32 after the label is known
    assert np.abs(dataset.train.inputs.mean(axis=0)).max() < 0.03


def test_a_device_keeps_its_examples_if_more_devices_are_drawn() -> None:
    few, many = drawn(num_devices=2, seed=4), drawn(num_devices=6, seed=4)
    assert np.array_equal(of(few, 1)[0], of(many, 1)[0])
    assert of(drawn(num_devices=2, seed=5), 1)[0].tolist() != of(few, 1)[0].tolist()


def test_the_seed_of_the_draw_is_the_experiments_unless_the_file_has_another() -> None:
    experiment = parse_experiment(EXPERIMENT)
    owned = device_data(experiment, load_dataset(experiment.data, experiment.seed), 3)
    inputs, labels = of(drawn(num_devices=4, seed=5), 3)
    assert np.array_equal(np.concatenate([owned.train.inputs, owned.test.inputs]), inputs)
    assert [*owned.train.labels, *owned.test.labels] == labels
    fixed = EXPERIMENT.replace("devices: 4}}", "devices: 4, seed: 9}}")
    cases = ((EXPERIMENT, 8), (fixed, 8), (fixed, None))
    for (text, seed), expected in zip(cases, (8, 9, 9), strict=True):
        experiment = parse_experiment(text, seed=seed)
        sets = load_dataset(experiment.data, experiment.seed), drawn(expected, num_devices=4)
        assert len({each.train.inputs.tobytes() for each in sets}) == 1


def test_a_recorded_experiment_with_another_seed_draws_other_data() -> None:
    recorded = parse_experiment(EXPERIMENT).to_yaml()
    again = parse_experiment(recorded, seed=8)
    assert again.data.drawn(again.seed).synthetic == SyntheticSettings(num_devices=4, seed=8)
    assert again.digest == parse_experiment(EXPERIMENT, seed=8).digest
    assert parse_experiment(recorded, seed=5).digest == parse_experiment(recorded).digest != again.digest


def test_the_law_is_refused_beside_another_data_set() -> None:
    with pytest.raises(ExperimentError, match=r"the key synthetic is for data\.name synthetic, not for"):
        parse_experiment(EXPERIMENT.replace("name: synthetic, synthetic", "name: fcube, synthetic"))


def test_a_partition_into_another_number_of_devices_is_refused_before_data_are_drawn() -> None:
    said = r"partition\.devices is 7, and data\.synthetic\.num_devices is 4; make them equal"
    with pytest.raises(ExperimentError, match=said):
        parse_experiment(EXPERIMENT.replace("natural, devices: 4", "natural, devices: 7"))
    some = EXPERIMENT.replace("natural, devices: 4", "natural, names: ['1', '3']")
    assert parse_experiment(some).device_count == 2
