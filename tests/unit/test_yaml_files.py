"""YAML of others: plain values, and no more of them than can be walked through."""

import json
from pathlib import Path

import pytest

from emulator.results.record import load_record
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment.yaml_files import MOST_VALUES, read_yaml
from fedstrata.experiment_file import parse_experiment
from tests.support.record_files import SUMMARY

NINE_EACH = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))
BOMB = "\n".join(["a0: &a0 x", *NINE_EACH])


def test_values_and_aliases_of_them_are_read() -> None:
    assert read_yaml("a: &a {b: [1, 2]}\nc: *a") == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "a: &a {b: *a}"], ids=["nine of nine of nine", "a list", "a map"])
def test_aliases_that_stand_for_more_than_can_be_walked_through_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"has more than {MOST_VALUES} values"):
        read_yaml(text)


@pytest.mark.parametrize("text", ["a: [", "a: 2026-99-99", "[" * 100_000])
def test_what_is_not_yaml_is_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is not YAML: [^\n]+$"):
        read_yaml(text)


def test_tabs_and_keys_that_stand_twice_are_told_with_their_line() -> None:
    with pytest.raises(
        ValueError, match=r"that cannot start any token in line 2, column 1: .*; YAML indents with spaces"
    ):
        read_yaml("name: a\n\tpartition: {}\n")
    with pytest.raises(ValueError, match=r"^is not YAML: the key 'b' is there twice in line 3, column 3"):
        read_yaml("a:\n  b: 1\n  b: 2\n")


def test_an_experiment_and_a_record_with_a_bomb_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="experiment has more than"):
        parse_experiment(BOMB)
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY), encoding="utf-8")
    (tmp_path / "experiment.yaml").write_text(BOMB, encoding="utf-8")
    with pytest.raises(DataError, match=r"experiment\.yaml has more than"):
        load_record(tmp_path)
