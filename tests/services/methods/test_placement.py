"""A run of every method, with devices that compute elsewhere than on the CPU: nothing is computed on the CPU."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from device.kernels import kernels
from device.stacked.training import Stacked
from fedstrata.methods.registry import NAMES
from fedstrata.streams.architectures import Architectures
from tests.support.every_method import experiment_of
from tests.support.placement import META, HereAndNow, Placement, placement
from tests.support.records import summary_of
from tests.support.tiers import Tiers


@pytest.mark.runs
@pytest.mark.parametrize("method", NAMES)
def test_a_methods_tensors_are_all_where_its_devices_compute(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = kernels()  # computed before tensors are noted
    monkeypatch.setattr("device.agent.kernels", lambda processor: here)  # meta has no bits to name

    async def noted() -> Placement:
        async with Tiers(experiment_of(method), tmp_path) as tiers:
            host = await tiers.host(compute_thread=HereAndNow(Stacked()))
            host = replace(host, architectures=Architectures(host.experiment, host.method, META))
            with placement(monkeypatch) as found:
                for index in range(5):
                    tiers.start_device(host, index)
                record = await tiers.ended()
        summary = summary_of(record.folder)
        assert summary["status"] == "completed", summary["reason"]
        return found

    found = asyncio.run(noted())
    assert found.elsewhere == set()
    assert found.reads
