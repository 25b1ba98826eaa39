"""A session of an LPS without devices, and a GPS that answers as a test says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fedstrata.clock.clocks import clock_of
from fedstrata.datasets import dataset_info
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.models import build_model
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import PlainUpdates, ReceivedModel
from fedstrata.streams.streams import Streams, streams_of
from fedstrata.tasks import make_task
from fedstrata.v1.gps_service_pb2 import Cluster
from lps.holding import LpsParts
from lps.session import Session
from lps.to_gps import NewestPlan
from tests.support.attempts import attempt_of
from tests.support.gatherings import MEAN


def session_of(
    experiment: Experiment, folder: Path, cluster: Cluster, received: ReceivedModel | None = None,
    streams: Streams | None = None,
) -> Session:  # fmt: skip
    """The session of a cluster whose GPS has a global round open with a model; `streams` are not of the experiment."""
    method, model = make_method(experiment), build_model(experiment.model, dataset_info(experiment.data))
    lps = LpsParts(
        experiment=experiment, method=method, streams=streams or streams_of(experiment, method, model), model=model,
        task=make_task(experiment), updates_of=lambda has_member: PlainUpdates(), rule=MEAN, sends_sums=False,
        clock_of=clock_of(experiment).lps,
        state_folder=folder, metrics=ProcessMetrics("lps"), executor=cast(Any, None),
    )  # fmt: skip

    async def fetch() -> ReceivedModel | None:
        return received

    gps = SimpleNamespace(newest_plan=NewestPlan(None), model=fetch, attempt_id=attempt_of(experiment))
    return Session(lps, cluster, cast(Any, gps), EventLog("lps"))
