"""Methods: how each groups devices, on matrices whose dendrogram can be drawn by hand."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import MethodSettings
from fedstrata.methods import Candidate, Grouping, make_method
from fedstrata.methods.one_shot import OneShot, clusters_in_dendrogram, merge_heights
from fedstrata.methods.oracle import Oracle
from fedstrata.methods.random_clusters import RandomClusters
from fedstrata.relevance import Matrix


def candidates(count: int, tasks: str = "") -> list[Candidate]:
    """Devices 0, 1, …; `tasks` gives the true task of each as a letter."""
    return [
        Candidate(device_index=index, num_examples=10, true_task=tasks[index] if tasks else None)
        for index in range(count)
    ]


def blocks(*sizes: int, within: float = 0.9, across: float = 0.2) -> Matrix:
    """R of devices in blocks of these sizes."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(owner[:, None] == owner[None, :], within, across)
    np.fill_diagonal(matrix, 1.0)
    return matrix


# --- one-shot -----------------------------------------------------------------------------------------------


def test_devices_of_one_block_form_one_cluster() -> None:
    grouping = OneShot(clusters=3).group(candidates(10), blocks(5, 3, 2), seed=0)
    assert grouping.clusters == ((0, 1, 2, 3, 4), (5, 6, 7), (8, 9))
    assert grouping.rule == "3 as given"


def test_average_linkage_joins_by_the_mean_distance() -> None:
    # on a line: 0 and 1 are near (0.1); 2 is 0.3 from 1 but 0.5 from 0, on average 0.4; 3 is 0.35 from 2
    matrix = 1 - np.array([
        [0.0, 0.1, 0.5, 0.9],
        [0.1, 0.0, 0.3, 0.8],
        [0.5, 0.3, 0.0, 0.35],
        [0.9, 0.8, 0.35, 0.0],
    ])  # fmt: skip
    np.testing.assert_allclose(merge_heights(matrix), [0.1, 0.35, (0.5 + 0.9 + 0.3 + 0.8) / 4], atol=1e-12)
    assert OneShot(clusters=2).group(candidates(4), matrix, seed=0).clusters == ((0, 1), (2, 3))


def test_neither_the_nearest_nor_the_farthest_pair_decides() -> None:
    # after 1 and 2 (0.1): on average 0 is nearest to them (0.4; 3: 0.525; 0 to 3: 0.5). By the nearest pair it would
    # be 3 (0.15), by the farthest 0 and 3 would join (0.5)
    distance = np.array([
        [0.0, 0.6, 0.2, 0.5],
        [0.6, 0.0, 0.1, 0.15],
        [0.2, 0.1, 0.0, 0.9],
        [0.5, 0.15, 0.9, 0.0],
    ])  # fmt: skip
    assert OneShot(clusters=2).group(candidates(4), 1 - distance, seed=0).clusters == ((0, 1, 2), (3,))


def test_no_result_depends_on_the_order_of_devices() -> None:
    order = [7, 2, 9, 0, 4, 1, 8, 3, 6, 5]
    matrix = blocks(5, 3, 2)[np.ix_(order, order)]
    shuffled = [candidates(10)[index] for index in order]
    assert OneShot(clusters=3).group(shuffled, matrix, seed=0).clusters == ((0, 1, 2, 3, 4), (5, 6, 7), (8, 9))


def test_indexes_with_gaps_stay_what_they_are() -> None:
    there = [candidates(10)[index] for index in (1, 4, 6, 9)]
    assert OneShot(clusters=2).group(there, blocks(2, 2), seed=0).clusters == ((1, 4), (6, 9))


def test_one_cluster_or_one_device_needs_no_dendrogram() -> None:
    assert OneShot(clusters=1).group(candidates(3), blocks(2, 1), seed=0).clusters == ((0, 1, 2),)
    assert OneShot(clusters=3).group(candidates(1), np.ones((1, 1)), seed=0).clusters == ((0,),)
    assert OneShot().group(candidates(1), np.ones((1, 1)), seed=0).clusters == ((0,),)


def test_more_clusters_than_devices_that_came_are_not_made() -> None:
    assert OneShot(clusters=3).group(candidates(2), blocks(1, 1), seed=0).clusters == ((0,), (1,))


# --- the number of clusters, read off the dendrogram --------------------------------------------------------


@pytest.mark.parametrize(
    ("heights", "clusters"),
    [
        ([0.1, 0.2, 0.7, 0.8], 3),  # gaps from the top: 0.1, 0.5 …: cut between 0.2 and 0.7, two merges done of 5
        ([0.1, 0.2, 0.3, 0.9], 2),
        ([0.05, 0.1, 0.15, 0.19], 1),  # even the last merge is below 0.2
        ([0.7, 0.75, 0.8, 0.85], 5),  # the widest gap is below the first merge: nobody belongs together
        ([0.25], 2),
        ([0.19], 1),
        ([0.2, 0.4], 2),  # equal gaps of 0.2: the fewer clusters
        ([], 1),
    ],
)
def test_the_widest_gap_between_merges_sets_the_number(heights: list[float], clusters: int) -> None:
    count, rule = clusters_in_dendrogram(np.array(heights))
    assert count == clusters
    assert rule.startswith("auto: ")


def test_auto_finds_blocks_and_says_how() -> None:
    grouping = OneShot().group(candidates(10), blocks(5, 3, 2), seed=0)
    assert [len(cluster) for cluster in grouping.clusters] == [5, 3, 2]
    assert grouping.rule == "auto: 3, at the dendrogram's widest gap (0.700)"


def test_auto_leaves_devices_of_one_task_together() -> None:
    assert OneShot().group(candidates(6), blocks(6), seed=0).clusters == ((0, 1, 2, 3, 4, 5),)


def test_grouping_by_relevance_needs_relevance() -> None:
    with pytest.raises(ValueError, match="groups by relevance"):
        OneShot().group(candidates(2), None, seed=0)


# --- random and oracle --------------------------------------------------------------------------------------


def test_random_clusters_have_the_sizes_of_the_true_tasks() -> None:
    groupings = [RandomClusters().group(candidates(10, "aaaaabbbcc"), None, seed) for seed in range(20)]
    for grouping in groupings:
        assert sorted(len(cluster) for cluster in grouping.clusters) == [2, 3, 5]
        assert sorted(index for cluster in grouping.clusters for index in cluster) == list(range(10))
    assert len({grouping.clusters for grouping in groupings}) > 10


def test_random_clusters_are_the_same_for_the_same_seed() -> None:
    one, other = (RandomClusters(clusters=3).group(candidates(9), None, seed=4) for _ in range(2))
    assert one == other


@given(devices=st.integers(1, 40), clusters=st.integers(1, 12), seed=st.integers(0, 2**63 - 1))
def test_without_tasks_random_clusters_are_of_near_equal_size(devices: int, clusters: int, seed: int) -> None:
    grouping = RandomClusters(clusters=clusters).group(candidates(devices), None, seed)
    sizes = [len(cluster) for cluster in grouping.clusters]
    assert len(sizes) == min(clusters, devices)
    assert max(sizes) - min(sizes) <= 1
    grouping.check_covers(candidates(devices))


def test_a_number_of_random_clusters_other_than_that_of_the_tasks_wins() -> None:
    grouping = RandomClusters(clusters=2).group(candidates(5, "aabbc"), None, seed=0)
    assert sorted(len(cluster) for cluster in grouping.clusters) == [2, 3]


def test_oracle_clusters_are_the_true_tasks() -> None:
    assert Oracle().group(candidates(5, "babac"), None, seed=0).clusters == ((0, 2), (1, 3), (4,))


def test_oracle_needs_the_true_tasks() -> None:
    with pytest.raises(ExperimentError, match="known only with partition"):
        Oracle().group(candidates(2), None, seed=0)


# --- late devices -------------------------------------------------------------------------------------------


def test_a_late_device_goes_to_the_most_relevant_cluster() -> None:
    assert OneShot().place({"lps-0": 0.2, "lps-1": 0.9, "lps-2": 0.4}) == "lps-1"


def test_among_equally_relevant_clusters_the_first_takes_the_late_device() -> None:
    assert OneShot().place({"lps-1": 0.5, "lps-0": 0.5}) == "lps-0"


# --- groupings and own methods ------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [((0,),), ((0, 1), (1,)), ((0, 1), ()), ((0, 1, 2),)])
def test_a_grouping_that_is_no_partition_of_the_devices_is_refused(clusters: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(PluginError, match="puts every device into one cluster"):
        Grouping(clusters=clusters, rule="odd").check_covers(candidates(2))


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, whose module is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_method", None)


@pytest.mark.parametrize("name", ["one_shot", "random", "oracle"])
def test_every_named_method_is_made(name: str) -> None:
    assert make_method(MethodSettings(name=name)).sums == ("fed_avg",)


def test_an_own_method_is_called_with_its_settings(workdir: Path) -> None:
    (workdir / "own_method.py").write_text(
        "from fedstrata.methods.random_clusters import RandomClusters\n\n"
        "def make(settings):\n    return RandomClusters(clusters=settings.clusters + 1)\n"
    )
    assert make_method(MethodSettings(name="own_method:make", clusters=2)) == RandomClusters(clusters=3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return object()", "its object has no needs_profiles, local_loss, sums, group, place"),
        ("return 1 / 0", "method own_method:make failed with ZeroDivisionError"),
    ],
)
def test_an_own_method_that_is_none_is_refused(workdir: Path, body: str, message: str) -> None:
    (workdir / "own_method.py").write_text(f"def make(settings):\n    {body}\n")
    with pytest.raises(PluginError) as raised:
        make_method(MethodSettings(name="own_method:make"))
    assert message in str(raised.value)
