"""Memory that pods are given: what it follows, and that it covers what was measured."""

from pathlib import Path

import pytest

from emulator.estimates.sizing import MIB, PUBLISHED, device_memory, examples_of_a_device, lps_memory, processor_memory
from fedstrata.datasets import dataset_info, load_dataset
from fedstrata.experiment import DATASETS, Experiment
from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.models import build_model
from tests.support.owned_data import PIXELS, pixels, skewed
from tests.support.two_tasks import TWO_TASKS

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


def experiment(
    model: str, *, data: str = "fashion-mnist", method: str = "fedavg", examples: int = 600, devices: int = 100,
    optimiser: str = "{name: sgd}",
) -> Experiment:  # fmt: skip
    return parse_experiment(f"""
name: lab
data: {{name: {data}}}
partition: {{kind: iid, devices: {devices}, examples_per_device: {examples}}}
model: {{name: {model}}}
method: {method}
training: {{lps_rounds_per_global_round: 1, optimiser: {optimiser}}}
""")


WIDE, ADAM, KEPT = "mlp, hidden: [2000, 1000]", "{name: adam}", "{name: adam, state: kept}"  # 14 MiB of weights


@pytest.mark.parametrize(
    ("made", "devices", "measured_mib"),
    [
        (experiment("mlp"), 1, 395),
        (experiment("mlp"), 25, 432),
        (experiment("mlp"), 100, 512),
        (experiment("mlp", method="one_shot"), 25, 504),
        (experiment("mlp", method="ditto"), 25, 429),
        (experiment("cnn"), 1, 473),
        (experiment("cnn"), 25, 535),
        (experiment("dropout_cnn", examples=100), 1, 597),
        (experiment("dropout_cnn", examples=100), 5, 742),
        (experiment("mlp", data="digits", examples=100), 10, 340),
        (experiment(WIDE, examples=60), 1, 437),
        (experiment(WIDE, examples=60, optimiser=ADAM), 1, 484),
        (experiment(WIDE, examples=60, optimiser=KEPT), 1, 579),
        (experiment(WIDE, examples=60, optimiser=KEPT), 6, 1359),
        (experiment(WIDE, examples=60, optimiser="{name: sgd, momentum: 0.9, state: kept}"), 6, 1056),
    ],
)
def test_what_a_pod_is_given_covers_what_was_measured_and_not_more_than_twice_that(
    made: Experiment, devices: int, measured_mib: int
) -> None:
    """Measured by benchmarks/memory_devices.py."""
    assert measured_mib <= device_memory(made, None).of(devices) / MIB <= 2 * measured_mib


def of_owners(data: str, model: str, devices: int, method: str = "fedavg", more: str = "") -> Experiment:
    shape = [784] if data in {"views", "items"} else list(PIXELS)
    return parse_experiment(f"""
name: lab
data: {{name: "tests.support.owned_data:{data}", input_shape: {shape}, num_classes: 10}}
partition: {{kind: natural, by: owner, devices: {devices}}}
model: {{name: "{model}"}}
method: {method}
{more}
""")


@pytest.mark.parametrize(
    ("made", "measured_mib"),
    [
        (of_owners("pixels", "tests.support.owned_data:Net", 100), 462),
        (of_owners("pixels", "mlp", 100), 403),
        (of_owners("pixels", "cnn", 100), 583),
        (of_owners("skewed", "mlp", 20), 451),
        (of_owners("skewed", "mlp", 20, "one_shot"), 568),
        (of_owners("views", "mlp", 10), 406),
        (of_owners("items", "mlp", 10), 370),
    ],
    ids=lambda value: value.data.name.rpartition(":")[2] if isinstance(value, Experiment) else str(value),
)
def test_own_data_that_are_here_give_the_memory_of_all_devices_in_a_process(
    made: Experiment, measured_mib: int
) -> None:
    """Measured as VmHWM of one process with all devices. The sizes of devices are not in the experiment file."""
    memory = device_memory(made, load_dataset(made.data, made.seed))
    assert measured_mib <= memory.of(made.device_count) / MIB <= 1.5 * measured_mib


def test_a_pod_has_room_for_the_largest_of_consecutive_devices() -> None:
    """Device 0 has 10,500 training examples, and each other device has 500. All test on 100."""
    made = of_owners("skewed", "mlp", 20)
    memory, example = device_memory(made, skewed()), 784 * 4 + 8 + 8
    assert memory.devices[0] - memory.devices[1] == 10_000 * example
    assert memory.of(1) == memory.process + memory.devices[0]
    assert memory.of(5) == memory.process + memory.devices[0] + 4 * memory.devices[1]


def test_noise_turns_a_device_s_bytes_into_floats() -> None:
    """Each of 100 devices has 60 training and 100 test images of 784 pixels: one byte each, and 4 bytes with noise."""
    text = "name: a\ndata: {name: 'tests.support.owned_data:pixels', input_shape: [1, 28, 28], num_classes: 10}\n"
    plain = parse_experiment(text + "partition: {kind: natural, by: owner, devices: 100}")
    noisy = parse_experiment(text + "partition: {kind: feature_noise, devices: 100}")
    dataset = pixels()
    stored, changed = (device_memory(each, dataset).devices[0] for each in (plain, noisy))
    assert changed - stored == 3 * 784 * (60 + 100)


def test_without_the_data_no_more_examples_than_a_usual_data_set_are_assumed() -> None:
    """100,000 examples of 784 numbers in all, and 20,000 for a device; or 30, if the file says so."""
    memory = device_memory(of_owners("pixels", "mlp", 100), None)
    bounded = device_memory(of_owners("pixels", "mlp", 100, more="bounds: {max_examples: 30}"), None)
    assert memory.process - bounded.process == (100_000 - 3_000) * 784 * 4
    assert memory.devices[0] - bounded.devices[0] == (20_000 - 30) * 784


def test_every_published_data_set_has_a_size() -> None:
    assert set(PUBLISHED) == set(DATASETS) - {"folder", "synthetic"}


def test_generated_data_take_the_memory_of_their_devices() -> None:
    """900 devices more, of 600 examples with 60 numbers of 12 bytes."""
    text = "name: a\ndata: {name: synthetic, synthetic: {num_devices: N}}\npartition: {kind: natural, devices: N}"
    few, many = (device_memory(parse_experiment(text.replace("N", n)), None).process for n in ("100", "1000"))
    assert many - few == 900 * 600 * 60 * 12


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.rglob("papers/*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_of_a_paper_has_a_size(path: Path) -> None:
    found = load_experiment(path)
    assert 360 * MIB < device_memory(found, None).of(1) < 4096 * MIB
    assert 0 < lps_memory(found) < 4096 * MIB


def test_the_device_with_the_most_examples_decides() -> None:
    text = "name: lab\npartition: {kind: groups, groups: ["
    text += "{name: a, devices: 1, examples_per_device: 9}, {name: b, devices: 2, examples_per_device: [5, 30]}]}"
    assert examples_of_a_device(parse_experiment(text)) == 30


def test_an_lps_of_many_clusters_needs_their_streams() -> None:
    """22 bytes an element of three models, in place of 10 of one."""
    one = lps_memory(experiment("mlp"))
    assert lps_memory(experiment("mlp", method="{name: ifca, clusters: 3}")) == pytest.approx(3 * one * 2.2)


def test_a_rule_needs_blocks_of_updates_and_products_of_all_pairs() -> None:
    """Four blocks of 4 MiB, and five matrices of 4 x 4 float64 numbers."""
    found = []
    for rule in ("mean", "median"):
        changes = ["method=fedavg", f"aggregation.lps={rule}"]
        found.append(lps_memory(parse_experiment(TWO_TASKS, overrides=changes)))
    assert found[1] - found[0] == 16 * MIB + 5 * 8 * 4**2


def test_only_devices_that_can_have_taken_part_hold_what_training_leaves() -> None:
    """Two rounds of ten devices: 80 of 100 hold 2 vectors in place of 5.5. In ten rounds, all may take part."""
    made = experiment("mlp")
    whole = 4 * build_model(made.model, dataset_info(made.data)).layout.size
    all_take_part, two_rounds, ten_rounds = (
        device_memory(parse_experiment(made.to_yaml(), overrides=changes), None)
        for changes in (
            ["training.global_rounds=2"],
            ["training.global_rounds=2", "training.participation=10"],
            ["training.global_rounds=10", "training.participation=10"],
        )
    )
    assert all_take_part.of(100) - two_rounds.of(100) == 80 * 3.5 * whole
    assert ten_rounds.of(100) == all_take_part.of(100)
    assert two_rounds.of(20) == all_take_part.of(20)  # one pod may have all 20


def test_all_devices_may_take_part_if_the_plan_decides_how_many_lpss_there_are() -> None:
    few = ["training.global_rounds=1", "training.participation=10"]
    found = [
        device_memory(parse_experiment(experiment("mlp", method=method).to_yaml(), overrides=few), None).most_active
        for method in ("fedavg", "one_shot")
    ]
    assert found == [10, 100]


def test_a_device_that_receives_models_of_several_clusters_has_room_for_them() -> None:
    one, three, offered = (
        experiment("mlp", method=method)
        for method in ("fedavg", "{name: ifca, clusters: 3}", "{name: fedfomo, offered: 2}")
    )
    whole = 4 * build_model(one.model, dataset_info(one.data)).layout.size
    assert device_memory(three, None).of(1) - device_memory(one, None).of(1) == 2 * whole
    state = 1.25 * whole  # fedfomo keeps weights on its device
    assert device_memory(offered, None).of(1) - device_memory(one, None).of(1) == 2 * whole + state


def test_a_gpu_holds_the_data_of_all_devices_and_the_tensors_of_one_training() -> None:
    asked = parse_experiment(TWO_TASKS, overrides=["model={name: mlp, hidden: []}", "devices.processor=cuda"])
    data = 4 * 20 * (64 * 4 + 8)  # devices, examples, pixels of float32, and a label
    tensors = 8 * 4 * (64 * 10 + 10)
    assert processor_memory(asked, load_dataset(asked.data, asked.seed)) == (1 << 29) + data + tensors


@pytest.mark.parametrize(
    ("optimiser", "in_training", "of_a_device"),
    [
        ("{name: sgd, momentum: 0.9}", 1, 0),
        ("{name: sgd, momentum: 0.9, state: kept}", 1, 3.75),
        (ADAM, 4, 0),
        (KEPT, 4, 7.5),
        ("{name: rmsprop, momentum: 0.9}", 3, 0),
        ("{name: adagrad}", 2, 0),
    ],
)
def test_an_optimiser_needs_its_state_and_the_copies_of_a_step(
    optimiser: str, in_training: int, of_a_device: float
) -> None:
    """In vectors as long as the model, more than SGD. torch's profiler counts 1.0, 3.1, 2.6 and 1.6 during a training
    of WIDE with momentum, adam, rmsprop and adagrad.
    """
    plain, found = (device_memory(experiment("mlp", optimiser=each), None) for each in ("{name: sgd}", optimiser))
    made = experiment("mlp")
    whole = 4 * build_model(made.model, dataset_info(made.data)).layout.size
    assert found.process - plain.process == in_training * whole
    assert found.devices[0] - plain.devices[0] == of_a_device * whole
