"""Parts of a baseline's time and bytes until its accuracy: hand-made curves, and the record of a run."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.time_to_target import Point, points_of, reached, said, target_of
from emulator.results.read_record import load_record
from fedstrata.record.timeline import RunTimes, timeline_csv, virtual_summary
from fedstrata.tasks import CLASSIFICATION
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.record_files import ROUNDS, write_record

S = 10**9
ACCURACY = CLASSIFICATION.headline


def curve(*values: float) -> list[Point]:
    """A measurement each ten seconds and 100 bytes."""
    return [
        Point(at_s=10.0 * number, spent_bytes=100.0 * number, value=value) for number, value in enumerate(values, 1)
    ]


def test_the_target_is_the_mean_of_the_last_four_measurements() -> None:
    assert target_of(curve(0.1, 0.7, 0.8, 0.8, 0.9)) == pytest.approx(0.8)


def test_a_single_high_measurement_does_not_reach_the_target() -> None:
    jumps = curve(0.2, 0.9, 0.3, 0.79, 0.81, 0.82, 0.7)
    found = reached(jumps, 0.8, 1.0, ACCURACY)
    assert found == jumps[4]  # the first with a median of at least 0.8 among three: 0.79, 0.81, 0.82
    assert reached(jumps, 0.8, 0.95, ACCURACY) == jumps[2]  # 0.9, 0.3, 0.79; the target is 0.76
    assert reached(jumps, 0.9, 1.0, ACCURACY) is None


def test_parts_are_said_as_mean_and_largest_or_as_how_many_there_are() -> None:
    assert said([0.1, 0.2, 0.3]) == "0.20 (0.30)"
    assert said([0.1, None, 0.3]) == "2 of 3 reach it"
    assert said([None, None]) == "none"


def test_a_model_counts_from_when_the_gps_has_it(tmp_path: Path) -> None:
    times = RunTimes(global_rounds={0: pb.RoundTimes(ready_ns=4 * S), 1: pb.RoundTimes(ready_ns=9 * S)})
    rows = [pb.LpsRound(home_id="lps-0", times=pb.RoundTimes(ends_ns=3 * S))]
    examples = [(*row, "", "", "", 50) for row in ROUNDS]
    folder = write_record(tmp_path / "run", rounds=examples, virtual=asdict(virtual_summary(rows, times)))
    (folder / "timeline.csv").write_text("".join(timeline_csv(rows, times)))
    # lps-0 was not measured in the first round; bytes before training are 6,000, and those of rounds 1,050 each
    assert points_of(load_record(folder)) == [Point(at_s=9.0, spent_bytes=8100.0, value=pytest.approx(0.85))]
