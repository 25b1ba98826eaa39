"""The clock of an LPS for its rounds with devices. An LPS has one clock for each cluster or, if clusters span LPSs, one
clock for all its devices. The clock writes the times of rounds into the LPS's report.
"""

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from fedstrata.clock.asynchronous import AsArrived, Calculated, Opened, Repeated, asynchronous_round
from fedstrata.clock.deadline import Deadline, OwnLinks, SharedUplink
from fedstrata.clock.device_times import Boards, Presence
from fedstrata.clock.round_side import HeldBack, ParentClock
from fedstrata.clock.timeline import DeviceTimeline, LpsTimeline, Sent
from fedstrata.experiment import Experiment, TierDeadline
from fedstrata.experiment.sections import BufferedSettings, TimedSettings
from fedstrata.links.tier_links import device_links
from fedstrata.links.transfers import Transfers
from fedstrata.process.waiting import since_ns, until_ns
from fedstrata.rpc.messages import MOST_COUNTED
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb


class Devices(Protocol):
    """Define the interface to the devices that an LPS has at present."""

    @property
    def indexes(self) -> dict[str, int]:
        """Return the index of each device, by the device's id."""

    def present_from(self, global_round: int, now_ns: int) -> dict[str, int]:
        """Return, by device, the time from which the device takes part in a round that begins at `now_ns`. Raises
        RunStoppedError if all devices have left and will not return.
        """


class LpsClock:
    """Define an LPS's clock. This base class is for `clock: none`: it delays nothing, and keeps no times."""

    kept_here = ""  # state that only the report holds and that an LPS needs to continue, as named in an error message

    def __init__(self, experiment: Experiment, cluster: gps_pb.Cluster) -> None:
        self.wait: TierDeadline = experiment.deadlines.lps  # in real time
        self.presence = Presence(experiment)
        self.rounds = ParentClock()

    async def begins_ns(self, report: gps_pb.ReportHeader, global_round: int, devices: Devices) -> int:
        """Return when the next LPS round begins. On the real clock, wait while all devices are away.

        Raises:
            RunStoppedError: all devices have left and will not return.
        """
        return report.now_ns

    def opens(self, report: gps_pb.ReportHeader, global_round: int, lps_round: int, devices: Devices) -> Deadline:
        """Return the object that decides which devices are late in the next LPS round."""
        return Deadline()

    def answered_ns(self, asked: Callable[[], Sent]) -> int:
        """Return when the last answer to the question of the open round arrives. If a device misses the deadline for
        answers, return the time of this deadline. The function `asked` returns the transfers of all devices that have
        answered.

        If the clock does not calculate these times, return 0.
        """
        return 0

    async def plan_came(self, global_round: int) -> None:
        """Wait until the message about a new plan has crossed the link from the GPS to this LPS."""

    def go_on(self, global_round: int, planned_ns: int) -> None:
        """Let the devices that have answered continue. `planned_ns` is the time at which the GPS made the plan of the
        global round.
        """

    def of_round(self, report: gps_pb.ReportHeader, exchanged: Sent, devices: Devices) -> None:
        """Write the times of the last LPS round into the last row of the report. Set the report's current time to the
        end of the round.
        """

    def repeat(self, taken: Mapping[int, Collection[str]]) -> None:
        """Let each round take the updates of the same children as in an earlier run. `taken` has these children's ids
        by LPS round. If rounds are the same in all runs, do nothing.
        """

    def work(self, report: gps_pb.ReportHeader, global_round: int) -> pb.Work | None:
        """Return the work of an LPS in a global round: the time since the model arrived at the LPS. If the clock
        calculates no times, return None.
        """
        return None

    def received(self, report: gps_pb.ReportHeader, global_round: int, begins_ns: int, whole_bytes: int) -> None:
        """Record the arrival of a global round's model, which has `whole_bytes` bytes. The first LPS round of this
        global round begins now.
        """


class VirtualLpsClock(LpsClock):
    """Calculate times from the transferred bytes and from the work that devices report. The LPS's report contains the
    clock's state, so a restarted LPS can continue.
    """

    kept_here = "the times of clock: virtual"

    def __init__(self, experiment: Experiment, cluster: gps_pb.Cluster) -> None:
        super().__init__(experiment, cluster)
        deadline_s = self.wait.deadline_s
        self.wait = self.wait.model_copy(update={"deadline_s": None})  # the deadline holds in virtual time
        self.rounds = ParentClock(wants_work=True)
        self._home_id = cluster.home_id
        self._devices, self._uplink = DeviceTimeline(experiment), LpsTimeline(experiment)
        self._deadline_ns = round(deadline_s * 1e9) if deadline_s is not None else None
        self._deadline, self._round = Deadline(), self._devices.round(0, 0)  # for the open round

    def opens(self, report: gps_pb.ReportHeader, global_round: int, lps_round: int, devices: Devices) -> Deadline:
        free, indexes = devices.present_from(global_round, report.now_ns), devices.indexes
        self._deadline = Deadline()
        if self._deadline_ns is None:
            self._round = self._devices.round(lps_round, report.now_ns, free)
        else:
            free = {name: max(report.busy_ns.get(indexes[name], 0), at_ns) for name, at_ns in free.items()}
            self._round = self._devices.round(lps_round, report.now_ns, free)
            decides = OwnLinks if self._devices.links.shared.up is None else SharedUplink
            self._deadline = decides(self._round, deadline_ns=self._deadline_ns, free=free, indexes=indexes)
        return self._deadline

    def answered_ns(self, asked: Callable[[], Sent]) -> int:
        return self._round.answered_ns(asked()) if self._deadline.ends_ns is None else self._deadline.ends_ns

    def go_on(self, global_round: int, planned_ns: int) -> None:
        goes_on_ns = self._uplink.told_ns(self._home_id, global_round, planned_ns)
        self._round.go_on(goes_on_ns)
        self._deadline.go_on(goes_on_ns)

    def of_round(self, report: gps_pb.ReportHeader, exchanged: Sent, devices: Devices) -> None:
        row, deadline = report.lps_rounds[-1], self._deadline
        counted, dropped = deadline.transfers(exchanged)
        row.times.CopyFrom(self._round.times(counted, ends_ns=deadline.ends_ns, dropped=dropped))
        row.times.late.extend(deadline.late_flows)
        report.now_ns = row.times.ends_ns
        deadline.note_busy(report.busy_ns, report.now_ns, devices.indexes.values())

    def work(self, report: gps_pb.ReportHeader, global_round: int) -> pb.Work | None:
        began = min(row.times.begins_ns for row in report.lps_rounds if row.global_round == global_round)
        return pb.Work(busy_ns=report.now_ns - began)

    def received(self, report: gps_pb.ReportHeader, global_round: int, begins_ns: int, whole_bytes: int) -> None:
        """Let the first LPS round of a global round begin when the model arrives. Record that the last LPS round waited
        for the GPS until then.
        """
        report.now_ns = self._uplink.arrival_ns(self._home_id, global_round, begins_ns, whole_bytes)
        if report.lps_rounds:
            report.lps_rounds[-1].times.ready_ns = report.now_ns
            report.lps_rounds[-1].times.next_bytes = whole_bytes


class VirtualAsynchronousClock(VirtualLpsClock):
    """Calculate the times of asynchronous rounds. The report also contains the updates that are under way."""

    def __init__(
        self, experiment: Experiment, cluster: gps_pb.Cluster, settings: TimedSettings | BufferedSettings
    ) -> None:
        super().__init__(experiment, cluster)
        self._settings = settings
        self._version: Calculated

    def opens(self, report: gps_pb.ReportHeader, global_round: int, lps_round: int, devices: Devices) -> Deadline:
        self._version = asynchronous_round(self._devices, self._settings, lps_round, report, devices.indexes)
        return self._version

    def of_round(self, report: gps_pb.ReportHeader, exchanged: Sent, devices: Devices) -> None:
        times = self._version.times()
        report.lps_rounds[-1].times.CopyFrom(times)
        report.now_ns = times.ends_ns
        self._version.note(report)


class RealLpsClock(LpsClock):
    """Delay transfers as their links would. Note how much the links have carried, and how long devices have
    computed.
    """

    def __init__(self, experiment: Experiment, cluster: gps_pb.Cluster) -> None:
        super().__init__(experiment, cluster)
        transfers = Transfers(device_links(experiment))
        self._began_unix_ns = cluster.began_unix_ns  # when training began; 0 if nothing depends on the time
        if self._began_unix_ns:
            transfers.began(since_ns(self._began_unix_ns))
        self.rounds = HeldBack(transfers, wants_work=True)
        self._home_id = cluster.home_id
        self._boards, self._uplink = Boards(experiment), LpsTimeline(experiment)

    async def begins_ns(self, report: gps_pb.ReportHeader, global_round: int, devices: Devices) -> int:
        if not self._began_unix_ns:
            return report.now_ns
        now_ns = since_ns(self._began_unix_ns)
        back_ns = min(devices.present_from(global_round, now_ns).values(), default=now_ns)
        await until_ns(time.monotonic_ns() + back_ns - now_ns)
        return back_ns

    async def plan_came(self, global_round: int) -> None:
        now_ns = since_ns(self._began_unix_ns) if self._began_unix_ns else 0
        told_ns = self._uplink.told_ns(self._home_id, global_round, now_ns)
        await until_ns(time.monotonic_ns() + told_ns - now_ns)

    def of_round(self, report: gps_pb.ReportHeader, exchanged: Sent, devices: Devices) -> None:
        """Note how much the links have carried in the round, and how long devices have computed."""
        row, indexes = report.lps_rounds[-1], devices.indexes
        row.times.carried.extend(self.rounds.take(row.lps_round))
        for name, each in sorted(exchanged.items()):
            modelled_ns = self._boards.compute_ns(indexes[name], row.lps_round, each.work.examples)
            row.times.carried.add(
                link="device-lps",
                direction="compute",
                child=indexes[name],
                link_ns=min(modelled_ns, MOST_COUNTED - 1),  # a device can report any number of examples
                achieved_link_ns=each.work.computed_ns,
                examples=each.work.examples,
            )


class AsynchronousLpsClock(LpsClock):
    """Let asynchronous rounds take updates as they arrive in real time."""

    kept_here = "the updates under way of asynchronous rounds"

    def __init__(
        self, experiment: Experiment, cluster: gps_pb.Cluster, settings: TimedSettings | BufferedSettings
    ) -> None:
        super().__init__(experiment, cluster)
        self._settings, self._training_began_ns = settings, cluster.began_unix_ns
        self._decides: Callable[[Opened], AsArrived] = AsArrived
        self._version: AsArrived

    def repeat(self, taken: Mapping[int, Collection[str]]) -> None:
        self._decides = partial(Repeated, taken)

    def opens(self, report: gps_pb.ReportHeader, global_round: int, lps_round: int, devices: Devices) -> Deadline:
        self._version = self._decides(
            Opened(
                number=lps_round,
                begins_ns=since_ns(self._training_began_ns),
                settings=self._settings,
                report=report,
                indexes=devices.indexes,
            )
        )
        return self._version

    def of_round(self, report: gps_pb.ReportHeader, exchanged: Sent, devices: Devices) -> None:
        super().of_round(report, exchanged, devices)
        report.lps_rounds[-1].times.contributions.extend(self._version.contributions())
        self._version.note(report)


class RealAsynchronousClock(AsynchronousLpsClock, RealLpsClock):
    """Let an asynchronous round take an update when the update's link has carried it."""
