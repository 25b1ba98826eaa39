"""A device that comes after grouping finds its place without anybody being grouped again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fedstrata.errors import ExcludedError
from fedstrata.v1 import rounds_pb2 as pb
from gps.run import Run
from gps.servicer import GpsServicer
from tests.support.records import rows_of
from tests.support.tiers import Clock, Tiers, small

EXPERIMENT = small(
    "partition.tasks.0.devices=4",
    "partition.tasks.1.devices=3",
    "deadlines.enrolment.deadline_s=300",
    "deadlines.enrolment.quorum_ratio=0.8",
    "training.global_rounds=3",
)
LATE = 6  # the last device of the second task


class FirstRoundHeld(GpsServicer):
    """A GPS that takes no aggregate of the first global round before the test says so."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.gate = asyncio.Event()

    async def SubmitAggregate(self, requests: AsyncIterator[pb.UpdatePart], context: Any) -> Any:
        await self.gate.wait()
        return await super().SubmitAggregate(requests, context)


async def test_a_late_device_joins_the_cluster_it_is_relevant_to_from_the_next_global_round_on(tmp_path: Path) -> None:
    held: list[FirstRoundHeld] = []

    def servicer(run: Run) -> FirstRoundHeld:
        held.append(FirstRoundHeld(run))
        return held[0]

    clock = Clock()
    async with Tiers(EXPERIMENT, tmp_path / "run", servicer) as tiers:
        host = await tiers.start_devices([index for index in range(EXPERIMENT.device_count) if index != LATE])
        await tiers.until(lambda: tiers.run.roster.states()["answered"] == EXPERIMENT.device_count - 1)
        await clock.advance(300)
        await tiers.until(lambda: tiers.run.phase == "training")
        grouped = tiers.run.places.clusters
        late = tiers.start_device(host, LATE)
        await tiers.until(lambda: tiers.run.roster.states()["assigned"] == EXPERIMENT.device_count)
        held[0].gate.set()
        record = await tiers.ended()
        await late

    late_id, clusters = EXPERIMENT.device_ids()[LATE], record.summary.clusters
    assert {name: [d for d in devices if d != late_id] for name, devices in clusters.items()} == grouped
    assert record.summary.cluster_of_device[late_id] == record.summary.cluster_of_device["device-004"]
    assert record.summary.adjusted_rand_index == 1.0
    assert record.relevance is not None
    assert late_id not in record.relevance.ids
    assert devices_by_round(record.folder, record.summary.cluster_of_device[late_id]) == [2, 2, 3, 3, 3, 3]
    assert [(gone.device, gone.stage) for gone in record.summary.excluded] == [(late_id, "enrolment")]


async def test_a_late_device_that_nobody_can_place_is_refused_with_the_reason(tmp_path: Path) -> None:
    experiment = small(
        "method={name: ifca, clusters: 2}", "training.lps_rounds_per_global_round=1",
        "deadlines.enrolment.deadline_s=300", "deadlines.enrolment.quorum_ratio=0.8",
    )  # fmt: skip
    clock = Clock()
    async with Tiers(experiment, tmp_path / "run") as tiers:
        host = await tiers.start_devices([0, 1, 2, 3])
        await tiers.until(lambda: tiers.run.roster.states()["enrolled"] == 4)
        await clock.advance(300)
        await tiers.until(lambda: tiers.run.plans.is_made)
        with pytest.raises(ExcludedError, match="device-004 enrolled after the devices were grouped"):
            await tiers.start_device(host, 4)
        assert (await tiers.ended()).summary.status == "completed"


def devices_by_round(folder: Path, cluster: str) -> list[int]:
    """How many devices a cluster had in each of its LPS rounds."""
    return [int(row["devices"]) for row in rows_of(folder, "rounds.csv") if row["lps_id"] == cluster]
