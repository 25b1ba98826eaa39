"""`fedstrata calibrate`: a run with known links and boards on the real clock gives their values back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from emulator.commands.main import execute
from emulator.estimates.calibrate import Calibrated, _compute_section, calibrate
from emulator.estimates.fits import ComputeFit, Fitted, Transfers, fit_compute, fit_link
from fedstrata.errors import DataError
from fedstrata.experiment_file import load_experiment, parse_experiment
from fedstrata.record.timeline import RunTimes
from fedstrata.record.timing import Timing
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.record_files import write_record

MS = 10**6
HOMES = {"lps-0": (0, 1, 3), "lps-1": (2, 4)}
SETTINGS = {
    "data": {"name": "digits"},
    "partition": {"kind": "iid", "devices": 5, "examples_per_device": 60},
    "training": {"global_rounds": 3, "lps_rounds_per_global_round": 2, "local_epochs": 1},
    "clock": "real",
}
# The hidden truth: device-lps has 2 Mbit/s down, 1 Mbit/s up and 40 ms, lps-gps 8 and 4 Mbit/s. 60 examples take
# 120 ms, on device 4 180 ms. Each LPS round takes 10 ms more than links and computing.
DOWN, UP, LPS_DOWN, LPS_UP = 80, 120, 20, 40  # ms, of 10,000 bytes for devices and 20,000 bytes for LPSs
COMPUTE = (120, 120, 120, 120, 180)
LEFT = 10
EXAMPLES = 60  # on which a device trains in a round

PI4 = {"per_example": "1ms", "devices": {"pi4": "0-4"}}


def carried(link: str, direction: str, child: int, took_ms: float, size: int = 0, *, examples: int = 0) -> pb.Carried:
    """A transfer on a link without configured values: it took its whole time longer than calculated."""
    took = {"achieved_link_ns": round(took_ms * MS), "achieved_latency_ns": round(took_ms * MS)}
    if direction == "compute":
        took["achieved_latency_ns"] = 0
    return pb.Carried(link=link, direction=direction, child=child, bytes=size, examples=examples, **took)


def of_device(child: int, slow: int, examples: int) -> list[pb.Carried]:
    return [
        carried("device-lps", "compute", child, slow * COMPUTE[child], examples=examples),
        carried("device-lps", "down", child, slow * DOWN, 10_000),
        carried("device-lps", "up", child, slow * UP, 10_000),
    ]


def of_lps(number: int, global_round: int) -> list[pb.Carried]:
    down = [carried("lps-gps", "down", number, LPS_DOWN, 20_000)] if global_round else []
    return [*down, carried("lps-gps", "up", number, LPS_UP, 20_000)]


def recorded(
    folder: Path, slow_once: int = 1, answer_bytes: int = 1_000, examples: int = EXAMPLES, **settings: Any
) -> Path:
    """Write the record of the run. In its third LPS round device 0 is slower by the factor `slow_once`."""
    rows, rounds = [], []
    for number in range(6):
        for lps, children in HOMES.items():
            slow = {child: slow_once if (number, child) == (2, 0) else 1 for child in children}
            seconds = (LEFT + max(slow[child] * (DOWN + COMPUTE[child] + UP) for child in children)) / 1000
            times = pb.RoundTimes(
                carried=[each for child in children for each in of_device(child, slow[child], examples)]
            )
            row = pb.LpsRound(home_id=lps, global_round=number // 2, lps_round=number, seconds=seconds, times=times)
            rows.append(row)
            rounds.append((number // 2 + 1, number + 1, lps, len(children), 300, 1, 0.5, seconds, 1, 1))
    every = {**SETTINGS, **settings}
    write_record(folder, settings=every, rounds=rounds)
    closed = {
        number: pb.RoundTimes(carried=[each for lps in range(2) for each in of_lps(lps, number)]) for number in range(3)
    }
    took_ms = 40 + answer_bytes * 8 // 1000
    answers = [carried("device-gps", "up", child, took_ms, answer_bytes) for child in range(5)]
    experiment = parse_experiment((folder / "experiment.yaml").read_text())
    times = RunTimes(global_rounds=closed)
    timing = Timing(experiment=experiment, rows=rows, times=times, carried_before=answers)
    for name, lines in timing.tables().items():
        (folder / name).write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    return calibrate(recorded(tmp_path_factory.mktemp("known") / "run"))


def values(found: Calibrated) -> Mapping[str, Any]:
    links, compute = found.experiment.links, found.experiment.compute
    assert compute is not None
    assert compute.per_example is not None
    return {
        "down": links.common().down_rate,
        "up": links.common().up_rate,
        "latency": links.common().latency,
        "per_example": compute.per_example,
        "factors": {index: factor for index, factor in compute.factors().items() if factor != 1},
        "minimum": compute.minimum,
    }


TRUTH = {
    "down": 2_000_000, "up": 1_000_000, "latency": 40 * MS, "per_example": 2 * MS, "factors": {4: 1.5},
    "minimum": LEFT * MS,
}  # fmt: skip


def test_known_links_and_boards_come_back(known: Calibrated) -> None:
    assert values(known) == TRUTH
    uplink = known.experiment.links.uplink()
    assert (uplink.down_rate, uplink.up_rate, uplink.latency) == (8_000_000, 4_000_000, 0)


def test_the_run_is_predicted_again(known: Calibrated) -> None:
    # 2 LPS rounds of 80 + 180 + 120 + 10 ms, and 20 ms down and 40 ms up to the GPS
    (said,) = [line for line in known.said if line.startswith("predicted again")]
    assert said.startswith("predicted again: a global round takes 0.84 s, +0.0 % from the run: 0.84 s")


def test_what_is_left_of_global_rounds_becomes_latency_of_lpss(
    known: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known.experiment.links.uplink().latency == 0
    for name in ("LPS_DOWN", "LPS_UP"):  # less than a millisecond tells no rate
        monkeypatch.setattr(f"{__name__}.{name}", 0.75)
    found = calibrate(recorded(tmp_path / "run"))
    uplink = found.experiment.links.uplink()
    assert (uplink.down_rate, uplink.up_rate, uplink.latency) == (None, None, 750_000)
    assert any(", +0.0 % from the run: 0.7815 s" in line for line in found.said)  # 780 and twice 0.75 ms


def test_one_slow_round_of_a_device_changes_no_value(tmp_path: Path) -> None:
    assert values(calibrate(recorded(tmp_path / "run", slow_once=10))) == TRUTH


def test_a_device_trained_on_as_many_examples_as_the_record_says(tmp_path: Path) -> None:
    found = calibrate(recorded(tmp_path / "run", method={"name": "ditto"}, examples=2 * EXAMPLES))
    assert values(found) == {**TRUTH, "per_example": MS}
    assert any(", +0.0 % from the run: 0.84 s" in line for line in found.said)


def test_with_one_size_of_transfers_the_rate_is_told_and_the_latency_assumed(tmp_path: Path) -> None:
    found = calibrate(recorded(tmp_path / "run", answer_bytes=10_000))
    minimum = pytest.approx(LEFT * MS, rel=0.01)  # rates are rounded to four digits
    rates = {"down": 1_000_000, "up": 666_700}  # 80,000 bits in 80 and 120 ms
    assert values(found) == {**TRUTH, **rates, "latency": 0, "minimum": minimum}
    assert sum("latency: assumed 0s, as configured" in line for line in found.said) == 2


def test_a_configured_jitter_is_said_to_be_left_out(known: Calibrated, tmp_path: Path) -> None:
    links = {"lps-gps": {"latency": "1ms", "jitter": "1ms"}}
    found = calibrate(recorded(tmp_path / "run", links=links))
    assert found.experiment.links.uplink().jitter == 0
    assert any("jitter: left out" in line for line in found.said)
    assert not any("jitter" in line for line in known.said)


def test_links_that_differ_are_told_apart_as_they_were_configured(tmp_path: Path) -> None:
    links = {"device-lps": {"down": "float16"}, "overrides": [{"devices": [2, 4], "latency": "1ms"}]}
    found = calibrate(recorded(tmp_path / "run", links=links)).experiment
    assert found.links.device_lps.down == "float16"  # encodings stay
    assert {index: link.up_rate for index, link in found.links.of_devices().items()} == {2: 1_000_000, 4: 1_000_000}
    assert {link.latency for link in found.links.of_devices().values()} == {40 * MS}


def test_the_written_file_is_an_experiment_with_the_values(known: Calibrated, tmp_path: Path) -> None:
    path = tmp_path / "twin.yaml"
    path.write_text(known.text(is_whole=True))
    assert load_experiment(path) == known.experiment
    assert known.experiment.clock == "virtual"
    partition = "partition: {kind: iid, devices: 5, examples_per_device: 60}\n"
    fragment = parse_experiment(known.text(is_whole=False) + "name: x\n" + partition)
    assert fragment.links == known.experiment.links
    assert fragment.compute == known.experiment.compute


def test_the_command_writes_the_file_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, out = recorded(tmp_path / "run"), tmp_path / "twin.yaml"
    assert execute(["calibrate", str(folder), "--out", str(out)]) == 0
    assert str(out) in capfd.readouterr().out
    assert execute(["calibrate", str(folder), "--out", str(out)]) != 0
    assert capfd.readouterr().err == f"error: cannot write {out}: File exists; choose another file\n"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clock": "none"}, "with clock: none the times of transfers and computing are not in the record"),
        ({"clock": "virtual"}, "with clock: virtual the times of transfers and computing are calculated"),
        ({"links": {"shared": {"device-lps": {"up_rate": "1Mbit/s"}}}}, "with this links.shared: a device's own rate"),
        ({"schedule": [{"at": "1s", "cut": {"link": "lps-gps", "for": "1s"}}]}, "with this schedule: links and"),
        ({"links": {"device-lps": {"up_trace": "lte-driving"}}}, "with this links: rates of traces change"),
        ({"deadlines": {"lps": {"deadline_s": 9}}}, "with this deadlines.lps.deadline_s: late devices"),
        ({"method": {"name": "ifca", "clusters": 2}}, "with this method: answers in rounds"),
        ({"compute": PI4, "energy": {"compute": "3W"}}, "with this energy: powers depend on the profiles"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_record_cannot_tell_is_one_line(settings: Mapping[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", settings={**SETTINGS, **settings})
    with pytest.raises(DataError, match=said) as caught:
        calibrate(folder)
    assert "\n" not in str(caught.value)


def test_a_failed_run_and_a_record_without_times_are_refused(tmp_path: Path) -> None:
    failed = write_record(tmp_path / "failed", settings=SETTINGS, status="failed", reason="no device came")
    with pytest.raises(DataError, match="is the record of a failed run"):
        calibrate(failed)
    empty = write_record(tmp_path / "empty", settings=SETTINGS)
    with pytest.raises(DataError, match=r"has no rounds in waits\.csv, links\.csv and rounds\.csv"):
        calibrate(empty)


def test_a_record_that_lacks_a_round_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    lines = (folder / "waits.csv").read_text().splitlines(keepends=True)
    (folder / "waits.csv").write_text("".join(line for line in lines if not line.startswith("lps,1,1,lps-0,")))
    with pytest.raises(DataError, match="a round or a child is missing in waits"):
        calibrate(folder)


def test_a_record_without_numbers_of_examples_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    lines = (folder / "waits.csv").read_text().splitlines()
    (folder / "waits.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))  # of an earlier release
    with pytest.raises(DataError, match=r"waits\.csv does not say on how many examples devices trained; run the"):
        calibrate(folder)


def test_profiles_of_near_factors_have_names_of_their_own() -> None:
    factors = {0: 123456.71, 1: 123456.72}
    fit = ComputeFit(per_example=Fitted.of([0.001]), factors=factors, spread=0.0)
    assert list(_compute_section(fit, 0.0)["profiles"].values()) == [123456.71, 123456.72]


def test_transfers_without_bytes_or_without_time_tell_no_rate() -> None:
    none = fit_link({"up": [Transfers(child="a", mean_bytes=0, seconds=0.5)], "down": []}, assumed_s=0.1)
    assert (dict(none.rates), none.latency, none.latency_s) == ({}, None, 0.1)
    short = fit_link({"up": [Transfers(child="a", mean_bytes=1000, seconds=0.0005)]}, assumed_s=0.0)
    assert not short.rates


def test_one_device_has_the_factor_1_and_no_spread() -> None:
    fit = fit_compute({3: [0.002, 0.004, 0.003]})
    assert (fit.per_example.value, dict(fit.factors), fit.spread) == (pytest.approx(0.003), {3: 1.0}, 0.0)
    assert (fit.per_example.low, fit.per_example.high) == (pytest.approx(0.0025), pytest.approx(0.0035))


def test_devices_without_computing_have_no_factors() -> None:
    fit = fit_compute({0: [0.0, 0.0], 1: [0.0]})
    assert (fit.per_example.value, dict(fit.factors)) == (0.0, {})
    assert fit_compute({}) == fit
