"""The real clock of whole runs: links and boards take their time, and nothing that is learned changes."""

import hashlib
import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from emulator.commands.main import execute
from emulator.results.read_record import load_record
from emulator.results.waits_chart import picture
from fedstrata.experiment_file import load_experiment
from tests.support.records import rows_of, summary_of
from tests.support.tiers import run_in_process, small

LINKS = (
    "{device-lps: {preset: wifi, jitter: 3ms}, lps-gps: {up_rate: 50Mbit/s, down_rate: 90Mbit/s, latency: 2ms}, "
    "overrides: [{devices: [4], up_rate: 5Mbit/s}], shared: {device-lps: {up_rate: 30Mbit/s}}}"
)
REAL = ("clock=real", f"links={LINKS}", "compute={per_example: 100us, devices: {pi4: [0-1]}}")
LARGE = "model.hidden=[1100]"  # 330 kB: in pieces, where SMALL's model is one message


def digests_of(folder: Path) -> dict[str, str]:
    """The digests that a record names, each worked out again from its file, as docs/reference/record.md says."""
    told: dict[str, str] = summary_of(folder)["model_sha256"]
    assert told
    for name, sha256 in told.items():
        digest = hashlib.sha256()
        for key, array in sorted(load_file(folder / "models" / f"{name}.safetensors").items()):
            digest.update(json.dumps([key, array.dtype.name, list(array.shape)]).encode() + b"\n" + array.tobytes())
        assert digest.hexdigest() == sha256
    return told


def trained(folder: Path) -> list[tuple[int, str, int]]:
    """The number of examples on which each device trained, by LPS round."""
    waits = load_record(folder).waits
    return sorted((row.lps_round or 0, row.child, row.examples) for row in waits if row.examples)


@pytest.mark.parametrize("changes", [(LARGE, "topology={lps: 2}"), ("method={name: adaptive, clusters: 1}",)], ids=str)
def test_the_clock_changes_nothing_that_is_learned(changes: tuple[str, ...], tmp_path: Path) -> None:
    clocks = {"none": (), "virtual": (*REAL, "clock=virtual"), "real": REAL}
    plain, virtual, real = (
        run_in_process(small(*changes, *clock), tmp_path / name).folder for name, clock in clocks.items()
    )
    assert digests_of(plain) == digests_of(virtual) == digests_of(real)
    assert trained(virtual) == trained(real) != []
    assert not (plain / "links.csv").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on the real clock, whose payloads go in pieces."""
    energy = "energy={radio: wifi, compute: 5W}"
    return run_in_process(small(LARGE, energy, *REAL), tmp_path_factory.mktemp("real")).folder


def test_neither_clock_nor_energy_change_what_clusters_learn_in_pieces(run: Path, tmp_path: Path) -> None:
    assert digests_of(run) == digests_of(run_in_process(small(LARGE), tmp_path).folder)


def test_every_link_is_told_with_what_was_configured_and_achieved(run: Path) -> None:
    rows = {(row["link"], row["direction"], row["child"]): row for row in rows_of(run, "links.csv")}
    devices = [f"device-00{index}" for index in range(5)]
    assert {child for link, way, child in rows if (link, way) == ("device-lps", "down")} == set(devices)
    assert {child for link, way, child in rows if (link, way) == ("device-lps", "up")} == set(devices)
    assert {child for link, way, child in rows if (link, way) == ("device-lps", "compute")} == set(devices)
    assert {child for link, way, child in rows if (link, way) == ("lps-gps", "up")} == {"lps-0", "lps-1"}
    slow = rows["device-lps", "up", "device-004"]
    assert (slow["transfers"], slow["bits_per_s"]) == ("2", "5000000")
    assert float(slow["achieved_bits_per_s"]) <= 5_000_000  # never faster than it is
    assert float(slow["achieved_latency_s"]) >= float(slow["latency_s"]) > 0
    assert int(slow["bytes"]) > 2 * 300_000
    assert all(row["outside"] in {"", "rate", "latency", "rate latency", "compute"} for row in rows.values())


def test_the_picture_of_a_round_has_what_links_and_devices_took(run: Path) -> None:
    waits = load_record(run).waits
    took = {(row["link"], row["direction"], row["child"]): row for row in rows_of(run, "links.csv")}
    for name in ("device-000", "device-004"):
        own = [row for row in waits if row.child == name]
        assert [row.lps_round for row in own] == [1, 2]
        computing = took["device-lps", "compute", name]
        assert sum(row.compute_s for row in own) == pytest.approx(2 * float(computing["achieved_latency_s"]), abs=1e-5)
        up = took["device-lps", "up", name]
        lasted = 8 * int(up["bytes"]) / int(up["achieved_bits_per_s"]) + 2 * float(up["latency_s"])
        assert sum(row.up_s for row in own) == pytest.approx(lasted, rel=1e-4)
    drawn = picture(load_record(run), waits)
    assert drawn is not None
    lpss = [bar for bar in drawn["lanes"] if bar["tier"] == "lps"]
    assert max(bar["ends_s"] for bar in lpss) == pytest.approx(drawn["seconds"])
    assert {bar["part"] for bar in lpss} == {"compute", "up", "waiting"}  # the first model is everywhere already


def test_energy_is_of_bytes_and_times_as_they_were_measured(run: Path) -> None:
    rows = [row for row in rows_of(run, "energy.csv") if row["device"] == "device-004" and row["tier"] == "lps"]
    waits = [row for row in load_record(run).waits if row.child == "device-004"]
    (up,) = [row for row in rows_of(run, "links.csv") if (row["direction"], row["child"]) == ("up", "device-004")][-1:]
    bits = 8 * int(up["bytes"])
    assert [row["lps_round"] for row in rows] == ["1", "2"]
    expected = 0.28317e-6 * bits + 0.13286 * sum(row.up_s for row in waits)
    assert sum(float(row["up_j"]) for row in rows) == pytest.approx(expected, rel=1e-6)
    assert sum(float(row["compute_j"]) for row in rows) == pytest.approx(5 * sum(row.compute_s for row in waits))
    energy = load_record(run).summary.energy
    assert energy is not None
    assert energy.by_device["device-004"] > sum(float(row[f"{part}_j"]) for row in rows for part in ("down", "up"))


def test_the_summary_says_how_many_links_were_outside(run: Path) -> None:
    real = summary_of(run)["real"]
    rows = rows_of(run, "links.csv")
    assert real["links"] == len(rows)
    assert real["outside"] == sum(bool(row["outside"]) for row in rows)


# Device 1 is away for good and device 0 moves in the first round: what is learned is a function of the file here, too.
ENTRIES = (
    "{at: 0s, leave: {devices: [1]}}, {at: 1ms, move: {devices: [0], to: lps-1}}, "
    "{at: 0s, set: {devices: [2], up_rate: 20Mbit/s, latency: 5ms}}, {at: 0s, cut: {link: lps-gps, for: 300ms}}"
)
TRACED = "device-lps: {down_trace: lte-driving, up_rate: 20Mbit/s}"
SHARED = "{device-lps: {down_rate: 20Mbit/s, up_rate: 20Mbit/s, broadcast: %s}}"
ON_SHARED = "{at: 50ms, set: {link: shared, up_rate: 10Mbit/s}}, {at: 60ms, cut: {link: shared, for: 200ms}}"
SPANNING = ("topology={lps: 2}", "method=fedavg", "training.global_rounds=3", "training.lps_rounds_per_global_round=1")


@pytest.mark.parametrize(
    ("links", "entries"),
    [
        (TRACED, ENTRIES),
        (f"{TRACED}, shared: {SHARED % 'false'}", f"{ENTRIES}, {ON_SHARED}"),
        (f"{TRACED}, shared: {SHARED % 'true'}", f"{ENTRIES}, {ON_SHARED}"),
    ],
    ids=["own", "shared", "broadcast"],
)
def test_a_schedule_and_traces_go_by_real_time_since_training_began(links: str, entries: str, tmp_path: Path) -> None:
    changes = (*SPANNING, f"links={{{links}}}", f"schedule=[{entries}]")
    real, virtual = (
        load_record(run_in_process(small(*changes, f"clock={clock}"), tmp_path / clock).folder)
        for clock in ("real", "virtual")
    )
    for record in (real, virtual):
        assert record.summary.status == "completed"
        assert "device-001" not in {row.child for row in record.waits}
        [moved] = record.summary.moves
        assert (moved.device, moved.came_from, moved.to, moved.global_round) == ("device-000", "lps-0", "lps-1", 2)
    assert digests_of(real.folder) == digests_of(virtual.folder)


@pytest.mark.runs
def test_a_device_that_is_late_by_the_wall_as_it_moves_is_waited_for_where_it_comes_to(tmp_path: Path) -> None:
    links = "{device-lps: {up_rate: 20Mbit/s}, overrides: [{devices: [0], up_rate: 2kbit/s}]}"
    entries = "{at: 1ms, move: {devices: [0], to: lps-1}}, {at: 5s, set: {devices: [0], up_rate: 20Mbit/s}}"
    late = ("clock=real", "deadlines.lps={deadline_s: 4, quorum_ratio: 0.3}", f"schedule=[{entries}]", f"links={links}")
    record = load_record(run_in_process(small(*SPANNING, *late), tmp_path).folder)
    assert record.summary.status == "completed"
    assert ("device-000", "round 1") in {(each.device, each.stage) for each in record.summary.excluded}
    assert [(moved.device, moved.global_round) for moved in record.summary.moves] == [("device-000", 2)]
    assert "lps-1" in {row.lps_id for row in record.waits if row.child == "device-000"}


def test_a_run_calibrates_an_experiment_that_check_accepts(tmp_path: Path) -> None:
    links = "links={device-lps: {up_rate: 5Mbit/s, latency: 5ms}, overrides: [{devices: [4], up_rate: 3Mbit/s}]}"
    run = run_in_process(small("clock=real", links), tmp_path / "run").folder
    twin = tmp_path / "twin.yaml"
    assert execute(["calibrate", str(run), "--out", str(twin)]) == 0
    assert execute(["check", str(twin)]) == 0
    found = load_experiment(twin)
    assert found.clock == "virtual"
    assert found.links.overrides[0].devices == (4,)
    assert found.compute is not None
    assert found.compute.per_example
