"""What devices cost, read off records whose bytes and rounds can be added up by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulator.results.device_costs import (
    accuracy_by_round,
    bytes_in_all,
    bytes_until_grouped,
    bytes_until_nearly_final,
)
from emulator.results.measures import device_mean_accuracy, lowest_accuracy, measure, received_accuracy
from emulator.results.record import RunRecord, load_record
from tests.support.record_files import write_record

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
    found = dict(accuracy_by_round(run(tmp_path)))
    assert found == {1: pytest.approx(0.28), 2: pytest.approx(0.76), 3: pytest.approx(0.66), 4: pytest.approx(0.8)}


def test_newcomers_count_from_the_round_on_that_has_them(tmp_path: Path) -> None:
    whole = run(tmp_path)
    summary = replace(whole.summary, newcomers=whole.summary.by_lps["lps-0"][1:])
    found = dict(
        accuracy_by_round(
            replace(whole, summary=summary, experiment={**whole.experiment, "newcomers": {"from_global_round": 3}})
        )
    )
    assert found[1] == pytest.approx((0.2 + 2 * 0.4) / 3)
    assert found[3] == pytest.approx(0.66)


def test_nearly_final_is_where_the_accuracy_first_was_enough(tmp_path: Path) -> None:
    # 0.95 · 0.8 is 0.76, which the second round has
    assert bytes_until_nearly_final(run(tmp_path)) == BEFORE + 2 * ROUND


def test_a_run_whose_last_round_was_not_measured_is_never_nearly_final(tmp_path: Path) -> None:
    assert bytes_until_nearly_final(run(tmp_path, rounds(((0.2, 0.4), (0.8, ""))))) is None


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
    assert device_mean_accuracy(found) == pytest.approx(0.7)
    assert (lowest_accuracy(found), received_accuracy(found)) == (0.5, 0.4)


def test_what_a_record_does_not_say_is_not_measured(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert device_mean_accuracy(found) is lowest_accuracy(found) is received_accuracy(found) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [("Devices", "75.0 ± 1.2"), ("ARI", "0.75 ± 0.01"), ("until 95 %", "0.00 ± 0.00"), ("bags", "75.0")],
)
def test_a_measure_is_said_in_its_own_unit(name: str, said: str) -> None:
    assert measure(name).said(0.75, 0.0123 if "±" in said else None) == said
