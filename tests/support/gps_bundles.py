"""What LPSs tell the GPS of their devices' answers in global rounds."""

from collections.abc import Callable

from fedstrata.clock.clocks import clock_of
from fedstrata.clock.gps_side import GpsClock
from fedstrata.datasets import dataset_info
from fedstrata.models import build_model
from fedstrata.process.logs import EventLog
from fedstrata.process.waiting import Changes
from fedstrata.streams.streams import streams_of
from gps.plans.bundles import Bundles
from tests.support.gps_parts import GpsParts


def bundles_of(
    gps: GpsParts, changes: Changes, awaited: Callable[[], set[str]], clock: GpsClock | None = None
) -> Bundles:
    """The bundles of a GPS that waits for these LPSs."""
    model = build_model(gps.experiment.model, dataset_info(gps.experiment.data))
    return Bundles(
        gps.method, streams_of(gps.experiment, gps.method, model), places=gps.places, journal=gps.journal,
        changes=changes, log=EventLog("test"), clock=clock or clock_of(gps.experiment).gps(gps.journal.clock),
        awaited=awaited,
    )  # fmt: skip
