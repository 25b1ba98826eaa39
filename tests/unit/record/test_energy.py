"""What devices take in energy: numbers to redo by hand, what is refused, and where it is said."""

import csv
from pathlib import Path

import pytest

from emulator.console.energy_text import energy_line, human_joules
from fedstrata.clock.energy import DeviceEnergy
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.record.energy import ENERGY, EnergySummary, energy_csv, energy_summary, spent_by
from fedstrata.record.timeline import RunTimes
from fedstrata.v1 import rounds_pb2 as pb

MS, S = 10**6, 10**9
TEXT = """
name: energy
partition: {kind: iid, devices: 3, examples_per_device: 10}
method: fedavg
clock: virtual
compute: {per_example: 1ms, devices: {pi4: [0, 1], old: [2]}, profiles: {old: 9}}
energy: {radio: lte, compute: 5W, overrides: [{devices: [1], radio: wifi}]}
"""


def energy(*changes: str) -> Experiment:
    return parse_experiment(TEXT, overrides=changes)


def megabyte(child: int, away_ns: int = 0) -> pb.Flow:
    """A megabyte down in a second, three of computing, a megabyte up in two."""
    return pb.Flow(
        child=child, down_bytes=10**6, up_bytes=10**6, down_ns=S, compute_ns=3 * S, up_ns=2 * S, away_ns=away_ns
    )  # fmt: skip


def joules(flow: pb.Flow, *changes: str) -> list[float]:
    return [*DeviceEnergy(energy(*changes)).of(flow).joules().values()]


def test_a_transfer_takes_by_its_bits_and_by_its_seconds_and_a_board_its_watts() -> None:
    # LTE: 8 * 51.97 + 1288.04 mJ down, 8 * 438.39 + 2 * 1288.04 mJ up; a Raspberry Pi 4 has 7.2 W
    assert joules(megabyte(0)) == [1.7038, 21.6, 6.0832]
    # Wi-Fi: 8 * 137.01 + 132.86 mJ down, 8 * 283.17 + 2 * 132.86 mJ up
    assert joules(megabyte(1)) == [1.22894, 21.6, 2.53108]
    assert joules(megabyte(2))[1] == 15.0  # whose profile has no watts: energy.compute


def test_a_device_that_is_away_or_busy_takes_nothing_meanwhile() -> None:
    assert joules(megabyte(0, away_ns=S // 2))[0] == 1.05978  # 0.5 s of base less


def test_what_a_deadline_has_broken_off_counts_as_far_as_it_had_left() -> None:
    flow = megabyte(0)
    flow.unsent_bytes = 500_000
    assert joules(flow)[2] == 4.32964  # 4 * 438.39 + 2 * 1288.04 mJ


def test_own_radios_and_watts_by_profile_and_device() -> None:
    own = ("energy.radios={slow: {up: 1J/Mbit, down: 500mJ/Mbit, base: 100mW}}", "energy.radio=slow")
    assert joules(megabyte(0), *own) == [4.1, 21.6, 8.2]
    assert joules(megabyte(0), "energy.profiles={pi4: 4W}")[1] == 12.0
    assert joules(megabyte(2), "energy.overrides=[{devices: [2], compute: 1W}]")[1] == 3.0
    assert joules(megabyte(0), "energy.radio=null") == [0.0, 21.6, 0.0]


def test_on_the_real_clock_what_was_measured_counts() -> None:
    model = DeviceEnergy(energy("clock=real"))
    lasted = {"achieved_link_ns": S - 40 * MS, "latency_ns": 40 * MS, "link_ns": 7 * S}
    down, computing = (pb.Carried(child=0, bytes=10**6, direction=way, **lasted) for way in ("down", "compute"))
    assert model.carried(down).joules() == {"down": 1.7038, "compute": 0.0, "up": 0.0}
    assert model.carried(computing).joules() == {"down": 0.0, "compute": 7.2, "up": 0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("energy.radio=5g", "no radio is called '5g'; choose one of lte, wifi"),
        ("energy.compute=7", "7 has no unit; write a value such as 7.2W"),
        ("energy.compute=2MW", "no unit is called 'MW'"),
        ("energy.overrides=[{devices: [3], radio: wifi}]", "energy.overrides: there is no device 3"),
        ("energy.overrides=[{devices: [1]}]", "this entry changes nothing; add radio or compute"),
        ("energy.overrides=[{devices: [1], radio: lte}, {devices: [0-2], radio: wifi}]", "device 1 is in two"),
        ("energy.radios={lte: {up: 1J/Mbit, down: 1J/Mbit, base: 1W}}", "radios.lte: a built-in radio has this name"),
        (
            "energy.radios={x: {up: 1W, down: 1J/Mbit, base: 1W}}",
            "no unit is called 'W'; write a value such as 438.39mJ/Mbit",
        ),
        (
            "energy.compute=null",
            r"the computing power of device 2 \(its profile 'old'\) is unknown; set energy.compute",
        ),
        ("compute.devices=null", None),  # all are the reference then, at energy.compute
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(change: str, message: str | None) -> None:
    if message is None:
        assert energy(change).energy is not None
        return
    with pytest.raises(ExperimentError, match=message.replace("[", r"\[")) as refused:
        energy(change)
    assert "\n" not in str(refused.value)


def test_energy_goes_by_a_clock_and_changes_no_run() -> None:
    with pytest.raises(
        ExperimentError, match=r"energy needs a clock: .* add clock: virtual or clock: real, or add clock: none"
    ):
        parse_experiment("{name: x, partition: {kind: iid, devices: 2, examples_per_device: 5}, energy: {radio: lte}}")
    assert energy().run_id == energy("energy=null").run_id == energy("energy.radio=wifi").run_id
    assert energy("clock=none", "energy.overrides=[{devices: [9], radio: wifi}]").clock == "none"  # passed over


def test_the_resolved_file_says_the_same_with_its_units() -> None:
    own = energy("energy.radios={slow: {up: 438.39mJ/Mbit, down: 0.5J/Mbit, base: 1288.04mW}}")
    again = parse_experiment(own.to_yaml())
    assert again.energy == own.energy
    assert "up: 438.39mJ/Mbit" in own.to_yaml()
    assert "base: 1.28804W" in own.to_yaml()


# --- the record ---------------------------------------------------------------------------------------------

ROW = pb.LpsRound(
    home_id="lps-1",
    lps_round=2,
    global_round=1,
    times=pb.RoundTimes(flows=[megabyte(0), megabyte(1)], late=[megabyte(2)]),
)
BEFORE = RunTimes(before=pb.RoundTimes(flows=[pb.Flow(child=0, up_bytes=125_000, up_ns=S)]))
IDS = ["device-000", "device-001", "device-002"]


def test_the_record_has_a_row_a_device_and_round_and_their_sums(tmp_path: Path) -> None:
    spent = spent_by(energy(), [ROW], BEFORE)
    rows = list(csv.DictReader(energy_csv(spent, IDS)))
    (tmp_path / "energy.csv").write_text("".join(energy_csv(spent, IDS)))
    read = ENERGY.read(tmp_path / "energy.csv")
    assert [(row.tier, row.lps_round, row.device, row.late, row.compute_j) for row in read[2:]] == [
        ("lps", 3, "device-001", "0", 21.6), ("lps", 3, "device-002", "1", 15.0),
    ]  # fmt: skip
    assert [(row["tier"], row["global_round"], row["lps_round"], row["lps_id"], row["device"]) for row in rows] == [
        ("before", "", "", "", "device-000"),
        ("lps", "2", "3", "lps-1", "device-000"),
        ("lps", "2", "3", "lps-1", "device-001"),
        ("lps", "2", "3", "lps-1", "device-002"),
    ]
    assert [row["late"] for row in rows] == ["0", "0", "0", "1"]
    assert (rows[0]["up_j"], rows[1]["compute_j"]) == ("1.726430000", "21.600000000")
    said = energy_summary(spent, IDS)
    assert said.by_device == {"device-000": 31.11343, "device-001": 25.36002, "device-002": 22.787}
    assert said.joules == pytest.approx(31.11343 + 25.36002 + 22.787)
    assert said.joules == pytest.approx(said.down + said.compute + said.up)
    assert said.late == 22.787


def test_on_the_real_clock_a_device_without_an_update_is_late() -> None:
    def carried(child: int, direction: str) -> pb.Carried:
        return pb.Carried(link="device-lps", child=child, direction=direction, bytes=10**6, achieved_link_ns=S)

    ways = [carried(0, "down"), carried(0, "compute"), carried(0, "up"), carried(1, "down"), carried(1, "up")]
    spent = spent_by(energy("clock=real"), [pb.LpsRound(times=pb.RoundTimes(carried=ways))], RunTimes())
    assert [(each.device, each.is_late) for each in spent] == [(0, False), (1, True)]
    assert energy_summary(spent, IDS).late == 1.22894 + 8 * 0.28317 + 0.13286  # as for Wi-Fi above


def test_it_is_told_in_one_line() -> None:
    said = EnergySummary(joules=30.0, down=1.0, compute=20.0, up=9.0, late=2.0, by_device={"a": 10.0, "b": 20.0})
    assert energy_line(said).replace("\u00a0", " ") == (
        "energy: 30.0 J (receiving 1.00 J, computing 20.0 J, sending 9.00 J); 2.00 J of it for updates that were late; "
        "a mean device 15.0 J, b 20.0 J"
    )
    assert [human_joules(n).replace("\u00a0", " ") for n in (0.0123, 0.9999, 4560.0, 7.89e6)] == [
        "12.3 mJ", "1.00 J", "4.56 kJ", "7.89 MJ",
    ]  # fmt: skip
