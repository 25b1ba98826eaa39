"""Asynchronous rounds of whole runs whose devices share a link: times to the nanosecond, models to the bit."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedstrata.experiment import Experiment
from tests.services.clock.test_asynchronous_runs import (
    FEW,
    OWN,
    RATES,
    SOME,
    TIMED,
    asynchronous,
    begins,
    composition,
    computed,
    predicted,
    run,
    timeline,
)
from tests.services.faults.test_bad_devices import excluded, poisoned
from tests.support.disturbed import assert_same, disturbed
from tests.support.records import rows_of, summary_of
from tests.support.shared_rounds import Asked, S, SharedRounds
from tests.support.tiers import run_in_process

UP = OWN + ", shared: {device-lps: {up_rate: 1700kbit/s}}"
BOTH = OWN + ", shared: {device-lps: {up_rate: 1700kbit/s, down_rate: 2Mbit/s, broadcast: true}}"
ONE = (*FEW, "training.rounds.lps={kind: buffered, buffer: 1}")
Times = dict[tuple[int, int], tuple[int, int, int]]  # by round and device: round of the model, asked, arrived


def recorded(folder: Path) -> Times:
    return {
        (int(row["lps_round"]) - 1, int(row["device"][-3:])): (
            int(row["from_lps_round"]) - 1,
            int(Fraction(row["asked_s"]) * S),
            int(Fraction(row["arrived_s"]) * S),
        )
        for row in rows_of(folder, "contributions.csv")
    }


def tasks_of(folder: Path) -> dict[tuple[int, int], Asked]:
    """By round of the model and device, from the bytes in flows.csv and the rates of the file."""
    times, found = recorded(folder), {}
    for row in rows_of(folder, "flows.csv"):
        if row["tier"] == "lps":
            number, device = int(row["lps_round"]) - 1, int(row["child"])
            down_rate, up_rate = (rate * 10**6 for rate in RATES[device])
            sizes, compute_ns = (int(row["down_bytes"]), int(row["up_bytes"])), int(row["examples"]) * 1_000_000
            found[times[number, device][0], device] = Asked(*sizes, down_rate, up_rate, 7_000_000, compute_ns)
    return found


def simulated(experiment: Experiment, folder: Path, world: SharedRounds) -> Times:
    """The same, event by event. The times at which rounds begin are read from the record: they depend on the GPS."""
    tasks, opened, settings = tasks_of(folder), begins(folder), experiment.training.rounds.lps
    newest = {device: each for (_, device), each in sorted(tasks.items())}  # for updates that the run did not take
    last, period, found = dict.fromkeys(range(5), -1), 0, Times()
    for number in range(experiment.training.lps_rounds):
        world.run_to(opened["lps-0", number])
        resting = sorted((last[device], device) for device in range(5) if device not in world.at_work)
        asked = [device for _, device in resting[: (settings.concurrency or 5) - len(world.at_work)]]
        world.ask(number, {device: tasks.get((number, device), newest[device]) for device in asked})
        if settings.kind == "timed":
            period = period or world.longest_ns() // 6
            world.close_timed(period)
        else:
            world.close_buffered(settings.buffer)
        taken = world.take()
        last.update(dict.fromkeys(taken, number))
        found |= {(number, device): each for device, each in taken.items()}
    return found


@pytest.mark.parametrize(
    ("changes", "rounds", "own"), [(TIMED, 5, UP), (TIMED, 3, BOTH), (SOME, 3, BOTH), (ONE, 4, UP)]
)
def test_a_run_over_a_shared_link_equals_a_simulation_in_every_nanosecond_and_in_the_model(
    folder: Path, changes: tuple[str, ...], rounds: int, own: str
) -> None:
    experiment = asynchronous(*changes, rounds=rounds, own=own)
    record = run(experiment, folder / f"shared-{own is UP}-{rounds}-{changes[-1][27:32]}")
    world = SharedRounds(None if own is UP else [(0, 2_000_000)], [(0, 1_700_000)], is_broadcast=own is BOTH)
    assert simulated(experiment, record.folder, world) == recorded(record.folder)
    assert predicted(experiment) == timeline(record.folder)
    assert summary_of(record.folder)["asynchronous"]["staleness"].keys() > {"0", "1"}
    model = computed(experiment, composition(record.folder), {"lps-0": list(range(5))})
    saved = load_file(next((record.folder / "models").glob("*.safetensors")))
    for name, values in model.items():
        assert np.abs(saved[name] - values).max() < 1e-6, name


@pytest.mark.parametrize("own", [UP, BOTH])
def test_buffers_of_all_over_a_shared_link_give_the_bits_and_times_of_synchronous_rounds(
    folder: Path, own: str
) -> None:
    lps = "topology={lps: 2}"
    synchronous = asynchronous("training.rounds.lps.kind=synchronous", lps, own=own, rounds=2)
    plain = run(synchronous, folder / f"synchronous-{own is UP}").folder
    buffered = asynchronous("training.rounds.lps={kind: buffered, buffer: 1.0}", lps, own=own, rounds=2)
    same = run(buffered, folder / f"all-{own is UP}").folder
    assert summary_of(same)["model_sha256"] == summary_of(plain)["model_sha256"]
    assert (same / "timeline.csv").read_text() == (plain / "timeline.csv").read_text()
    assert predicted(buffered) == timeline(plain)


def test_a_device_that_is_refused_has_used_the_shared_link(folder: Path) -> None:
    """Its round closes later, with the next update. This update arrives as if the device had not been refused."""
    experiment = asynchronous(*ONE, "deadlines.lps.quorum_ratio=0.5", rounds=2, own=UP)
    whole = run(experiment, folder / "whole").folder
    first = min(device for number, device in recorded(whole) if number == 0)
    liars = [run_in_process(experiment, folder / f"nan{at}", liars={first: poisoned(at)}) for at in (0, -1)]
    assert [excluded(record) for record in liars] == [[(f"device-00{first}", "training")]] * 2
    found = [recorded(record.folder) for record in liars]
    assert found[0] == found[1]
    assert liars[0].summary.model_sha256 == liars[1].summary.model_sha256
    (device,) = (device for number, device in found[0] if number == 0)
    assert found[0][0, device] == next(each for (_, name), each in recorded(whole).items() if name == device)


FAULTS: list[dict[str, object]] = [
    {"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 1, "count": 2}},
    {"do": "kill", "process": "device-001", "at": {"point": "upload", "round": 2}},
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
    {"do": "kill", "process": "lps-0", "at": {"point": "aggregation", "round": 5}},
]


@pytest.mark.kills
@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, 2])
def test_whatever_is_killed_it_is_the_same_run_to_the_bit_and_the_nanosecond(
    folder: Path, processes: int, tmp_path: Path
) -> None:
    experiment = asynchronous(*TIMED, rounds=3, own=BOTH)
    alone = run(experiment, folder / f"alone-{processes}").folder
    out = disturbed(experiment.to_yaml(), FAULTS, processes, tmp_path)
    assert_same(out, alone)
    assert recorded(out) == recorded(alone)
