"""Layouts: where named tensors lie in the flat vector."""

import numpy as np
import pytest

from fedstrata.tensors import Layout

LAYOUT = Layout.of({"a": (2, 3), "b": (), "c": (4,), "d": (0,)})


def test_tensors_lie_one_after_the_other() -> None:
    assert LAYOUT.starts == (0, 6, 7, 11)
    assert LAYOUT.size == 11
    assert LAYOUT.names == ("a", "b", "c", "d")


def test_views_share_the_vectors_memory() -> None:
    flat = np.arange(11, dtype=np.float32)
    views = LAYOUT.views(flat)
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert views["b"].shape == ()
    views["c"][0] = 99
    assert flat[7] == 99


def test_flattening_undoes_views() -> None:
    flat = np.arange(11, dtype=np.float32)
    assert np.array_equal(LAYOUT.flatten(LAYOUT.views(flat)), flat)


def test_flattening_needs_every_tensor() -> None:
    with pytest.raises(KeyError, match="'c'"):
        LAYOUT.flatten({"a": np.zeros((2, 3), np.float32), "b": np.float32(0)})  # type: ignore[dict-item]


def test_a_part_keeps_this_layouts_order() -> None:
    assert LAYOUT.select(["c", "a"]).names == ("a", "c")


def test_neighbours_are_one_slice() -> None:
    assert LAYOUT.slices_of(LAYOUT.select(["a", "b"])) == [slice(0, 7)]
    assert LAYOUT.slices_of(LAYOUT.select(["a", "c"])) == [slice(0, 6), slice(7, 11)]
    assert LAYOUT.slices_of(LAYOUT.select([])) == []


def test_layouts_of_the_same_tensors_are_equal() -> None:
    assert Layout.of({"a": [2, 3], "b": [], "c": [4], "d": [0]}) == LAYOUT
    assert Layout.of({"a": (3, 2), "b": (), "c": (4,), "d": (0,)}) != LAYOUT
