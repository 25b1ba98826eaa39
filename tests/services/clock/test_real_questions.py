"""Questions in rounds, and broadcasts, on the real clock: what is learned is what the virtual one learns."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from emulator.results.read_record import RunRecord, load_record
from emulator.results.waits_chart import picture
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.links.transfers import MOST_LEAD_NS
from tests.support.disturbed import disturbed
from tests.support.every_method import EXPERIMENT, OPTIONS
from tests.support.records import rows_of, summary_of
from tests.support.tiers import run_in_process

LINKS = (
    "{device-lps: {preset: wifi, jitter: 3ms}, lps-gps: {up_rate: 2Mbit/s, down_rate: 20Mbit/s, latency: 5ms}, "
    "overrides: [{devices: [4], up_rate: 1Mbit/s}], shared: {device-lps: {up_rate: 30Mbit/s}}}"
)
ONCE = (
    "{device-lps: {preset: wifi, jitter: 3ms}, overrides: [{devices: [4], down_rate: 3Mbit/s}], "
    "shared: {device-lps: {up_rate: 30Mbit/s, down_rate: 6Mbit/s, broadcast: true}}}"
)
LARGE = "model.hidden=[1100]"  # 330 kB: in pieces, where the small model is one message
ROUNDS, DEVICES = 3, 5
FURTHER = [pytest.param(name, marks=pytest.mark.runs) for name in ("fedfomo", "fedtsdp")]


def experiment_of(clock: str, method: str, links: str, *changes: str) -> Experiment:
    chosen = json.dumps({"name": method, **OPTIONS.get(method, {})})
    said = (f"method={chosen}", f"clock={clock}", f"links={links}", "compute={per_example: 100us}", "topology={lps: 2}")
    return parse_experiment(EXPERIMENT, overrides=[*said, *changes])


def both(folder: Path, method: str, links: str, *changes: str) -> tuple[RunRecord, RunRecord]:
    """The run on the real clock and on the virtual one, whose models are the same to the bit."""
    real, virtual = (
        load_record(run_in_process(experiment_of(clock, method, links, *changes), folder / clock).folder)
        for clock in ("real", "virtual")
    )
    models = sorted((virtual.folder / "models").iterdir())
    assert models
    for model in models:
        found = load_file(real.folder / "models" / model.name)
        for name, tensor in load_file(model).items():
            assert np.array_equal(tensor, found[name])
    return real, virtual


def assert_not_faster(real: RunRecord, virtual: RunRecord) -> None:
    """The real clock makes links slower than the machine's own, and none faster than the file says."""
    ends_s = max(row.ends_s for row in virtual.timeline if row.tier == "gps")
    assert real.summary.wall_seconds["train"] >= ends_s


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", ["cfl", "ifca", *FURTHER])
def test_devices_that_are_asked_in_rounds_learn_the_same_on_both_clocks(method: str, tmp_path: Path) -> None:
    real, virtual = both(tmp_path, method, LINKS)
    assert_not_faster(real, virtual)
    transfers = Counter({(row["link"], row["direction"]): 0 for row in rows_of(real.folder, "links.csv")})
    for row in rows_of(real.folder, "links.csv"):
        transfers[row["link"], row["direction"]] += int(row["transfers"])
    # an answer and an update up; a model and the word to go on down; of LPSs their devices' answers and an aggregate
    assert transfers["device-lps", "up"] == 2 * ROUNDS * DEVICES
    assert ROUNDS * DEVICES < transfers["device-lps", "down"] <= 2 * ROUNDS * DEVICES
    assert transfers["lps-gps", "up"] == 2 * ROUNDS * 2
    assert transfers["device-lps", "compute"] == ROUNDS * DEVICES
    # bytes are those that the virtual clock reckons with
    flows = [row for row in rows_of(virtual.folder, "flows.csv") if row["tier"] == "lps"]
    sent = sum(int(row["up_bytes"]) + int(row["answer_bytes"]) for row in flows)
    carried = [row for row in rows_of(real.folder, "links.csv") if row["link"] == "device-lps"]
    assert sum(int(row["bytes"]) for row in carried if row["direction"] == "up") == pytest.approx(sent, abs=2_000)


@pytest.mark.timeout(120)
def test_the_picture_of_an_asked_round_has_each_time_once(tmp_path: Path) -> None:
    real = load_record(run_in_process(experiment_of("real", "ifca", LINKS), tmp_path / "real").folder)
    waits = real.waits
    for row in waits:
        assert row.down_s >= 0
        assert row.waiting_s >= 0
    took = {
        (row["direction"], row["child"]): row for row in rows_of(real.folder, "links.csv") if row["link"] == "lps-gps"
    }
    for name in ("lps-0", "lps-1"):
        own = [row for row in waits if row.child == name]
        in_rounds = sum(row.seconds for row in real.rounds if row.lps_id == name)
        assert sum(row.compute_s for row in own) == pytest.approx(in_rounds, abs=1e-3)
        # the answers' way lies within the LPS rounds, so that only the aggregates' is beside them
        up = took["up", name]
        whole_s = 8 * int(up["bytes"]) / int(up["achieved_bits_per_s"]) + 6 * float(up["achieved_latency_s"])
        assert sum(row.up_s for row in own) < whole_s
    assert picture(real, waits) is not None


@pytest.mark.runs
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("method", "changes"),
    [("fedavg", (LARGE,)), ("user_centric", (LARGE,)), ("fedavg", ()), ("ifca", (LARGE,))],
    ids=str,
)
def test_a_broadcast_changes_nothing_that_is_learned(method: str, changes: tuple[str, ...], tmp_path: Path) -> None:
    real, virtual = both(tmp_path, method, ONCE, *changes)
    assert_not_faster(real, virtual)
    down = [
        row for row in rows_of(real.folder, "links.csv") if (row["link"], row["direction"]) == ("device-lps", "down")
    ]
    assert len(down) == DEVICES
    sizes = [int(row["bytes"]) for row in down]
    assert max(sizes) - min(sizes) < 20  # each device has received all of it; headers say in which cluster it is
    early_s = MOST_LEAD_NS / 1e9  # the last part of a model is sent earlier by the time that sending usually takes
    for row in down:
        bits = 8 * int(row["bytes"])
        assert float(row["achieved_latency_s"]) >= float(row["latency_s"]) - early_s
        assert bits / int(row["achieved_bits_per_s"]) >= bits / int(row["bits_per_s"]) - early_s


KILLS = [
    {"do": "kill", "process": "device-001", "at": {"point": "download", "round": 1}},
    {"do": "kill", "process": "lps-1", "at": {"point": "download", "round": 2}},
    {"do": "kill", "process": "lps-0", "at": {"point": "upload", "round": 1}},  # the plan of the round is made
    {"do": "kill", "process": "gps", "at": {"point": "aggregation", "round": 1}},
    {"do": "kill", "process": "device-004", "at": {"point": "upload", "round": 2}},
]


@pytest.mark.runs
@pytest.mark.timeout(300)
def test_whatever_is_killed_models_are_the_same_to_the_bit(tmp_path: Path) -> None:
    experiment = experiment_of("real", "ifca", ONCE)
    calm = run_in_process(experiment, tmp_path / "calm").folder
    said = [summary_of(folder) for folder in (disturbed(experiment.to_yaml(), KILLS, 2, tmp_path), calm)]
    for key in ("model_sha256", "personal_sha256", "device_accuracy", "replanned"):
        assert said[0][key] == said[1][key]
