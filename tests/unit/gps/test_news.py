"""Who looks again at what a run is told: those who watch at what devices say, held calls only at what they wait for."""

import asyncio
from pathlib import Path

from fedstrata.experiment_file import parse_experiment
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.trust.security import OPEN
from fedstrata.v1 import gps_service_pb2 as pb
from gps.kubernetes.backend import Backend
from gps.run import Run
from tests.support.gps_parts import IDS, TEXT
from tests.support.loop_time import turns


async def test_a_device_that_enrols_is_shown_and_wakes_no_call_that_is_held_for_another(tmp_path: Path) -> None:
    experiment = parse_experiment(TEXT, overrides=("data={name: digits}", "model={name: mlp, hidden: [4]}"))
    run = Run(
        experiment,
        state=tmp_path,
        metrics=ProcessMetrics("gps"),
        backend=Backend(),
        log=EventLog("test"),
        security=OPEN,
    )
    looked = 0

    def look() -> bool:
        nonlocal looked
        looked += 1
        return False

    held = asyncio.ensure_future(run.changes.wait_until(look, None))
    await turns()
    for index, device_id in enumerate(IDS):
        shown = run.news.next
        request = pb.EnrollRequest(
            device_id=device_id, device_index=index, experiment_sha256=experiment.digest, num_examples=10
        )
        run.enrolment.enroll(request)
        await shown.wait()
    await turns()
    assert looked == 1
    run.tell()
    await turns()
    assert looked == 2
    held.cancel()
    run.journal.close()
