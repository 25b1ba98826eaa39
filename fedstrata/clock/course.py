"""Links whose values change while a run trains, as its schedule says."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedstrata.experiment import Experiment
from fedstrata.experiment.links import WAYS, LinkTimes, SharedRates
from fedstrata.experiment.rates import AnyRate, course_of
from fedstrata.experiment.schedule import CutLink, ScheduleEntry, SetLink

Cuts = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LinkCourse:
    """One link after the other, each from a time on, the first from zero on, and when it carries nothing."""

    parts: tuple[tuple[int, LinkTimes], ...]
    cuts: Cuts

    @cached_property
    def _rates(self) -> dict[str, AnyRate]:
        return {way: course_of([(at, link.source(way)) for at, link in self.parts], self.cuts) for way in WAYS}

    def course(self, direction: str) -> AnyRate:
        """The rate in a direction as time goes by."""
        return self._rates[direction]

    def drawn(self, address: Sequence[int]) -> "LinkCourse":
        """The link with what is generated drawn."""
        return LinkCourse(tuple((at, link.drawn(address)) for at, link in self.parts), self.cuts)

    def at(self, now_ns: int) -> LinkTimes:
        """The link as it is at a time."""
        return [link for start, link in self.parts if start <= now_ns][-1]


AnyLink = LinkTimes | LinkCourse


@dataclass(frozen=True)
class SharedCourse:
    """A shared link whose rates change."""

    down_rate: AnyRate
    up_rate: AnyRate
    broadcast: bool


AnyShared = SharedRates | SharedCourse


class LinkCourses:
    """The links of an experiment while it trains."""

    def __init__(self, experiment: Experiment) -> None:
        self._entries = sorted(experiment.schedule, key=lambda entry: entry.at)
        self._experiment = experiment

    def of_devices(self) -> tuple[AnyLink, dict[int, AnyLink]]:
        """What devices have in common, and the links of those that have others."""
        links = self._experiment.links
        common, own = links.common(), links.of_devices()
        entries = self._about("device-lps")
        named = sorted({*own, *(index for entry in entries for index in _on(entry).devices or ())})
        return self._course(common, [each for each in entries if _on(each).devices is None]), {
            index: self._course(own.get(index, common), [each for each in entries if _is_for(_on(each).devices, index)])
            for index in named
        }

    def of_lps(self, number: int) -> AnyLink:
        """The link of an LPS."""
        entries = [entry for entry in self._about("lps-gps") if _is_for(_on(entry).lps, number)]
        return self._course(self._experiment.links.uplink(), entries)

    def shared(self) -> AnyShared:
        """What the devices of an LPS share."""
        links, entries = self._experiment.links.shared, self._about("shared")
        rates = links.device_lps if links is not None else SharedRates()
        if not entries:
            return rates
        course = self._course(LinkTimes(down_rate=rates.down_rate, up_rate=rates.up_rate), entries)
        down, up = (None if was is None else course.course(way) for way, was in _ways_of(rates))
        return SharedCourse(down_rate=down, up_rate=up, broadcast=rates.broadcast)

    def all_parts(self) -> Iterable[tuple[str, LinkTimes]]:
        """Every link that there will be, and whose it is."""
        common, own = self.of_devices()
        named = {"device-lps": common, **{f"device-lps of device {index}": link for index, link in own.items()}}
        numbers = {number for entry in self._about("lps-gps") for number in _on(entry).lps or ()}
        named |= {"lps-gps": self.of_lps(-1), **{f"lps-gps of lps-{number}": self.of_lps(number) for number in numbers}}
        for where, link in named.items():
            if isinstance(link, LinkCourse):
                yield from ((where, part) for _, part in link.parts)

    def _course(self, link: LinkTimes, entries: Sequence[ScheduleEntry]) -> AnyLink:
        """A link as entries, in the order of time, change it."""
        if not entries:
            return link
        parts = [(0, link)]
        for entry in entries:
            if entry.set_ is not None:
                parts.append((entry.at, entry.set_.resolved(parts[-1][1], self._experiment.links.traces)))
        cuts = tuple((entry.at, entry.at + entry.cut.for_) for entry in entries if entry.cut is not None)
        return LinkCourse(tuple(parts), cuts)

    def _about(self, link: str) -> list[ScheduleEntry]:
        return [entry for entry in self._entries if _is_on_link(entry) and _on(entry).link == link]


def _ways_of(rates: SharedRates) -> list[tuple[str, int | None]]:
    return [("down", rates.down_rate), ("up", rates.up_rate)]


def _is_on_link(entry: ScheduleEntry) -> bool:
    return entry.set_ is not None or entry.cut is not None


def _on(entry: ScheduleEntry) -> SetLink | CutLink:
    found = entry.set_ or entry.cut
    if found is None:
        raise TypeError("the entry is about no link")
    return found


def _is_for(named: Sequence[int] | None, number: int) -> bool:
    return named is None or number in named
