"""A run whose processes are killed before training needs the bytes of a calm run, and repeats the others."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.spanning_runs import disturbed
from tests.support.tiers import SMALL


def needed(summary: dict[str, Any]) -> dict[str, int]:
    """The bytes of the link device-gps that the result needed."""
    repeated = summary.get("repeated_bytes", {"up": 0, "down": 0})
    return {way: summary["bytes"]["device-gps"][way] - repeated[way] for way in ("up", "down")}


def kill(process: str, point: str, count: int = 1) -> dict[str, Any]:
    return {"do": "kill", "process": process, "at": {"point": point, "count": count}}


@pytest.fixture(scope="module")
def calm(folder: Path) -> dict[str, Any]:
    summary = disturbed(folder / "calm", SMALL, [], processes=5)
    assert "repeated_bytes" not in summary
    return summary


@pytest.mark.kills
@pytest.mark.parametrize(
    "faults",
    [
        [kill("device-000", "relevance")],
        [kill("device-004", "profile_relay", 3)],
        [kill("device-000", "relevance", 2), kill("device-002", "profile_relay", 2), kill("device-004", "relevance")],
        [kill("device-002", "upload"), kill("device-003", "download")],
    ],
    ids=["first answer", "third part", "three devices", "in training"],
)
def test_a_killed_device_repeats_what_the_result_does_not_need(
    faults: list[dict[str, Any]], calm: dict[str, Any], tmp_path: Path
) -> None:
    killed = disturbed(tmp_path / "killed", SMALL, faults, processes=5)
    assert len(killed["restarts"]) == len(faults)
    assert needed(killed) == needed(calm)
    assert sum(killed["repeated_bytes"].values()) > 0


@pytest.mark.kills
@pytest.mark.parametrize(
    ("point", "count"), [("enrolment", 3), ("relevance", 8), ("profile_relay", 12), ("grouping", 1)]
)
def test_a_killed_gps_loses_hardly_any_count(point: str, count: int, calm: dict[str, Any], tmp_path: Path) -> None:
    """Messages on their way at the moment of the kill are lost from the counts, or counted twice."""
    killed = disturbed(tmp_path / "killed", SMALL, [kill("gps", point, count)], processes=5)
    assert killed["restarts"] == ["gps"]
    assert needed(killed) == {way: pytest.approx(size, rel=0.05) for way, size in needed(calm).items()}
