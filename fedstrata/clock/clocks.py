"""The clocks that an experiment can name: none, virtual and real. Each of these clocks makes the clock objects of the
GPS, the LPSs and the devices.
"""

from collections.abc import Callable
from typing import cast

from fedstrata.clock.device_side import DeviceClock, RealDeviceClock, VirtualDeviceClock, is_asynchronous
from fedstrata.clock.gps_side import GpsClock, Journal, RealGpsClock, VirtualGpsClock
from fedstrata.clock.lps_side import (
    AsynchronousLpsClock,
    LpsClock,
    RealAsynchronousClock,
    RealLpsClock,
    VirtualAsynchronousClock,
    VirtualLpsClock,
)
from fedstrata.clock.round_side import ChildClock, CountingChild, PacedChild
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import BufferedSettings, TimedSettings
from fedstrata.links.tier_links import lps_links
from fedstrata.process.spans import process_spans
from fedstrata.v1 import gps_service_pb2 as gps_pb

LpsClocks = tuple[  # of synchronous and of asynchronous rounds
    Callable[[Experiment, gps_pb.Cluster], LpsClock],
    Callable[[Experiment, gps_pb.Cluster, TimedSettings | BufferedSettings], LpsClock],
]


class Clock:
    """Implement `clock: none`. Nothing is delayed, and no times are calculated."""

    has_links = False  # whether transfers and computing take the times that the experiment file sets
    has_timeline = False  # whether the clock calculates these times, and does not wait for them
    _lps: LpsClocks = (LpsClock, AsynchronousLpsClock)

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def lps(self, cluster: gps_pb.Cluster) -> LpsClock:
        """Return the clock of an LPS for its rounds with devices. `cluster` lists these devices: one cluster or, if
        clusters span LPSs, all devices of the LPS.
        """
        rounds = self.experiment.training.rounds.asynchronous
        synchronous, asynchronous = self._lps
        if rounds is None:
            return synchronous(self.experiment, cluster)
        return asynchronous(self.experiment, cluster, rounds)

    def uplink(self, home_id: str, payload_bytes: int) -> ChildClock:
        """Return the clock for an LPS's calls to the GPS. `payload_bytes` is the size of the largest payload that the
        LPS sends or receives.
        """
        return ChildClock()

    def gps(self, journal: Journal) -> GpsClock:
        """Return the clock for the GPS."""
        return GpsClock(self.experiment, journal)

    def device(self) -> DeviceClock:
        """Return the clock for devices."""
        return DeviceClock(announces=is_asynchronous(self.experiment))


class VirtualClock(Clock):
    """Calculate times from the transferred bytes and from the work that devices report. No process waits for these
    times.
    """

    has_links = has_timeline = True
    _lps = (VirtualLpsClock, VirtualAsynchronousClock)

    def uplink(self, home_id: str, payload_bytes: int) -> ChildClock:
        return CountingChild()

    def gps(self, journal: Journal) -> GpsClock:
        return VirtualGpsClock(self.experiment, journal)

    def device(self) -> DeviceClock:
        return VirtualDeviceClock(self.experiment)


class RealClock(Clock):
    """Delay transfers and computing, so that they take as long as on the configured links and boards."""

    has_links = True
    _lps = (RealLpsClock, RealAsynchronousClock)

    def uplink(self, home_id: str, payload_bytes: int) -> ChildClock:
        return PacedChild(lps_links(self.experiment), home_id, payload_bytes=payload_bytes)

    def gps(self, journal: Journal) -> GpsClock:
        return RealGpsClock(self.experiment, journal)

    def device(self) -> DeviceClock:
        return RealDeviceClock(self.experiment)


CLOCKS = {"none": Clock, "virtual": VirtualClock, "real": RealClock}


def check_repeatable(experiment: Experiment) -> None:
    """Raise ExperimentError if an experiment's rounds are the same in all runs, so that nothing needs repeating."""
    if not is_asynchronous(experiment) or CLOCKS[experiment.clock].has_timeline:
        raise ExperimentError("--arrivals is for asynchronous rounds with clock: none or real; leave it out")


def clock_of(experiment: Experiment) -> Clock:
    """Return the clock that an experiment names. If this process sends trace spans (OpenTelemetry), the returned clock
    also makes the spans.
    """
    clock = CLOCKS[experiment.clock](experiment)
    if (spans := process_spans()) is None:
        return clock
    from fedstrata.clock.spanned import Spanned

    return cast(Clock, Spanned(clock, spans, experiment))
