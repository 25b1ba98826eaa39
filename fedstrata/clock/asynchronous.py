"""Asynchronous rounds in virtual time: which updates a round takes, and which arrive in a later round.

Each device announces its update when it has trained. From the announcements, the LPS calculates when each update
arrives, and the rhythm says when the round closes. An update that arrives later stays at its device until the round in
which it arrives. The LPS's report has the updates under way, so a restarted LPS continues with the same rounds.
"""

from collections.abc import Collection, Mapping
from fractions import Fraction

from fedstrata.clock.deadline import Deadline
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline, Round, Sent, check_clock_at, times_of
from fedstrata.experiment.sections import AsynchronousSettings, BufferedSettings, TimedSettings
from fedstrata.rhythms import Contributed, Rhythm, make_factors, make_rhythm
from fedstrata.rhythms.weights import divisor
from fedstrata.rules import Weighing
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb


class UpdateWeights(Weighing):
    """Weigh the updates of one asynchronous round."""

    def __init__(self, settings: AsynchronousSettings, step: float) -> None:
        self._factors, self._step = make_factors(settings.weights), Fraction(str(step))
        self._taken: dict[str, int] = {}  # factor by child

    def take(self, child_id: str, update: Contributed) -> int:
        """Note that the round takes a child's update. Return the factor of its weight."""
        self._taken[child_id] = factor = self._factors.factor(update)
        return factor

    def factor(self, child_id: str) -> int:
        return self._taken.get(child_id, 1)

    def divisor(self, stated: int, weighed: int, whole: int) -> int:
        return divisor(self._factors.counted(stated, weighed), stated, whole, self._step)

    def examples(self, stated: int, divisor: int) -> int:
        return stated

    def largest(self, whole: int) -> int:
        return self._factors.most * divisor(whole, whole, whole, self._step)


class Asynchronous(Deadline):
    """Decide which updates a round takes."""

    can_be_missed = True
    are_announced = True
    are_kept = True
    weighing: UpdateWeights

    def __init__(
        self,
        timed: Round,
        rhythm: Rhythm,
        weighing: UpdateWeights,
        *,
        report: gps_pb.ReportHeader,
        indexes: Mapping[str, int],
    ) -> None:
        """Set `timed`, which calculates the times of updates that begin in this round, and `rhythm`, which closes the
        round. `report` has the updates under way, and `indexes` has the index of each child.
        """
        self._timed, self._rhythm, self._report, self._indexes = timed, rhythm, report, indexes
        self.weighing = weighing
        names = {index: name for name, index in indexes.items()}
        self._under_way = {names[each.child]: each for each in report.under_way if each.child in names}
        self._period_ns, self._ends_ns = report.period_ns, timed.begins_ns
        self._at_work = dict(self._under_way)
        self._taken: dict[str, pb.Contribution] = {}

    @property
    def announced(self) -> Sent:
        return {name: Exchanged.of_flow(each.flow) for name, each in self._at_work.items()}

    def is_update_late(self, child_id: str, updated: Exchanged) -> bool:
        if child_id not in self._at_work:
            self._timed.check_ends(child_id, updated)
        return False

    def late_updates(self, updated: Sent) -> Collection[str]:
        """Return the children with updates that arrive in a later round. `updated` has the transfers of all children at
        work, some of which have worked since an earlier round.
        """
        self._at_work |= {name: self._begun(name, each) for name, each in updated.items() if name not in self._at_work}
        at_work = {name: self._at_work[name] for name in updated}
        opened_ns, number = self._timed.begins_ns, self._timed.number
        arrivals_ns = sorted(each.arrives_ns for each in at_work.values())
        self._period_ns = self._period_ns or self._rhythm.period_ns([at_ns - opened_ns for at_ns in arrivals_ns])
        self._ends_ns = self._rhythm.closes_ns(opened_ns, arrivals_ns, self._period_ns)
        check_clock_at(self._ends_ns)
        self._taken = {name: each for name, each in at_work.items() if each.arrives_ns <= self._ends_ns}
        self._under_way = {name: each for name, each in at_work.items() if name not in self._taken}
        for name, each in self._taken.items():
            gap = number + 1 - self._report.taken_before.get(each.child, 0)
            each.factor = self.weighing.take(name, Contributed(staleness=number - each.from_round, gap=max(1, gap)))
        return list(self._under_way)

    def _begun(self, name: str, updated: Exchanged) -> pb.Contribution:
        """Return the contribution of a child that has been asked in this round."""
        part = self._timed.update_alone(name, updated)
        return pb.Contribution(
            child=self._indexes[name],
            from_round=self._timed.number,
            asked_ns=self._timed.begins_ns,
            arrives_ns=part.ended_ns,
            stream=updated.stream,
            flow=part.flow,
        )

    def times(self, accepted: Collection[str]) -> pb.RoundTimes:
        """Return the times of the round with these updates. A child waits from the arrival of its update until the
        round closes.
        """
        taken = [self._taken[name] for name in sorted(accepted)]
        last_ns = max((each.arrives_ns for each in taken), default=0)
        slowest = next((name for name in sorted(accepted) if self._taken[name].arrives_ns == last_ns), "")
        times = times_of(self._timed.begins_ns, self._ends_ns, [each.flow for each in taken], slowest)
        times.waiting_ns = sum(self._ends_ns - each.arrives_ns for each in taken)
        for each in taken:
            noted = times.contributions.add()
            noted.CopyFrom(each)
            noted.ClearField("flow")
        return times

    def note(self, report: gps_pb.ReportHeader) -> None:
        """Write the state after this round into the report."""
        del report.under_way[:]
        report.under_way.extend(each for _, each in sorted(self._under_way.items()))
        report.period_ns = self._period_ns
        for each in self._taken.values():
            report.taken_before[each.child] = self._timed.number + 1


def asynchronous_round(
    devices: DeviceTimeline,
    settings: TimedSettings | BufferedSettings,
    lps_round: int,
    report: gps_pb.ReportHeader,
    indexes: Mapping[str, int],
) -> Asynchronous:
    """Return an asynchronous round that begins at the report's current time. `indexes` has the index of each device of
    the LPS.
    """
    rhythm, weighing = make_rhythm(settings, len(indexes)), UpdateWeights(settings, settings.step)
    return Asynchronous(devices.round(lps_round, report.now_ns), rhythm, weighing, report=report, indexes=indexes)
