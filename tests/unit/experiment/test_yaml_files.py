"""YAML of others: plain values, and no more of them than can be walked through."""

import json
from pathlib import Path

import pytest

from emulator.results.read_record import load_record
from fedstrata.errors import DataError, ExperimentError
from fedstrata.experiment import yaml_files
from fedstrata.experiment.yaml_files import MOST_VALUES, read_yaml
from fedstrata.experiment_file import parse_experiment
from tests.support.record_files import SUMMARY

NINE_EACH = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))
MERGES = (f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30))
PAIRS = (f"a{n}: &a{n} !!pairs [{', '.join([f'x: *a{n - 1}'] * 9)}]" for n in range(1, 30))
BOMB = "\n".join(["a0: &a0 x", *NINE_EACH])
WRONG_TAGS = (
    "!!bool maybe",
    "!!int ''",
    "!!timestamp x",
    "!!set [1]",
    ":".join(["1"] * 400) + ".5",
    "0x" + "f" * 5000,
    "1:" * 3000 + "1",
)


def test_a_mapping_that_is_merged_before_it_is_read_has_no_key_twice() -> None:
    read = read_yaml("a: &a {k: 1}\nx:\n  y: &b {<<: *a, k: 2}\nc: {<<: *b}")
    assert read == {"a": {"k": 1}, "x": {"y": {"k": 2}}, "c": {"k": 2}}


def test_merge_keys_that_stand_for_more_than_can_be_held_are_refused() -> None:
    with pytest.raises(
        ValueError, match=rf"^is not YAML: it has more than {MOST_VALUES} keys with those of merge keys"
    ):
        read_yaml("\n".join(["a0: &a0 {k: 1}", *MERGES]))


def test_a_key_that_is_a_list_of_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="found unhashable key"):
        read_yaml(f"{BOMB}\n? *a29\n: 1")


def test_numbers_with_an_exponent_need_no_point() -> None:
    assert read_yaml("[1e-3, 2E+2, -1e-1, 1.5e-2]") == [0.001, 200.0, -0.1, 0.015]
    assert read_yaml("[1e3, 12e45f, e-3, 1e-]") == ["1e3", "12e45f", "e-3", "1e-"]  # names, and parts of digests


def test_words_and_dates_are_text_as_in_yaml_1_2() -> None:
    assert read_yaml("[yes, No, on, OFF, y, 2026-11-28]") == ["yes", "No", "on", "OFF", "y", "2026-11-28"]
    assert read_yaml("[true, False, null, ~]") == [True, False, None, None]


@pytest.mark.parametrize("number", ["010", "-017", "0_7", "1:30"])
def test_a_number_that_pyyaml_would_read_to_another_base_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match=f"{number} begins with 0 or has a colon; write a plain number"):
        read_yaml(f"seed: {number}")
    assert read_yaml("[0, -0, 0.5, 0x1f, 1_000]") == [0, 0, 0.5, 31, 1000]


def test_values_and_aliases_of_them_are_read() -> None:
    assert read_yaml("a: &a {b: [1, 2]}\nc: *a") == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}


@pytest.mark.parametrize("text", [BOMB, "\n".join(["a0: &a0 [x: 1]", *PAIRS]), "a: &a [*a]", "a: &a {b: *a}"])
def test_aliases_that_stand_for_more_than_can_be_walked_through_are_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_files, "MOST_VALUES", 1000)
    with pytest.raises(ValueError, match="has more than 1000 values"):
        read_yaml(text)


@pytest.mark.parametrize("text", ["a: [", "a: !!timestamp 2026-99-99", "[" * 1000, *WRONG_TAGS])
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


def test_a_text_with_a_long_comment_is_refused() -> None:
    with pytest.raises(ValueError, match="has more than 4194304 characters; remove comments"):
        read_yaml(f"name: x\n#{' ' * (4 << 20)}")
