"""Attacks on the three tiers: what the mean does not withstand and the median does, and the same bits always."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedstrata.experiment import Experiment
from fedstrata.record.factors import FACTORS
from tests.support.programs import Program
from tests.support.tiers import run_in_process, small

ROOT = Path(__file__).parents[3]
FLAT = ("method=fedavg", "topology={lps: 2}", "training.lps_rounds_per_global_round=1")
ALL = [  # attacks at a device, at an LPS for its devices, and at the GPS for an LPS
    "{name: noise, deviation: 0.1, devices: [0]}",
    "{name: label_flip, devices: [1], from_global_round: 2}",
    "{name: min_max, devices: [2]}",
    "{name: sign_flip, lps: [1]}",
]
KILLS = [
    {"do": "kill", "process": process, "at": {"point": point, "round": 1}}
    for process, point in (("device-000", "upload"), ("lps-0", "aggregation"), ("gps", "aggregation"))
]


def finished(out: Path, *words: str) -> dict[str, Any]:
    """The summary of a run of the example with processes of its own."""
    words = ("emulator", "run", str(ROOT / "experiments" / "liars.yaml"), "--out", str(out), "--json", *words)
    with Program(*words, log=out.with_suffix(".log")) as program:
        lines = list(program.lines())
        assert program.end() == 0, out.with_suffix(".log").read_text()
    summary: dict[str, Any] = lines[-1]["summary"]
    return summary


def models(experiment: Experiment, folder: Path) -> dict[str, str]:
    """The digests of a run's models."""
    summary = run_in_process(experiment, folder).summary
    assert (summary.status, summary.excluded) == ("completed", ())
    return summary.model_sha256


@pytest.mark.runs
def test_ten_times_the_opposite_breaks_the_mean_and_not_the_median(tmp_path: Path) -> None:
    median = finished(tmp_path / "median")
    mean = finished(tmp_path / "mean", "--set", "aggregation.lps=mean")
    assert median["accuracy"]["mean"] > 0.8
    attackers, honest = median["attacks"]["devices"], median["attacks"]["honest"]
    assert len({int(device[-3:]) % 2 for device in attackers}) == len(attackers) == 2  # one at each LPS
    assert median["attacks"]["lps"] == []
    assert median["attacks"]["share_of_examples"] == pytest.approx(2 / 12)
    of_devices = [value for device, value in median["device_accuracy"].items() if device not in attackers]
    assert honest["accuracy"] == pytest.approx(sum(of_devices) / 10, abs=0.005)  # about the same held-out examples each
    assert mean["accuracy"]["mean"] < 0.2


@pytest.mark.runs
def test_processes_and_kills_change_no_bit_of_an_attack(tmp_path: Path) -> None:
    attacks = f"attacks=[{', '.join(ALL)}]"
    less = ("--set", "training.global_rounds=2", "--set", attacks)
    one, two, five = (finished(tmp_path / n, "--device-processes", n, *less) for n in ("1", "2", "5"))
    killed = finished(tmp_path / "killed", *less, "--set", f"faults={json.dumps(KILLS)}")
    assert len((tmp_path / "killed" / "logs" / "faults.log").read_text().splitlines()) >= len(KILLS)
    assert one["model_sha256"] == two["model_sha256"] == five["model_sha256"] == killed["model_sha256"]
    assert one["accuracy"] == killed["accuracy"]


@pytest.fixture(scope="module")
def honest(folder: Path) -> dict[str, str]:
    """The models of a run without an attack."""
    return models(small(*FLAT, "training.global_rounds=2"), folder / "honest")


@pytest.mark.parametrize("attack", [*ALL, "{name: alie, z: 2, devices: [0]}", "{name: inner_product, lps: [0]}"])
def test_each_attack_changes_the_models_and_a_run_repeats_it(
    attack: str, honest: dict[str, str], tmp_path: Path
) -> None:
    attacked = small(*FLAT, "training.global_rounds=2", f"attacks=[{attack}]")
    one, again = (models(attacked, tmp_path / name) for name in ("one", "again"))
    assert one == again != honest


def test_an_attack_begins_in_its_round_though_the_method_divides_a_devices_examples_once(tmp_path: Path) -> None:
    fomo = ("method={name: fedfomo, offered: 2}", *FLAT[1:], "training.global_rounds=2")
    flips = "attacks=[{name: label_flip, devices: [1], from_global_round: 2}]"
    honest, attacked = (models(small(*fomo, *more), tmp_path / str(len(more))) for more in ((), (flips,)))
    assert {name for name in honest if attacked[name] != honest[name]} == {"cluster-1"}


def test_the_record_has_the_success_of_a_backdoor(tmp_path: Path) -> None:
    rounds = (*FLAT, "training.global_rounds=4", "training.local_epochs=4")
    backdoor = "{name: backdoor, label: 0, size: 2, times: 3, devices: [0, 1]}"
    attacked, measured = (
        run_in_process(small(*rounds, f"attacks=[{backdoor}]", *more), tmp_path / name)
        for name, more in {"attacked": (), "measured": ("attacks.0.from_global_round=4",)}.items()
    )
    success = attacked.summary.measured["attack_success"]
    assert attacked.summary.attacks is not None
    assert attacked.summary.attacks.honest["attack_success"] is not None
    assert success.clusters["mean"] > 0.6
    assert [row.metrics["attack_success"] for row in measured.rounds][2] < 0.3


def test_the_record_has_what_rules_kept_of_each_update(tmp_path: Path) -> None:
    rules = "aggregation={lps: {name: multi_krum, attackers: 1}, gps: geometric_median}"
    flips = "attacks=[{name: sign_flip, times: 50, devices: [1]}, {name: inner_product, times: 1, devices: [2]}]"
    one_lps = ("method=fedavg", "topology={lps: 1}", "training.lps_rounds_per_global_round=1")
    record = run_in_process(small(*one_lps, "training.global_rounds=2", rules, flips), tmp_path / "run")
    rows = FACTORS.read(record.folder / "factors.csv")
    devices = record.summary.devices
    assert [row.tier for row in rows] == ["lps"] * 2 * devices + ["gps"] * 2
    assert {row.child for row in rows if row.attacks == "1"} == {"device-001", "device-002"}
    assert {row.factor for row in rows if row.child == "device-001"} == {0}
    for tier in ("lps", "gps"):
        assert sum(row.factor for row in rows if row.tier == tier) == pytest.approx(2)  # 1 in each round
    kept = record.summary.kept
    assert kept is not None
    assert (kept["gps"].attackers, kept["gps"].honest_left_out) == (0, 0)
    assert kept["lps"].attackers == pytest.approx(1 / 4)  # device-002 is one of the four devices that are kept
    assert kept["lps"].honest_left_out == 0


@pytest.mark.parametrize("placed", [(), ("topology=null",)])  # a plan's weights, and stated ones
def test_a_false_number_of_examples_is_the_weight_of_an_attacker(placed: tuple[str, ...], tmp_path: Path) -> None:
    alone = (*FLAT, *placed, "training.global_rounds=1", "bounds={max_examples: 900}")
    number = "attacks=[{name: examples, times: 10, devices: [0]}]"
    record = run_in_process(small(*alone, number), tmp_path / "run")
    assert (record.summary.status, record.summary.excluded) == ("completed", ())
    assert sum(row.num_examples for row in record.rounds) == 9 * 60 + 3 * 60 + 2 * 50
    assert record.summary.attacks is not None
    assert record.summary.attacks.share_of_examples == pytest.approx(600 / 820)


def test_devices_attack_under_masks_and_with_small_encodings(tmp_path: Path) -> None:
    masked = (FLAT[0], "topology={lps: 1}", FLAT[2], "secure_aggregation={min_devices: 3}", "training.global_rounds=1")
    flip = "attacks=[{name: sign_flip, times: 3, devices: [0]}]"
    runs = {
        "plain": (flip, "secure_aggregation=null"),
        "hidden": (flip,),
        "rounded": (flip, "secure_aggregation=null", "links.device-lps.up=int8"),
        "honest": (),
    }
    plain, hidden, rounded, honest = (models(small(*masked, *more), tmp_path / name) for name, more in runs.items())
    assert plain == hidden
    assert len({str(each) for each in (plain, rounded, honest)}) == 3


def test_the_record_has_the_accuracy_of_honest_devices_for_rare_labels(tmp_path: Path) -> None:
    rare = "task={name: rare_labels, labels: [0, 1, 2, 3, 4]}"  # without a minority, only devices of `low` have them
    apart = (*FLAT, "training.global_rounds=1", "partition.minority_ratio=0")
    summary = run_in_process(small(*apart, rare, "attacks=[{name: sign_flip, devices: [3]}]"), tmp_path).summary
    found, of_low = summary.measured["rare_accuracy"], summary.measured["accuracy"].tasks
    assert summary.attacks is not None and of_low is not None
    assert summary.attacks.honest["rare_accuracy"] == of_low["low"]
    assert {name for name, value in found.devices.items() if value is None} == {"device-003", "device-004"}
