"""Examples that hypothesis draws for the tests of properties."""

from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st


def drawn() -> list[int]:
    """The examples that a property is tried on."""
    found = list[int]()

    @given(st.integers())
    def note(number: int) -> None:
        found.append(number)

    note()
    return found


def test_a_property_is_tried_on_the_same_examples_each_time() -> None:
    first = drawn()
    assert len(first) >= 50
    assert drawn() == first


def test_a_module_that_another_test_has_imported_changes_no_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = drawn()
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(10**6, 10**6 + 100))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("full_of_numbers")
    assert drawn() == first
