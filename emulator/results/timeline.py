"""A finished run on the virtual clock: timeline.csv as values, and accuracy over virtual time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

if TYPE_CHECKING:
    from emulator.results.record import RunRecord

Tier = Literal["before", "lps", "gps"]
Seconds = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
PARTS = ("down", "compute", "up", "waiting")


@checked_dataclass(frozen=True, kw_only=True)
class Parts:
    """Seconds of a tier's rounds: the model's way down, computing, the update's way up, waiting for the slowest."""

    down: Seconds = 0.0
    compute: Seconds = 0.0
    up: Seconds = 0.0
    waiting: Seconds = 0.0

    @property
    def total(self) -> float:
        return self.down + self.compute + self.up + self.waiting


@checked_dataclass(frozen=True, kw_only=True)
class Virtual:
    """`virtual` of summary.json."""

    seconds: Seconds
    before: Parts = Parts()
    gps: Parts
    lps: Parts
    timeline_sha256: str = ""


@checked_dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One row of timeline.csv; `lps_round` and `lps_id` are None in a global round's, and all three before training."""

    tier: Tier
    global_round: PositiveInt | None
    lps_round: PositiveInt | None
    lps_id: str | None
    begins_s: Seconds
    ends_s: Seconds
    ready_s: Seconds
    down_s: Seconds
    compute_s: Seconds
    up_s: Seconds
    waiting_s: Seconds
    slowest: str | None


TIMELINE_ROW, VIRTUAL = TypeAdapter(TimelineRow), TypeAdapter(Virtual)


def accuracy_over_time(record: "RunRecord") -> list[tuple[float, float]]:
    """Virtual seconds and mean accuracy over the LPSs' models, each as it was last measured, once all have been."""
    ready: Mapping[tuple[str | None, int | None], float] = {
        (row.lps_id, row.lps_round): row.ready_s for row in record.timeline if row.tier == "lps"
    }
    measured = sorted(
        (ready[row.lps_id, row.lps_round], row.lps_id, row.accuracy)
        for row in record.rounds
        if row.accuracy is not None and (row.lps_id, row.lps_round) in ready
    )
    latest: dict[str, float] = {}
    points: dict[float, float] = {}
    for at_s, lps_id, accuracy in measured:
        latest[lps_id] = accuracy
        if len(latest) == len(record.summary.by_lps):
            points[at_s] = sum(latest.values()) / len(latest)
    return list(points.items())
