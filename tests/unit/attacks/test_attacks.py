"""Each attack does what its paper says, with numbers that can be checked by hand."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstrata.attacks import Entry, Known, attacks_of
from fedstrata.attacks.alie import largest_z
from fedstrata.attacks.min_max import largest_gamma
from fedstrata.datasets import Examples
from fedstrata.errors import DataError, ExperimentError, PluginError
from fedstrata.experiment_file import parse_experiment
from fedstrata.store.own_code import with_digests
from fedstrata.tasks import make_task
from fedstrata.tensors import Flat
from tests.support.own_attacks import BASE

UPDATE = np.float32([1, -2, 0.5])
HONEST = np.float32([[0, 0, 4], [2, 0, 0], [4, 6, 2]])


def entry(attack: str, *overrides: str) -> Entry:
    """The only attack of an experiment."""
    return attacks_of(parse_experiment(BASE, overrides=[f"attacks=[{{{attack}}}]", *overrides]))[0]


def known(updates: Flat, block: int = 2) -> Known:
    def blocks() -> Iterator[Flat]:
        return (updates[:, start : start + block] for start in range(0, updates.shape[1], block))

    return blocks


def lie(attack: str, liars: int = 1, children: int = 4) -> Flat:
    return entry(f"{attack}, devices: [0]").collude(known(HONEST), liars, children, 3)


def test_sign_flip_and_scale_multiply_the_update() -> None:
    assert entry("name: sign_flip, times: 10, devices: [1]").update(UPDATE, 1, 0).tolist() == [-10, 20, -5]
    assert entry("name: scale, times: 3, devices: [1]").update(UPDATE, 1, 0).tolist() == [3, -6, 1.5]


def test_noise_is_drawn_by_seed_device_and_round() -> None:
    zeros, noise = np.zeros(4000, np.float32), entry("name: noise, deviation: 2, devices: [1]")
    drawn = noise.update(zeros, 1, 5)
    assert abs(drawn.mean()) < 0.15
    assert abs(drawn.std() - 2) < 0.1
    assert np.array_equal(noise.update(zeros, 1, 5), drawn)
    other_seed = entry("name: noise, deviation: 2, devices: [1]", "seed=1")
    for other in (noise.update(zeros, 2, 5), noise.update(zeros, 1, 6), other_seed.update(zeros, 1, 5)):
        assert not np.array_equal(other, drawn)


def test_a_false_number_of_examples_is_at_most_what_the_gps_accepts() -> None:
    ten, limited = (
        entry("name: examples, times: 10, devices: [0]", *more) for more in (["bounds={max_examples: 500}"], [])
    )
    assert [ten.num_examples(20), ten.num_examples(60), limited.num_examples(20)] == [200, 500, 20]
    assert entry("name: examples, times: 0.01, devices: [0]").num_examples(20) == 1


def test_flipped_labels_are_counted_from_the_other_end() -> None:
    examples = Examples(inputs=np.zeros((3, 2), np.float32), labels=np.array([0, 3, 9]))
    flipped = entry("name: label_flip, devices: [0]").examples(examples, 10, 0)
    assert flipped.labels.tolist() == [9, 6, 0]
    assert flipped.stored is examples.stored


def images(kind: type = np.float32) -> Examples:
    labels = np.array([0, 1, 2, 1])
    return Examples(inputs=np.zeros((4, 1, 3, 4), kind), labels=labels)


@pytest.mark.parametrize(("kind", "white"), [(np.float32, 1.0), (np.uint8, 255)])
def test_a_backdoor_puts_a_square_into_a_corner_and_gives_the_wanted_label(kind: type, white: float) -> None:
    backdoor = entry("name: backdoor, label: 2, size: 2, poisoned: 0.5, times: 4, devices: [0]")
    changed = backdoor.examples(images(kind), 10, 0)
    poisoned = np.flatnonzero(changed.stored.any(axis=(1, 2, 3)))
    assert len(poisoned) == 2
    assert set(changed.labels[poisoned]) == {2}
    square = np.zeros((1, 3, 4))
    square[0, 1:, 2:] = white
    assert all(np.array_equal(changed.stored[place], square) for place in poisoned)
    others = [place for place in range(4) if place not in poisoned]
    assert changed.labels[others].tolist() == images().labels[others].tolist()
    assert backdoor.update(UPDATE, 0, 0).tolist() == [4, -8, 2]
    assert not images(kind).stored.any()


def test_the_trigger_of_a_row_of_numbers_is_at_its_end() -> None:
    rows = Examples(inputs=np.zeros((1, 5), np.float32), labels=np.array([3]))
    backdoor = entry("name: backdoor, size: 2, value: 0.5, poisoned: 1, devices: [0]")
    assert backdoor.examples(rows, 10, 0).inputs.tolist() == [[0, 0, 0, 0.5, 0.5]]


def test_success_is_the_share_of_other_examples_that_get_the_wanted_label_with_the_trigger() -> None:
    task = make_task(entry("name: backdoor, label: 1, size: 1, devices: [0]").experiment)
    assert [metric.name for metric in task.metrics] == ["accuracy", "attack_success"]

    def run(examples: Examples) -> torch.Tensor:  # answers 1 if the corner is white and the first pixel is not
        found = (examples.inputs[:, 0, -1, -1] == 1) & (examples.inputs[:, 0, 0, 0] == 0)
        return torch.nn.functional.one_hot(torch.tensor(found.astype(np.int64)), 3).float()

    examples = images()
    examples.stored[2, 0, 0, 0] = 1
    sums = task.measure_with(run, run(examples), torch.tensor(examples.labels), examples)
    assert list(sums) == [1, 1, 2]  # label 0 is right; of labels 0 and 2, the first is deceived
    assert task.summarise(sums, 4) == {"accuracy": 0.25, "attack_success": 0.5}
    assert task.summarise([1, 0, 0], 4)["attack_success"] is None


def test_a_backdoor_refuses_what_it_cannot_change() -> None:
    backdoor = entry("name: backdoor, label: 3, devices: [0]")
    with pytest.raises(DataError, match="inputs of pixels or numbers"):
        backdoor.examples(images(np.int64), 10, 0)
    assert [*backdoor.attack.refuses()] == ["task without labels"]


def test_a_little_is_enough_is_the_mean_minus_z_deviations() -> None:
    assert np.allclose(lie("name: alie, z: 1.5"), HONEST.mean(0) - 1.5 * HONEST.std(0), atol=1e-6)
    # Of 50 children 12 lie, 14 honest ones make a majority with them: Φ(z) = 24 / 38, the paper's example with 24 %.
    assert largest_z(12, 50) == pytest.approx(0.3360, abs=1e-4)
    assert largest_z(2, 10) == 0  # Φ(0) = 4 / 8
    assert largest_z(4, 4) == 0
    assert lie("name: alie", 1, 4).tolist() == pytest.approx(HONEST.mean(0).tolist())


def test_inner_product_is_the_opposite_of_the_mean() -> None:
    assert lie("name: inner_product, times: 0.5").tolist() == [-1, -1, -1]


@pytest.mark.parametrize("block", [1, 2, 3])
def test_min_max_is_as_far_from_an_update_as_two_updates_are_from_each_other(block: int) -> None:
    rng = np.random.default_rng(3)
    honest = rng.normal(size=(6, 3)).astype(np.float32)
    found = honest.mean(0) - largest_gamma(known(honest, block)) * honest.std(0)
    most = max(np.linalg.norm(one - other) for one in honest for other in honest)
    assert max(np.linalg.norm(found - one) for one in honest) == pytest.approx(most, rel=1e-6)


def test_min_max_of_two_updates_can_be_computed_by_hand() -> None:
    # Mean 1, deviation 1, distance 2: from 2, γ may be 1, and from 0 it may be 3.
    assert largest_gamma(known(np.float32([[0], [2]]))) == pytest.approx(1)
    assert largest_gamma(known(np.float32([[5], [5]]))) == 0


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("tests.support.own_attacks:Short", "attack tests.support.own_attacks:Short: an update must have finite"),
        ("tests.support.own_attacks:Endless", "with 3 values that are not finite"),
        ("tests.support.own_attacks:Broken", "own_attacks:Broken failed in update: ValueError: no lie"),
    ],
)
def test_an_own_attack_with_a_fault_is_named(attack: str, said: str) -> None:
    with pytest.raises(PluginError) as raised:
        entry(f"name: '{attack}', devices: [0]").update(UPDATE, 0, 0)
    assert said in str(raised.value)


def test_an_own_attack_that_returns_nothing_is_named() -> None:
    nothing = entry("name: 'tests.support.own_attacks:Nothing', devices: [0]")
    with pytest.raises(PluginError, match="Nothing failed in update: ValueError"):
        nothing.update(UPDATE, 0, 0)
    with pytest.raises(PluginError, match="Nothing failed in num_examples: ValueError"):
        nothing.num_examples(3)
    with pytest.raises(PluginError, match="Nothing: probe must return Examples, not None"):
        nothing.probe(images())
    with pytest.raises(PluginError, match=r"List: refuses must return a mapping .* not \['x'\]"):
        parse_experiment(BASE, overrides=["attacks=[{name: 'tests.support.own_attacks:List', devices: [0]}]"])


def test_own_examples_must_be_as_many_as_before_with_possible_labels() -> None:
    examples = Examples(inputs=np.zeros((3, 2), np.float32), labels=np.array([0, 3, 9]))
    with pytest.raises(PluginError, match="as many as it gets \\(3\\)"):
        entry("name: 'tests.support.own_attacks:Short', devices: [0]").examples(examples, 10, 0)
    with pytest.raises(PluginError, match="Mislabelled: examples returned labels 100 to 109; they must be 0 to 9"):
        entry("name: 'tests.support.own_attacks:Mislabelled', devices: [0]").examples(examples, 10, 0)


def test_a_share_is_spread_over_lpss_or_together() -> None:
    spread, together = (
        {index % 4 for index in entry(f"name: scale, share: 0.4, placed: {placed}", "topology={lps: 4}").devices}
        for placed in ("spread", "together")
    )
    assert spread == {0, 1, 2, 3}  # 4 of 10 devices, one at each LPS
    assert len(together) == 2  # LPSs have two or three devices
    assert len(entry("name: scale, share: 0.4").devices) == 4
    assert entry("name: scale, share: 0.4").devices == entry("name: noise, share: 0.4").devices


def test_an_attack_goes_on_from_one_round_until_another() -> None:
    some = entry("name: scale, devices: [0], from_global_round: 2, until_global_round: 3")
    assert [some.is_on(number) for number in range(4)] == [False, True, True, False]
    assert entry("name: scale, devices: [0]").is_on(99)


def test_attacks_are_part_of_the_runs_id() -> None:
    plain = parse_experiment(BASE)
    found = {parse_experiment(BASE, overrides=[f"attacks=[{{name: scale, devices: [{n}]}}]"]).run_id for n in (0, 1)}
    assert len({plain.run_id, *found}) == 3
    assert parse_experiment(BASE, overrides=["attacks=[]"]).run_id == plain.run_id
    assert parse_experiment(plain.to_yaml()).run_id == plain.run_id


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("devices: [0]", "attacks.0.name: no attack is called ''; choose sign_flip"),
        ("name: sing_flip, devices: [0]", "attacks.0.name: no attack is called 'sing_flip'; did you mean sign_flip"),
        ("name: scale, time: 3, devices: [0]", "attacks.0.time: attacks.0 scale has no such option; its options are"),
        ("name: scale", "give exactly one of devices"),
        ("name: scale, share: 0.1, devices: [0]", "give exactly one of devices"),
        ("name: scale, share: 0.01", "attacks.0.share 0.01 of 10 devices selects no device"),
        ("name: scale, devices: [10]", "attacks.0.devices: there is no device 10; the partition has devices 0 to 9"),
        ("name: scale, devices: [0], from_global_round: 4", "attacks.0.from_global_round is 4, more than"),
        ("name: scale, devices: [0], from_global_round: 2, until_global_round: 1", "until_global_round 1 is before"),
        ("name: examples, devices: [0], from_global_round: 2", "it goes on in all rounds; remove from_global_round"),
        ("name: examples, lps: [0]", "examples changes examples, and an LPS has none"),
        ("name: backdoor, label: 10, devices: [0]", "attack backdoor: label is 10; choose one from 0 to 9"),
        ("name: backdoor, lps: [0]", "attacks.0.lps: backdoor changes examples, and an LPS has none; name devices"),
        ("name: scale, devices: [0], placed: together", "placed together is about share, which is missing"),
        ("name: scale, lps: [1, 1]", "lps [1, 1] names an LPS twice; remove it once"),
        ("name: label_flip, lps: [0]", "attacks.0.lps: label_flip changes examples, and an LPS has none"),
    ],
)
def test_a_wrong_entry_is_refused_by_key(attack: str, said: str) -> None:
    topology = ["topology={lps: 2}"] if "lps: " in attack else []
    with pytest.raises(ExperimentError) as raised:
        parse_experiment(BASE, overrides=[f"attacks=[{{{attack}}}]", *topology])
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_lps_that_does_not_exist_cannot_attack() -> None:
    with pytest.raises(ExperimentError, match=r"there is no LPS 2; topology\.lps is 2"):
        parse_experiment(BASE, overrides=["topology={lps: 2}", "attacks=[{name: scale, lps: [2]}]"])


def test_the_attack_of_the_page_is_an_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "attack-a-run.md").read_text(encoding="utf-8")
    (tmp_path / "reverse.py").write_text(text.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    own = entry("name: 'reverse:Reverse', times: 2, devices: [0]")
    assert own.update(UPDATE, 0, 0).tolist() == [1, -4, 2]
    assert not own.attack.colludes
    digests = with_digests(own.experiment)
    assert [*digests.files] == ["reverse.py"]
    assert digests.run_id != own.experiment.run_id


def test_attacks_can_be_read_again_from_the_file_with_all_defaults() -> None:
    experiment = entry("name: scale, devices: [1]").experiment
    assert parse_experiment(experiment.model_dump_json(by_alias=True, exclude_none=True)).attacks == experiment.attacks
