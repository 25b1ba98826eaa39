"""Every method: the same models and accuracies whatever the processes of its devices, and whoever comes first."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fedstrata.experiment import Experiment
from fedstrata.methods.registry import NAMES
from tests.support.every_method import OPTIONS, experiment_of
from tests.support.records import summary_of
from tests.support.tiers import Tiers

ORDERS = ([[4, 3, 2, 1, 0]], [[3, 0], [4, 2, 1]], [[2], [4], [0], [3], [1]])  # one, two and five processes
KEPT = ("clusters", "model_sha256", "personal_sha256", "device_accuracy", "received_accuracy", "adjusted_rand_index")


async def _summary(experiment: Experiment, folder: Path, processes: list[list[int]]) -> dict[str, Any]:
    """What a run comes to whose devices are started in this order, in so many processes' parts."""
    async with Tiers(experiment, folder) as tiers:
        hosts = [await tiers.host() for _ in processes]  # each stacks the training of its own devices only
        for host, indexes in zip(hosts, processes, strict=True):
            for index in indexes:
                tiers.start_device(host, index)
        record = await tiers.ended()
    summary = summary_of(record.folder)
    assert summary["status"] == "completed", summary["reason"]
    return {key: summary[key] for key in KEPT}


@pytest.mark.runs
@pytest.mark.parametrize("method", NAMES)
def test_one_two_and_five_processes_give_the_same_bits(method: str, tmp_path: Path) -> None:
    experiment = experiment_of(method)
    one, *others = (
        asyncio.run(_summary(experiment, tmp_path / str(len(processes)), processes)) for processes in ORDERS
    )
    assert one["model_sha256"]
    assert len(one["clusters"]) > 1 or method not in OPTIONS
    for other in others:
        assert other == one
