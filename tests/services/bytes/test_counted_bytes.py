"""The bytes of a run depend neither on which device of a process comes first, nor on calls after the run."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device.agent import DeviceAgent
from device.rounds import DeviceRounds
from device.work import DeviceProcess
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import LinkKey, ProcessMetrics
from fedstrata.trust.security import OPEN
from gps.kubernetes.backend import Backend
from gps.run import Run
from tests.support.programs import LINKS, Counts, total_bytes
from tests.support.records import summary_of
from tests.support.tiers import Tiers, counts, small


class Told(dict[str, Any]):
    """What the devices of a process hold, with word of the first."""

    def __init__(self) -> None:
        self.first = asyncio.Event()

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.first.set()


class RoundsBehind(DeviceRounds):
    """Rounds of a device that asks for its first model once another of its process has one."""

    async def take_part(self, *what: Any) -> None:
        await self._host.held.first.wait()  # type: ignore[attr-defined]
        await super().take_part(*what)


class Behind(DeviceAgent):
    """A device that takes part so."""

    def __init__(self, host: DeviceProcess, device_index: int) -> None:
        super().__init__(host, device_index)
        self._rounds = RoundsBehind(host, device_index, self._store, self._made, self._log)


async def test_the_final_models_which_devices_only_measure_are_no_bytes_of_training(tmp_path: Path) -> None:
    """Each LPS round asks one device, and sends it a model. Afterwards all devices receive the final model."""
    experiment = small("method=fedavg", "training.participation=1")
    async with Tiers(experiment, tmp_path) as tiers:
        for index in range(experiment.device_count):
            tiers.start_device(await tiers.host(), index)
        record = await tiers.ended()
    summary = summary_of(record.folder)
    training, whole = summary["training_bytes"]["down"], summary["bytes"]["device-lps"]["down"]
    a_model = training / experiment.training.lps_rounds
    assert whole - training == pytest.approx(experiment.device_count * a_model, rel=0.02)


async def model_bytes(folder: Path, of: type[DeviceAgent]) -> int:
    """What asking for models takes, where the last device is of a kind."""
    experiment = small("method=fedavg")
    async with Tiers(experiment, folder) as tiers:
        host: DeviceProcess = replace(await tiers.host(), held=Told())
        for index in range(experiment.device_count):
            last = index == experiment.device_count - 1
            tiers.start_device(host if of is Behind else await tiers.host(), index, of if last else DeviceAgent)
        record = await tiers.ended()
    summary = summary_of(record.folder)
    return int(summary["bytes_by_kind"]["device-lps"]["model"]["up"])


async def test_a_device_behind_others_of_its_process_sends_what_it_sends_alone(tmp_path: Path) -> None:
    alone = await model_bytes(tmp_path / "alone", DeviceAgent)
    assert await model_bytes(tmp_path / "behind", Behind) == alone


async def test_devices_that_come_back_after_the_run_change_no_count(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path) as tiers:
        await tiers.start_devices()
        record = await tiers.ended()
        host = await tiers.host()  # a replaced pod
        await asyncio.gather(*(tiers.start_device(host, index) for index in range(5)))
        counted: Counts = Counter()
        for metrics in (tiers.metrics, *(lps.metrics for lps in tiers.lps.values())):
            counted.update({(key.link, key.direction, key.kind, key.end): n for key, n in counts(metrics).items()})
    assert summary_of(record.folder)["bytes"] == {
        link: {way: total_bytes(counted, link, way, "parent") for way in ("up", "down")} for link in LINKS
    }
    assert record.summary.repeated_bytes is None


async def test_a_gps_that_is_restarted_after_the_run_counts_what_the_record_has(tmp_path: Path) -> None:
    async with Tiers(small(), tmp_path) as tiers:
        await tiers.start_devices()
        await tiers.ended()
        at_end = counts(tiers.metrics)
    metrics = ProcessMetrics("gps")
    state = tmp_path / "gps"
    run = Run(small(), state=state, metrics=metrics, backend=Backend(), log=EventLog("gps"), security=OPEN)
    metrics.links.counter(LinkKey(link="device-gps", direction="up", kind="control", end="parent"))(100)
    run.journal.close()
    assert counts(metrics) == at_end
