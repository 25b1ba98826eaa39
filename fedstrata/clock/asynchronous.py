"""Asynchronous rounds: which updates a round takes, and which arrive in a later round.

Each device announces its update when it has trained. In virtual time, the LPS calculates from the announcements when
each update arrives. In real time, an update arrives when it is announced. A rule of the experiment (the rhythm) says
when a round closes. An update that arrives after the close stays at its device until the round in which it arrives. The
LPS's report lists these updates, so a restarted LPS continues with the same rounds.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from fedstrata.clock.arrivals import Arrivals, OwnArrivals, SharedArrivals
from fedstrata.clock.deadline import Deadline
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import LAST_NS, DeviceTimeline, Sent, check_clock_at, times_of
from fedstrata.experiment.sections import AsynchronousSettings, BufferedSettings, RoundsSettings, TimedSettings
from fedstrata.methods.cohort import cohort_size
from fedstrata.rhythms import Contributed, Rhythm, make_factors, make_rhythm
from fedstrata.rhythms.weights import divisor
from fedstrata.rules import AS_STATED, Weighing
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb

NEVER = LAST_NS - 1  # arrival of an update that has not arrived yet


class UpdateWeights(Weighing):
    """Weigh the updates of one asynchronous round."""

    def __init__(self, settings: AsynchronousSettings, step: float) -> None:
        self._factors, self._step = make_factors(settings.weights), Fraction(str(step))
        self._taken: dict[str, int] = {}  # factor by child

    def take(self, child_id: str, update: Contributed) -> int:
        """Note that the round takes a child's update. Return the factor by which the update's weight is multiplied."""
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


def weighing_of(rounds: RoundsSettings) -> Weighing:
    """Return the factors of a round's updates before the round has taken any. In synchronous rounds they never change
    a weight.
    """
    settings = rounds.asynchronous
    return AS_STATED if settings is None else UpdateWeights(settings, settings.step)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Describe an asynchronous round that begins."""

    number: int
    begins_ns: int  # nanoseconds since training began
    settings: TimedSettings | BufferedSettings
    report: gps_pb.ReportHeader  # has the updates under way
    indexes: Mapping[str, int]  # index of each child


class Asynchronous(Deadline):
    """Decide which updates a round takes."""

    can_be_missed = True
    are_announced = True
    are_kept = True
    weighing: UpdateWeights

    def __init__(self, opened: Opened) -> None:
        self._opened, self._report = opened, opened.report
        self._rhythm: Rhythm = make_rhythm(opened.settings, len(opened.indexes))
        self.weighing = UpdateWeights(opened.settings, opened.settings.step)
        names = {index: name for name, index in opened.indexes.items()}
        self._under_way = {names[each.child]: each for each in self._report.under_way if each.child in names}
        self._period_ns, self._ends_ns = self._report.period_ns, opened.begins_ns
        self._at_work = dict(self._under_way)
        self._taken: dict[str, pb.Contribution] = {}

    def begin(self, sent: Sent) -> Collection[str]:
        """Return the children that this round does not ask, because enough other children are at work. The children
        that have been at rest for the longest time are asked first.
        """
        before, indexes = self._report.taken_before, self._opened.indexes
        at_rest = sent.keys() - self._at_work.keys()
        first = sorted(at_rest, key=lambda name: (before.get(indexes[name], 0), indexes[name]))
        most = cohort_size(len(indexes), self._opened.settings.concurrency)
        return first[max(0, most - len(sent) + len(at_rest)) :]

    def _begun(self, name: str, sent: Exchanged, arrives_ns: int) -> pb.Contribution:
        """Return the contribution of a child that this round asks."""
        return pb.Contribution(
            child=self._opened.indexes[name],
            from_round=self._opened.number,
            asked_ns=self._opened.begins_ns,
            arrives_ns=arrives_ns,
            stream=sent.stream,
        )

    def _close(self, at_work: Collection[str]) -> int:
        """Return when the round closes, from the arrivals of these children's updates."""
        opened_ns = self._opened.begins_ns
        arrivals_ns = sorted(self._at_work[name].arrives_ns for name in at_work)
        self._period_ns = self._period_ns or self._rhythm.period_ns([at_ns - opened_ns for at_ns in arrivals_ns])
        return self._rhythm.closes_ns(opened_ns, arrivals_ns, self._period_ns)

    def _take(self, at_work: Collection[str]) -> Collection[str]:
        """Take the updates that have arrived when the round ends. Return the children of the other updates."""
        check_clock_at(self._ends_ns)
        number = self._opened.number
        self._taken = {name: self._at_work[name] for name in at_work if self._has_arrived(name)}
        self._under_way = {name: self._at_work[name] for name in at_work if name not in self._taken}
        for name, each in self._taken.items():
            gap = number + 1 - self._report.taken_before.get(each.child, 0)
            each.factor = self.weighing.take(name, Contributed(staleness=number - each.from_round, gap=max(1, gap)))
        return list(self._under_way)

    def _has_arrived(self, name: str) -> bool:
        return self._at_work[name].arrives_ns <= self._ends_ns

    def contributions(self) -> list[pb.Contribution]:
        """Return the updates that the round has taken, without their transfers."""
        found = []
        for _, each in sorted(self._taken.items()):
            found.append(noted := _copied(each))
            noted.ClearField("flow")
        return found

    def note(self, report: gps_pb.ReportHeader) -> None:
        """Write the state after this round into the report."""
        del report.under_way[:]
        report.under_way.extend(each for _, each in sorted(self._under_way.items()))
        report.period_ns = self._period_ns
        for each in self._taken.values():
            report.taken_before[each.child] = self._opened.number + 1


class Calculated(Asynchronous):
    """Decide in virtual time which updates a round takes. All children announce updates before the round closes."""

    def __init__(self, opened: Opened, devices: DeviceTimeline) -> None:
        """Set `devices`, which calculates the times of this round's updates. Over a shared link, it also calculates
        the times of updates from earlier rounds again.
        """
        super().__init__(opened)
        self._timed = devices.round(opened.number, opened.begins_ns)
        self._arrivals: Arrivals = OwnArrivals(self._timed)
        if devices.links.is_shared:
            # Copies: an open round may save the report, which must still have the state at the round's beginning.
            self._at_work = {name: _copied(each) for name, each in self._at_work.items()}
            self._arrivals = SharedArrivals(devices, self._at_work)

    @property
    def announced(self) -> Sent:
        return dict.fromkeys(self._at_work, Exchanged())  # their times are known already

    def is_update_late(self, child_id: str, updated: Exchanged) -> bool:
        if child_id not in self._at_work:
            self._timed.check_ends(child_id, updated)
        return False

    def late_updates(self, updated: Sent) -> Collection[str]:
        """Return the children with updates that arrive in a later round. `updated` has the transfers of all children at
        work, some of which have worked since an earlier round.
        """
        begun = {name: self._begun(name, updated[name], NEVER) for name in updated.keys() - self._at_work.keys()}
        self._arrivals.begin(begun, updated)
        self._at_work.update(begun)
        self._ends_ns = self._close(updated)
        self._arrivals.close(self._ends_ns)
        return self._take(updated)

    def times(self) -> pb.RoundTimes:
        """Return the times of the round. A child waits from the arrival of its update until the round closes."""
        taken = sorted(self._taken.items())
        last_ns = max((each.arrives_ns for _, each in taken), default=0)
        slowest = next((name for name, each in taken if each.arrives_ns == last_ns), "")
        times = times_of(self._opened.begins_ns, self._ends_ns, [each.flow for _, each in taken], slowest)
        times.waiting_ns = sum(self._ends_ns - each.arrives_ns for _, each in taken)
        times.contributions.extend(self.contributions())
        return times


class AsArrived(Asynchronous):
    """Decide in real time which updates a round takes. A round takes the updates that were announced before it closes.
    Some children still train at that time.
    """

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        self._began_ns = time.monotonic_ns() - opened.begins_ns  # when training began, by this machine's clock

    @property
    def announced(self) -> Sent:
        return {name: Exchanged(stream=each.stream) for name, each in self._at_work.items() if each.arrives_ns < NEVER}

    def begin(self, sent: Sent) -> Collection[str]:
        at_rest = super().begin(sent)
        for name in sent.keys() - self._at_work.keys() - set(at_rest):
            self._at_work[name] = self._begun(name, sent[name], NEVER)
        return at_rest

    def is_update_late(self, child_id: str, updated: Exchanged) -> bool:
        self._at_work[child_id].arrives_ns = time.monotonic_ns() - self._began_ns
        return False

    def closes_ns(self, at_work: Collection[str], silent: Collection[str]) -> int | None:
        closes_ns = self._close(at_work)
        return None if closes_ns == NEVER else self._began_ns + closes_ns

    def late_updates(self, updated: Sent) -> Collection[str]:
        self._ends_ns = min(self._close(updated), time.monotonic_ns() - self._began_ns)
        return self._take(updated)


class Repeated(AsArrived):
    """Take the same updates as a round of an earlier run."""

    def __init__(self, taken: Mapping[int, Collection[str]], opened: Opened) -> None:
        """Set `taken`: for each LPS round of the earlier run, by number, the ids of the children with updates that the
        round took.
        """
        super().__init__(opened)
        self._names = taken.get(opened.number, ())

    def closes_ns(self, at_work: Collection[str], silent: Collection[str]) -> int | None:
        return None if set(self._names) & set(silent) else 0

    def _has_arrived(self, name: str) -> bool:
        return name in self._names


def asynchronous_round(
    devices: DeviceTimeline,
    settings: TimedSettings | BufferedSettings,
    lps_round: int,
    report: gps_pb.ReportHeader,
    indexes: Mapping[str, int],
) -> Calculated:
    """Return an asynchronous round in virtual time. It begins at the report's current time. `indexes` has the index of
    each device of the LPS.
    """
    opened = Opened(number=lps_round, begins_ns=report.now_ns, settings=settings, report=report, indexes=indexes)
    return Calculated(opened, devices)


def _copied(each: pb.Contribution) -> pb.Contribution:
    copy = pb.Contribution()
    copy.CopyFrom(each)
    return copy
