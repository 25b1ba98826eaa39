"""What a round costs on a machine: numbers to redo by hand."""

from pytest import CaptureFixture

from emulator.commands.main import execute
from emulator.estimates.round_cost import RoundCost, round_cost
from fedstrata.datasets import load_dataset
from fedstrata.experiment_file import parse_experiment

TEXT = """
name: cost
partition: {kind: given, examples: [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9], [10, 11]]}
method: fedavg
training: {global_rounds: 3, lps_rounds_per_global_round: 2, local_epochs: 5, batch_size: 2}
"""


def cost_of(*overrides: str) -> RoundCost:
    """The cost on two cores that train an example in 50 ms."""
    experiment = parse_experiment(TEXT, overrides=overrides)
    return round_cost(experiment, load_dataset(experiment.data, experiment.seed), per_example_s=0.05, cores=2)


def test_all_devices_train_at_the_measured_pace() -> None:
    cost = cost_of()
    # In an LPS round the median device trains on 5 * 4 = 20 examples, and all devices train on 5 * 12 = 60.
    assert (cost.examples, round(cost.device_s, 6), round(cost.training_s, 6)) == (4, 1.0, 3.0)
    assert (cost.asked, cost.lps_rounds, round(cost.round_s, 6)) == (3, 6, 1.5)
    # mlp: 64 * 32 + 32 + 32 * 10 + 10 = 2410 weights of four bytes, for each of three devices
    assert cost.bytes_up == cost.bytes_down == 3 * 4 * 2410
    assert 50e6 < cost.memory_bytes < 5e9


def test_two_of_three_devices_take_two_thirds() -> None:
    cost = cost_of("training.participation=0.34")  # two of three devices
    assert (cost.asked, round(cost.training_s, 6), cost.bytes_up) == (2, 2.0, 2 * 4 * 2410)


def test_the_run_takes_its_rounds_one_after_another() -> None:
    cost = RoundCost(
        device_s=0.5, examples=100, asked=10, lps_rounds=16, cores=2, training_s=5.0, memory_bytes=300_000_000,
        bytes_up=1_000_000, bytes_down=1_500_000,
    )  # fmt: skip
    device = cost.of_device.replace("\u00a0", " ")
    lps_round, run = cost.of_run.replace("\u00a0", " ").splitlines()
    assert device == "a device with 100 examples trains an LPS round in 500 ms on this machine; the process took 300 MB"
    assert lps_round.startswith("an LPS round trains 10 devices, one after another on each of 2 cores: about 2.5 s")
    assert lps_round.endswith("and 2.50 MB between devices and LPSs")
    assert run.startswith("the run has 16 LPS rounds: about 40.0 s of training, and 40.0 MB.")


def test_a_single_device_trains_on_a_single_core() -> None:
    cost = RoundCost(
        device_s=2.0, examples=1, asked=1, lps_rounds=1, cores=8, training_s=2.0, memory_bytes=1, bytes_up=1,
        bytes_down=1,
    )  # fmt: skip
    assert cost.round_s == 2.0


def test_check_prints_the_cost_without_a_clock(capsys: CaptureFixture[str]) -> None:
    assert execute(["check", "digits", "--try", "--set", "training.local_epochs=1"]) == 0
    said = capsys.readouterr().out.replace("\u00a0", " ")
    assert "a device with 100 examples trains an LPS round in" in said
    assert "the run has 16 LPS rounds" in said


def test_check_does_not_count_the_devices_of_asynchronous_rounds(capsys: CaptureFixture[str]) -> None:
    settings = ["training.local_epochs=1", "training.rounds.lps={kind: buffered, buffer: 0.1}"]
    assert execute(["check", "digits", "--try", *(word for each in settings for word in ("--set", each))]) == 0
    said = capsys.readouterr().out.replace("\u00a0", " ")
    assert "a device with 100 examples trains an LPS round in" in said
    assert "an LPS round trains" not in said
