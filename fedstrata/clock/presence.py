"""Which devices are there, and on which LPS they hang, at a time of a run with a schedule: pure."""

from collections.abc import Iterable, Mapping, Sequence

from fedstrata.experiment import Experiment
from fedstrata.experiment.schedule import ScheduleEntry


class Presence:
    """Who is away when."""

    def __init__(self, schedule: Sequence[ScheduleEntry]) -> None:
        self._away: dict[int, list[tuple[int, int | None]]] = {}  # from when on, and until when; None: for good
        for entry in sorted(schedule, key=lambda entry: entry.at):
            if entry.leave is not None:
                until = None if entry.leave.for_ is None else entry.at + entry.leave.for_
                for index in entry.leave.devices:
                    self._away.setdefault(index, []).append((entry.at, until))

    def back_ns(self, index: int, now_ns: int) -> int | None:
        """From when on a device is there; None for one that is gone for good."""
        for begin, until in self._away.get(index, ()):
            if begin <= now_ns and (until is None or now_ns < until):
                if until is None:
                    return None
                now_ns = until
        return now_ns

    def there(self, indexes: Iterable[int], now_ns: int) -> dict[int, int]:
        """Who takes part in a round that begins at a time, and from when on: all who are there, or who is back first.

        Empty where all are gone for good.
        """
        back = {index: at_ns for index in indexes if (at_ns := self.back_ns(index, now_ns)) is not None}
        first_ns = min(back.values(), default=now_ns)
        return {index: at_ns for index, at_ns in back.items() if at_ns == first_ns}


class Homes:
    """On which LPS devices hang that the schedule moves."""

    def __init__(self, schedule: Sequence[ScheduleEntry]) -> None:
        self._moves = sorted((entry for entry in schedule if entry.move is not None), key=lambda entry: entry.at)

    @property
    def moving(self) -> frozenset[int]:
        """The devices that are moved at some time."""
        return frozenset(index for entry in self._moves for index in entry.devices)

    def at(self, now_ns: int) -> Mapping[int, int]:
        """The number of the LPS of each device that has been moved by then."""
        return {
            index: entry.move.home
            for entry in self._moves
            if entry.move is not None and entry.at <= now_ns
            for index in entry.devices
        }

    @property
    def times(self) -> list[int]:
        """When devices are moved, ascending."""
        return sorted({entry.at for entry in self._moves})


def devices_come_to_others(experiment: Experiment) -> bool:
    """Return whether an LPS gets devices in training that it did not have before: moved by the clock, or newcomers."""
    is_moving = experiment.clock != "none" and any(entry.move for entry in experiment.schedule)
    return is_moving or experiment.newcomers is not None


def busy_as_they_move(experiment: Experiment) -> frozenset[int]:
    """Return the devices whose LPS reports until when they are busy, since another LPS may serve them by then."""
    is_deciding = experiment.is_timed and experiment.deadlines.lps.deadline_s is not None
    return Homes(experiment.schedule).moving if is_deciding else frozenset()


def counts_real_time(experiment: Experiment) -> bool:
    """Return whether something happens at a real time since training began."""
    return experiment.clock == "real" and bool(experiment.schedule or experiment.links.has_trace)
