"""How many devices a masked round may have, as far as an experiment file says how many there will be."""

import pytest

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment


def many(devices: int, *overrides: str) -> None:
    text = f"{{name: many, partition: {{kind: iid, devices: {devices}, examples_per_device: 2}}, method: fedavg}}"
    parse_experiment(text, overrides=("secure_aggregation={}", *overrides))


RANDOM = "method={name: random, clusters: 2}"


@pytest.mark.parametrize(
    ("devices", "overrides", "why"),
    [
        (257, (), "a round asks 257 devices, and masks work for at most 256; set training.participation: 256"),
        (600, ("training.participation=0.5",), "a round asks 300 devices"),
        (600, ("topology={lps: 2}",), "one of the 2 LPSs asks 300 devices"),
        (513, (RANDOM,), "a round of one of the 2 clusters asks at least 257 devices"),
        (260, ("newcomers={devices: 0-4, from_global_round: 2}", "training.global_rounds=3"), "a round asks 260"),
    ],
)
def test_more_devices_than_a_roster_holds_are_refused_before_anything_is_started(
    devices: int, overrides: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ExperimentError, match=f"secure_aggregation: {why}"):
        many(devices, *overrides)


def moved(*moves: str) -> str:
    return f"schedule=[{', '.join(f'{{at: 2s, move: {{{move}}}}}' for move in moves)}]"


TWO = ("topology={lps: 2}", "clock=virtual", "secure_aggregation.min_devices=3")


def test_a_move_that_leaves_an_lps_too_few_devices_is_refused_unless_another_takes_its_place() -> None:
    why = "after the moves at 2s lps-0 has 2 devices, of which a round asks fewer than min_devices, 3; "
    with pytest.raises(ExperimentError, match=why):
        many(6, *TWO, moved("devices: [0], to: lps-1"))
    many(6, *TWO, moved("devices: [0], to: lps-1", "devices: [1], to: lps-0"))
    many(8, *TWO, moved("devices: [0], to: lps-1"))
    many(6, *TWO, "clock=none", moved("devices: [0], to: lps-1"))  # which passes over the schedule


@pytest.mark.parametrize(
    ("devices", "overrides"),
    [
        (256, ()),
        (700, ("training.participation=256",)),
        (512, (RANDOM,)),
        (512, ("topology={lps: 2}",)),
        (600, ("method={name: one_shot, eigenvectors: 1, clusters: auto}",)),  # of which each may be small enough
        (260, ("newcomers={devices: 0-4, from_global_round: 4}", "training.global_rounds=3")),  # who never train
    ],
)
def test_as_many_as_a_roster_may_hold_are_not(devices: int, overrides: tuple[str, ...]) -> None:
    many(devices, *overrides)
