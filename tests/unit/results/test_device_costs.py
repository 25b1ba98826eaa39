"""What devices cost, read off records whose bytes and rounds can be added up by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulator.results.device_costs import (
    bytes_in_all,
    bytes_of_training,
    bytes_repeated,
    bytes_until_grouped,
    bytes_until_nearly_final,
    metric_by_round,
)
from emulator.results.measures import DEVICES, RECEIVED, Measures
from emulator.results.over_seeds import MEAN
from emulator.results.read_record import RunRecord, load_record
from fedstrata.errors import DataError
from fedstrata.record.rounds import RoundsTable
from fedstrata.tasks import CLASSIFICATION, Metric
from tests.support.record_files import IDS, write_csv, write_record

# three devices at lps-0 and two at lps-1, whose rounds cost 30 and 20 bytes; 6,000 went before training
ACCURACIES = ((0.2, 0.4), (0.76, 0.76), (0.5, 0.9), (0.8, 0.8))
BEFORE, ROUND = 6000, 50


def rounds(accuracies: Any = ACCURACIES) -> list[tuple[object, ...]]:
    """A global round each, with one LPS round."""
    return [
        (number, number, lps_id, devices, 100, 1.0, accuracy, 0.5, 5 * devices, 5 * devices)
        for number, pair in enumerate(accuracies, start=1)
        for lps_id, devices, accuracy in zip(("lps-0", "lps-1"), (3, 2), pair, strict=True)
    ]


def run(folder: Path, rows: list[tuple[object, ...]] | None = None, **changes: Any) -> RunRecord:
    """A record with these rows of rounds.csv, whose summary has as many global rounds."""
    rows = rounds() if rows is None else rows
    written = write_record(folder / "run", rounds=rows, **changes)
    path = written / "summary.json"
    summary = {**json.loads(path.read_text(encoding="utf-8")), "rounds": rows[-1][0]}
    path.write_text(json.dumps(summary), encoding="utf-8")
    return load_record(written)


def plan(global_round: int, moved: int) -> dict[str, int]:
    return {"global_round": global_round, "clusters": 2, "moved": moved}


def test_an_lps_counts_by_its_devices(tmp_path: Path) -> None:
    found = dict(metric_by_round(run(tmp_path)))
    assert found == {1: pytest.approx(0.28), 2: pytest.approx(0.76), 3: pytest.approx(0.66), 4: pytest.approx(0.8)}


def test_training_ends_with_the_last_round_and_the_final_measurement_is_only_in_all(tmp_path: Path) -> None:
    """Four global rounds of 50 bytes, after 6,000 before training. Links have 6,000 and 1,000 bytes in all."""
    links = {"device-gps": {"up": BEFORE, "down": 0}, "device-lps": {"up": 100, "down": 900}}
    found = run(tmp_path, bytes=links)
    assert bytes_of_training(found) == BEFORE + 4 * ROUND
    assert bytes_in_all(found) == BEFORE + 1000


def test_repeated_messages_are_only_in_all_and_in_their_own_column(tmp_path: Path) -> None:
    links = {"device-gps": {"up": BEFORE, "down": 700}, "device-lps": {"up": 100, "down": 900}}
    found = run(tmp_path, bytes=links, repeated_bytes={"up": 400, "down": 300})
    assert (bytes_until_grouped(found), bytes_repeated(found)) == (BEFORE, 700)
    assert bytes_until_nearly_final(found) == BEFORE + 2 * ROUND
    assert bytes_of_training(found) == BEFORE + 4 * ROUND
    assert bytes_in_all(found) == BEFORE + 700 + 1000
    assert bytes_repeated(run(tmp_path / "calm")) is None


def test_more_repeated_bytes_than_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="repeated_bytes are 6001, more than all bytes of device-gps"):
        run(tmp_path, bytes={"device-gps": {"up": BEFORE, "down": 0}}, repeated_bytes={"up": 6001, "down": 0})


def test_newcomers_count_from_the_round_on_that_has_them(tmp_path: Path) -> None:
    whole = run(tmp_path)
    summary = replace(whole.summary, newcomers=whole.summary.by_lps["lps-0"][1:])
    found = dict(
        metric_by_round(
            replace(whole, summary=summary, experiment={**whole.experiment, "newcomers": {"from_global_round": 3}})
        )
    )
    assert found[1] == pytest.approx((0.2 + 2 * 0.4) / 3)
    assert found[3] == pytest.approx(0.66)


def test_a_round_of_an_lps_that_all_devices_left_later_is_passed_over(tmp_path: Path) -> None:
    found = run(tmp_path, rounds()[:1] + rounds()[2:], clusters={"cluster-0": IDS}, accuracy={"mean": 0.8},
                homes={"lps-0": [], "lps-1": IDS})  # fmt: skip
    assert dict(metric_by_round(found)) == {2: 0.76, 3: 0.9, 4: 0.8}


def test_an_lps_counts_by_the_devices_that_it_had_then(tmp_path: Path) -> None:
    moves = [
        {"device": IDS[0], "from": "lps-1", "to": "lps-0", "global_round": 3},
        {"device": IDS[1], "from": "lps-1", "to": "lps-0", "global_round": 3},
        {"device": IDS[0], "from": "lps-0", "to": "lps-1", "global_round": 4},
    ]
    homes = {"lps-0": IDS[1:3], "lps-1": [IDS[0], *IDS[3:]]}
    then = run(tmp_path, clusters={"cluster-0": IDS}, accuracy={"mean": 0.8}, homes=homes, moves=moves)
    found = dict(metric_by_round(then))
    assert found[1] == pytest.approx((0.2 + 4 * 0.4) / 5)
    assert found[3] == pytest.approx((3 * 0.5 + 2 * 0.9) / 5)


def test_an_lps_without_a_row_in_a_round_counts_with_its_newest_model(tmp_path: Path) -> None:
    found = run(tmp_path, [row for row in rounds() if row[1:3] != (4, "lps-0")])
    assert dict(metric_by_round(found))[4] == pytest.approx((3 * 0.5 + 2 * 0.8) / 5)


def test_nearly_final_is_where_the_accuracy_first_was_enough(tmp_path: Path) -> None:
    # 0.95 · 0.8 is 0.76, which the second round has
    assert bytes_until_nearly_final(run(tmp_path)) == BEFORE + 2 * ROUND


def test_a_run_whose_last_round_was_not_measured_is_never_nearly_final(tmp_path: Path) -> None:
    assert bytes_until_nearly_final(run(tmp_path, rounds(((0.2, 0.4), (0.8, ""))))) is None


def test_a_run_whose_last_round_alone_was_measured_is_never_nearly_final(tmp_path: Path) -> None:
    assert bytes_until_nearly_final(run(tmp_path / "two", rounds((("", ""), (0.7, 0.8))))) is None
    assert bytes_until_nearly_final(run(tmp_path / "one", rounds(((0.7, 0.8),)))) == BEFORE + ROUND


def test_rounds_that_were_not_measured_are_passed_over(tmp_path: Path) -> None:
    sparse = rounds((("", ""), ("", ""), (0.7, 0.7), (0.7, 0.7)))
    assert bytes_until_nearly_final(run(tmp_path, sparse)) == BEFORE + 3 * ROUND


def test_a_method_that_asks_before_training_has_grouped_by_then(tmp_path: Path) -> None:
    assert bytes_until_grouped(run(tmp_path)) == BEFORE


def test_a_method_that_groups_in_training_has_grouped_with_the_last_device_that_moved(tmp_path: Path) -> None:
    moved = run(tmp_path, replanned=[plan(1, 4), plan(2, 1), plan(3, 0)])
    assert bytes_until_grouped(moved) == BEFORE + 2 * ROUND


def test_a_method_that_groups_nobody_has_no_such_bytes(tmp_path: Path) -> None:
    written = write_record(tmp_path / "run", replanned=[plan(1, 0)])
    (written / "relevance.csv").unlink()
    assert bytes_until_grouped(load_record(written)) is None


@pytest.mark.parametrize(("kind", "expected"), [("labels", BEFORE), ("control", None)])
def test_own_code_that_asks_and_has_no_matrix_has_grouped_by_then(
    kind: str, expected: float | None, tmp_path: Path
) -> None:
    kinds = {"device-gps": {kind: {"up": 5, "down": 1}}}
    written = write_record(tmp_path / "run", bytes_by_kind=kinds)
    (written / "relevance.csv").unlink()
    assert bytes_until_grouped(load_record(written)) == expected


def test_bytes_in_all_are_those_of_both_links_of_devices(tmp_path: Path) -> None:
    assert bytes_in_all(run(tmp_path)) == 1500 + 4500 + 1000 + 1100  # not those between LPS and GPS


def test_the_mean_over_devices_and_the_device_that_is_worst_off(tmp_path: Path) -> None:
    found = run(
        tmp_path, device_accuracy={"a": 0.5, "b": 0.9, "c": None}, received_accuracy={"lps-0": 0.4, "mean": 0.4}
    )
    of = Measures(found.headline).named
    assert of(DEVICES).of(found) == pytest.approx(0.7)
    assert (of("Lowest").of(found), of(RECEIVED).of(found), of("bags").of(found)) == (0.5, 0.4, 0.8)
    assert [of(name).column for name in (MEAN, DEVICES, "Lowest", "bags")] == [
        "mean_accuracy", "device_mean_accuracy", "lowest_accuracy", "accuracy_bags",
    ]  # fmt: skip


def test_where_lower_is_better_the_worst_device_has_the_highest_value(tmp_path: Path) -> None:
    found = errors_of(tmp_path, (8.0, 3.0, 2.0))
    of = Measures(found.headline).named
    assert (of("Highest").column, of("Highest").of(found)) == ("highest_rmse", 9.0)
    assert (of(MEAN).column, of(MEAN).heading(MEAN)) == ("mean_rmse", "Mean RMSE")
    assert of(MEAN).form.said(1.98765, 0.01234) == "1.988 ± 0.01234"
    assert of("Lowest").of(found) is None


def test_an_error_is_nearly_final_once_it_is_little_above_its_end(tmp_path: Path) -> None:
    # 2.0 at the end: 2.1 is below 2.0 / 0.95 = 2.105
    assert bytes_until_nearly_final(errors_of(tmp_path / "late", (8.0, 2.2, 2.0))) == 4500 + 1500 + 3 * 50
    assert bytes_until_nearly_final(errors_of(tmp_path / "soon", (8.0, 2.1, 2.0))) == 4500 + 1500 + 2 * 50


def test_a_run_of_another_task_has_nothing_that_is_compared_by_accuracy(tmp_path: Path) -> None:
    found = errors_of(tmp_path, (2.0,))
    of = Measures(CLASSIFICATION.headline).named
    assert {of(name).of(found) for name in (MEAN, DEVICES, "Lowest", "bags")} == {None}


def errors_of(folder: Path, errors: tuple[float, ...]) -> RunRecord:
    """A run of a regression with one cluster, whose RMSE over the global rounds is given."""
    rows = [
        (n + 1, n + 1, "lps-0", 5, 100, 1.0, error, 0.5, 25, 25, 1.0, 9.0, "", "") for n, error in enumerate(errors)
    ]
    metric = {"name": "rmse", "title": "RMSE", "unit": "plain", "higher_is_better": False}
    written = write_record(
        folder / "run", clusters={"lps-0": list(IDS)}, rounds=(), metrics=[metric],
        rmse={"lps-0": 2.0, "mean": 2.0}, received_rmse=None, device_rmse={"a": 1.0, "b": 9.0}, task_rmse=None,
    )  # fmt: skip
    summary = json.loads((written / "summary.json").read_text())
    (written / "summary.json").write_text(json.dumps({**summary, "rounds": len(errors)}))
    write_csv(written / "rounds.csv", [RoundsTable((Metric(name="rmse"),)).columns, *rows])
    return load_record(written)


def test_what_a_record_does_not_say_is_not_measured(tmp_path: Path) -> None:
    found = run(tmp_path)
    of = Measures(found.headline).named
    assert of(DEVICES).of(found) is of("Lowest").of(found) is of(RECEIVED).of(found) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [("Devices", "75.0 ± 1.2"), ("ARI", "0.75 ± 0.01"), ("until 95 %", "0.00 ± 0.00"), ("bags", "75.0")],
)
def test_a_measure_is_said_in_its_own_unit(name: str, said: str) -> None:
    form = Measures(CLASSIFICATION.headline).named(name).form
    assert form.said(0.75, 0.0123 if "±" in said else None) == said
