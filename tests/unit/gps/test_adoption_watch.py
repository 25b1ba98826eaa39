"""The watch for absent LPSs tells a silent LPS from a pause of the GPS itself."""

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedstrata.methods import Plan
from fedstrata.process.logs import EventLog
from fedstrata.process.waiting import RECONNECT_S, Changes
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from gps.hosting.adoption import Adoption
from gps.hosting.serving import Serving
from gps.journal.answers import BEFORE
from tests.support.gps_parts import GpsParts

DEADLINE_S = 30


class Watched:
    """Three LPSs and the watch of them, on an event loop whose clock the test moves."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self.ahead_s = loop.time, 0.0
        patch.setattr(loop, "time", lambda: real() + self.ahead_s)
        gps = GpsParts(folder, "method.clusters=3", f"deadlines.gps.deadline_s={DEADLINE_S}")
        gps.enrol(*range(5))
        gps.places.make(BEFORE, Plan(clusters=((0, 2), (1,), (3, 4)), rule="3 as given"))
        self.serving = Serving(gps.experiment, gps.places, gps.journal, OPEN, None)
        for number in range(3):
            self.serving.register(
                pb.RegisterLpsRequest(
                    lps_id=f"lps-{number}", address=f"10.0.0.{number}:1", experiment_sha256=gps.experiment.digest
                )
            )
        self._looks = asyncio.Semaphore(0)
        look = self.serving.check_again_s

        def counted() -> float | None:
            self._looks.release()
            return look()

        patch.setattr(self.serving, "check_again_s", counted)
        rounds: Any = SimpleNamespace(global_round=1, server=SimpleNamespace(restart=lambda home_id: None))
        backend: Any = SimpleNamespace(tell=lambda *told, is_warning: None, label_pods=lambda: None)
        self.adoption = Adoption(
            gps.experiment, serving=self.serving, rounds=rounds, journal=gps.journal, backend=backend,
            changes=Changes(), tell=lambda: None, log=EventLog("test"),
        )  # fmt: skip

    async def pass_s(self, seconds: float) -> None:
        """Move the clock, and wait until the watch has looked at it."""
        self.ahead_s += seconds
        await self._looks.acquire()

    def hear(self, *numbers: int) -> None:
        for number in numbers:
            self.serving.presence.hear(f"lps-{number}")

    def adopted(self) -> dict[str, str]:
        return {handover.home_id: handover.lps_id for handover in self.serving.handovers}


@pytest.mark.parametrize("paused_s", [0.3 * DEADLINE_S, 0.8 * DEADLINE_S, 1.2 * DEADLINE_S, 10 * DEADLINE_S])
async def test_a_pause_of_the_gps_is_not_silence_of_its_lpss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused_s: float
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watch = asyncio.ensure_future(watched.adoption.watch())
    await watched.pass_s(0)
    waits = asyncio.ensure_future(watched.adoption.wait_until(lambda: False))
    for _ in range(10):  # a third of the deadline, within which a live LPS calls
        await watched.pass_s(1)
    await watched.pass_s(paused_s)
    assert watched.adopted() == {}
    for second in range(DEADLINE_S - 10 + round(RECONNECT_S)):
        assert second >= DEADLINE_S - 12 or watched.adopted() == {}
        watched.hear(1, 2)
        await watched.pass_s(1)
    assert watched.adopted() == {"lps-0": "lps-1"}
    assert not waits.done()  # who waits for all LPSs sees the adoption
    for _ in range(DEADLINE_S):
        await watched.pass_s(1)
    assert waits.done()
    watch.cancel()
    with suppress(asyncio.CancelledError):
        await watch
