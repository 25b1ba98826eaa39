"""Asynchronous rounds of whole runs: which updates each round takes, and the models that follow from them."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from emulator.estimates.asynchronous_times import timeline_of
from emulator.results.read_record import RunRecord
from fedstrata.datasets import load_dataset
from fedstrata.experiment import Experiment
from fedstrata.partitions import device_data
from fedstrata.record.tables import as_seconds
from tests.services.faults.test_bad_devices import excluded, poisoned
from tests.support.plain_pytorch import DATASET, Weights, initial_weights, trained_by
from tests.support.programs import run_to_the_end
from tests.support.records import rows_of, summary_of
from tests.support.tiers import run_in_process, small

RATES = [(8, 4), (2, 2), (1, 1), (8, 1), (4, 4)]  # Mbit/s down and up, by device
LINKS = "{{device-lps: {{latency: 7ms}}, lps-gps: {{up_rate: 50Mbit/s, down_rate: 90Mbit/s, latency: 3ms}}{own}}}"
OWN = ", overrides: [{}]".format(
    ", ".join(
        f"{{devices: [{index}], down_rate: {down}Mbit/s, up_rate: {up}Mbit/s}}"
        for index, (down, up) in enumerate(RATES)
    )
)
BASE = ("method=fedavg", "clock=virtual", "compute={per_example: 1ms}", "training.evaluate_every=100")
BUFFERED = ("training.rounds.lps={kind: buffered, buffer: 1}", "topology={lps: 2}", "training.global_rounds=9")
FEW = ("topology={lps: 1}", "training.global_rounds=4")
TIMED = (*FEW, "training.rounds.lps={kind: timed, weights: {kind: catch_up, most: 2}}")
SOME = (*FEW, "training.rounds.lps={kind: buffered, buffer: 1, concurrency: 3, step: 2}")
DISCOUNTED = (*FEW, "training.rounds.lps={kind: buffered, buffer: 2, weights: {kind: polynomial}, step: 1.5}")


def asynchronous(*overrides: str, rounds: int = 1, own: str = OWN) -> Experiment:
    links = f"links={LINKS.format(own=own)}"
    return small(*BASE, links, f"training.lps_rounds_per_global_round={rounds}", *overrides)


def run(experiment: Experiment, folder: Path) -> RunRecord:
    return run_in_process(experiment, folder)


def composition(folder: Path) -> dict[tuple[str, int], dict[int, int]]:
    """By LPS and LPS round: the devices with an update in the round, each with the round of its model."""
    found: dict[tuple[str, int], dict[int, int]] = {}
    for row in rows_of(folder, "contributions.csv"):
        taken = found.setdefault((row["lps_id"], int(row["lps_round"]) - 1), {})
        taken[int(row["device"][-3:])] = int(row["from_lps_round"]) - 1
    return found


def simulated(
    experiment: Experiment, folder: Path, homes: Mapping[str, list[int]]
) -> dict[tuple[str, int], dict[int, int]]:
    """The same, from the bytes in flows.csv and the rates in this file, by a loop over rounds of its own.

    The times at which rounds begin are read from the record: they depend on the other LPS.
    """
    took, opened = works(folder), begins(folder)
    rounds, settings, found = experiment.training.lps_rounds, experiment.training.rounds.lps, {}
    for lps, devices in homes.items():
        at_work: dict[int, tuple[int, int]] = {}  # arrival and round of the model, by device
        last: dict[int, int] = {}  # round that took the device's last update
        period = 0
        for number in range(rounds):
            now = opened[lps, number]
            resting = sorted((last.get(device, -1), device) for device in devices if device not in at_work)
            for _, device in resting[: (settings.concurrency or len(devices)) - len(at_work)]:
                at_work[device] = (now + took[device], number)
            arrivals = sorted(arrival for arrival, _ in at_work.values())
            if settings.kind == "timed":
                period = period or (arrivals[-1] - now) // 6
                closes = max(now, min(max(now + period, arrivals[0]), arrivals[-1]))
            else:
                closes = max(now, arrivals[min(settings.buffer, len(arrivals)) - 1])
            found[lps, number] = {device: base for device, (arrival, base) in at_work.items() if arrival <= closes}
            at_work = {device: each for device, each in at_work.items() if device not in found[lps, number]}
            last.update(dict.fromkeys(found[lps, number], number))
    return found


def works(folder: Path) -> dict[int, int]:
    """How long each device takes from the model to the arrived update, in nanoseconds."""
    found = {}
    for row in rows_of(folder, "flows.csv"):
        if row["tier"] == "lps":
            device = int(row["child"])
            down, up = (
                -(-8 * int(row[name]) * 1000 // rate)
                for name, rate in zip(("down_bytes", "up_bytes"), RATES[device], strict=True)
            )
            found.setdefault(device, down + up + 2 * 7_000_000 + int(row["examples"]) * 1_000_000)
    return found


def begins(folder: Path) -> dict[tuple[str, int], int]:
    before = Fraction(rows_of(folder, "timeline.csv")[0]["ends_s"])
    rows = (row for row in rows_of(folder, "timeline.csv") if row["tier"] == "lps")
    return {
        (row["lps_id"], int(row["lps_round"]) - 1): int((Fraction(row["begins_s"]) - before) * 10**9) for row in rows
    }


def timeline(folder: Path) -> list[tuple[str, str, str, str]]:
    """By round: the LPS, and when the round begins and ends, from the record."""
    rows = rows_of(folder, "timeline.csv")[1:]
    return sorted(
        (row["lps_id"], row["lps_round"] or row["global_round"], row["begins_s"], row["ends_s"]) for row in rows
    )


def predicted(experiment: Experiment) -> list[tuple[str, str, str, str]]:
    """The same, as `fedstrata check` calculates it before the run."""
    dataset = load_dataset(experiment.data, experiment.seed)
    found = timeline_of(experiment, experiment.training.rounds.lps, dataset)
    rounds = [("", found.global_rounds), *found.lps_rounds.items()]
    return sorted(
        (name, str(number), as_seconds(times.begins_ns), as_seconds(times.ends_ns))
        for name, each in rounds
        for number, times in enumerate(each, start=1)
    )


def computed(
    experiment: Experiment, found: dict[tuple[str, int], dict[int, int]], homes: Mapping[str, list[int]]
) -> Weights:
    """The final model by the formulas, in float64, with plain PyTorch training."""
    training, settings = experiment.training, experiment.training.rounds.lps
    sizes = {device: len(device_data(experiment, DATASET, device).train) for device in range(experiment.device_count)}
    model, models = initial_weights(experiment), {}
    last = dict.fromkeys(sizes, -1)
    for number in range(training.lps_rounds):
        models[number] = model
        total, divisors = {name: np.zeros_like(value) for name, value in model.items()}, 0
        for lps, devices in homes.items():
            weighed, stated = 0, 0
            for device, base in found[lps, number].items():
                per_global = training.lps_rounds_per_global_round
                trained = trained_by(experiment, device, models[base], base, base // per_global)
                factor = factor_of(settings.weights, number - base, number - last[device])
                last[device] = number
                for name, value in total.items():
                    total[name] = value + factor * sizes[device] * (trained[name] - models[base][name])
                weighed, stated = weighed + factor * sizes[device], stated + sizes[device]
            whole = sum(sizes[device] for device in devices)
            counted = 1024 * stated if settings.weights.kind == "polynomial" else weighed
            divisors += max(counted, int(np.ceil(counted * whole / (settings.step * stated) - 1e-9)))
        model = {name: model[name] + total[name] / divisors for name in model}
    return model


def factor_of(weights: object, staleness: int, gap: int) -> int:
    match weights.kind:  # type: ignore[attr-defined]
        case "even":
            return 1
        case "catch_up":
            return min(gap, weights.most)  # type: ignore[attr-defined]
    return round(1024 / (1 + staleness) ** 0.5)


@pytest.mark.parametrize(("changes", "rounds"), [(BUFFERED, 1), (TIMED, 3), (DISCOUNTED, 3), (SOME, 2)])
def test_a_run_equals_a_simulation_in_every_composition_and_in_the_model(
    folder: Path, changes: tuple[str, ...], rounds: int
) -> None:
    experiment = asynchronous(*changes, rounds=rounds)
    record = run(experiment, folder / f"run-{changes[0][-12:-2]}-{rounds}-{len(changes[-1])}")
    lps = 2 if rounds == 1 else 1
    homes = {f"lps-{number}": [device for device in range(5) if device % lps == number] for number in range(lps)}
    found = composition(record.folder)
    expected = simulated(experiment, record.folder, homes)
    assert found == expected
    assert predicted(experiment) == timeline(record.folder)
    stale = [number - base for (_, number), taken in found.items() for base in taken.values()]
    assert max(stale) >= (1 if changes is SOME else 2)  # some updates are of much earlier models
    model = computed(experiment, expected, homes)
    saved = load_file(next((record.folder / "models").glob("*.safetensors")))
    for name, values in model.items():
        assert np.abs(saved[name] - values).max() < 1e-6, name


def test_rounds_without_a_model_at_the_gps_are_predicted_too(folder: Path) -> None:
    experiment = asynchronous(*BUFFERED, "method=local")
    assert predicted(experiment) == timeline(run(experiment, folder / "local").folder)


def test_equal_devices_and_buffers_of_all_give_the_bits_and_times_of_synchronous_rounds(folder: Path) -> None:
    synchronous, lps = "training.rounds.lps.kind=synchronous", "topology={lps: 2}"
    same_rates = ", overrides: [{devices: [0-4], down_rate: 2Mbit/s, up_rate: 1Mbit/s}]"
    for name, changes, own in (
        ("timed", ("training.rounds.lps={kind: timed}", lps, "compute=null"), same_rates),
        ("buffered", ("training.rounds.lps={kind: buffered, buffer: 1.0}", lps), OWN),
    ):
        rest = changes[1:]
        plain = run(asynchronous(synchronous, *rest, own=own, rounds=2), folder / f"synchronous-{name}").folder
        same = run(asynchronous(*changes, own=own, rounds=2), folder / name).folder
        assert summary_of(same)["model_sha256"] == summary_of(plain)["model_sha256"]
        assert (same / "timeline.csv").read_text() == (plain / "timeline.csv").read_text()
        assert summary_of(same)["asynchronous"]["staleness"] == {"0": 10}  # five devices, two LPS rounds


@pytest.mark.runs
def test_the_bytes_of_a_round_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(asynchronous(*TIMED, rounds=3).to_yaml(), encoding="utf-8")
    rounds = []
    for processes in (1, 5):
        out = tmp_path / str(processes)
        run_to_the_end(tmp_path / "experiment.yaml", out, processes=processes)
        rounds.append([{**row, "seconds": ""} for row in rows_of(out, "rounds.csv")])
    assert rounds[0] == rounds[1]


def test_a_device_that_is_refused_leaves_the_round_in_which_its_update_arrives(folder: Path) -> None:
    """The slow device is alone in a round of one update. Without it, the round takes the next update."""
    changes = ("topology={lps: 1}", "training.global_rounds=9", "training.rounds.lps={kind: buffered, buffer: 1}")
    experiment = asynchronous(*changes, "deadlines.lps.quorum_ratio=0.5")
    liars = [run_in_process(experiment, folder / f"nan{at}", liars={2: poisoned(at)}) for at in (0, -1)]
    found = {
        (made.summary.model_sha256["cluster-0"], (made.folder / "contributions.csv").read_text()) for made in liars
    }
    assert len(found) == 1
    assert excluded(liars[0]) == [("device-002", "training")]
    taken = composition(liars[0].folder)
    assert sorted(number for _, number in taken) == list(range(9))  # each round has an update
    assert all(2 not in each for each in taken.values())
