"""The links of parents and children during training. Their rates and latencies change as the schedule says.

To add a kind of link, add a setting to `fedstrata.experiment.links`, and turn it into a rate schedule in `Link.rate`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from fedstrata.errors import UnknownChildError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import WAYS, LinkTimes, SharedRates
from fedstrata.experiment.rates import AnyRate, end_of, fastest, longest_ns, rate_schedule
from fedstrata.experiment.schedule import CutLink, ScheduleEntry, SetLink
from fedstrata.process.quoting import quoted
from fedstrata.process.time_limits import payload_timeout_s
from fedstrata.rpc.upload_limit import LATER_S, UploadWait
from fedstrata.tensors import CHUNK_BYTES

DOWN, UP = 0, 1
JITTER = 0x6A697474  # "jitt": an address that only these draws use
# The next number in the address of a draw tells what is drawn for: a round's transfer over a device's or an LPS's link,
# a question before training, or a question in a round.
DEVICE_LINK, LPS_LINK, BEFORE, DEVICE_ASKED, LPS_ASKED = 0, 1, 2, 3, 4
PIECE_NS = 10_000_000  # longest time that a link needs for one piece of a large payload
SHARED_PIECE_NS = 2_500_000  # the same on a shared link, on which pieces of several children can meet
LEAST_PIECE_BYTES = 1 << 10
LPS_NAME = re.compile(r"lps-(\d{1,9})")
HEADER_BYTES = 4 << 10  # more than the headers of a message take


@dataclass(frozen=True)
class Link:
    """Hold how a link changes over time. Each of `parts` has a time and the settings that apply from then on. The first
    time is 0. Each of `cuts` has the beginning and the end of an outage.
    """

    parts: tuple[tuple[int, LinkTimes], ...]
    cuts: tuple[tuple[int, int], ...] = ()

    @cached_property
    def _rates(self) -> tuple[AnyRate, ...]:
        return tuple(
            rate_schedule([(at_ns, link.source(way)) for at_ns, link in self.parts], self.cuts) for way in WAYS
        )

    def rate(self, way: int) -> AnyRate:
        """Return the rate over time in a direction, `DOWN` or `UP`."""
        return self._rates[way]

    def drawn(self, address: Sequence[int]) -> "Link":
        """Return this link with a trace drawn for each setting that describes a random trace. The random numbers depend
        on `address` (seed, tier and child) and on the direction.
        """
        return replace(self, parts=tuple((at_ns, link.drawn(address)) for at_ns, link in self.parts))

    def at(self, now_ns: int) -> LinkTimes:
        """Return the link's settings at a time."""
        return [link for start_ns, link in self.parts if start_ns <= max(0, now_ns)][-1]

    @property
    def longest_latency_ns(self) -> int:
        """The largest latency that a transfer can have."""
        return max(link.latency + link.jitter for _, link in self.parts)


@dataclass(frozen=True, kw_only=True)
class SharedCapacity:
    """Hold the rates of a link that all children of a parent share. The rate of a direction without a limit is None."""

    down: AnyRate = None
    up: AnyRate = None
    is_broadcast: bool = False  # whether a model crosses the link once for all its receivers

    def rate(self, way: int) -> AnyRate:
        """Return the shared rate over time in a direction, `DOWN` or `UP`."""
        return self.down if way == DOWN else self.up


class ScheduledLinks:
    """Hold the links of an experiment, with the changes that its schedule makes."""

    def __init__(self, experiment: Experiment) -> None:
        self._links = experiment.links
        entries = sorted(experiment.schedule, key=lambda entry: entry.at)
        self._entries = [entry for entry in entries if entry.set_ is not None or entry.cut is not None]

    def of_devices(self) -> tuple[Link, dict[int, Link]]:
        """Return the link of all devices without settings of their own. Also return, by index, the links of the other
        devices.
        """
        common, own = self._links.common(), self._links.of_devices()
        entries = self._about("device-lps")
        named = sorted({*own, *(index for entry in entries for index in _change(entry).devices or ())})
        return self._changed(common, [each for each in entries if _change(each).devices is None]), {
            index: self._changed(
                own.get(index, common), [each for each in entries if _is_for(_change(each).devices, index)]
            )
            for index in named
        }

    def of_lps(self, number: int) -> Link:
        """Return the link of an LPS."""
        entries = [entry for entry in self._about("lps-gps") if _is_for(_change(entry).lps, number)]
        return self._changed(self._links.uplink(), entries)

    def shared(self) -> SharedCapacity:
        """Return the rates of the link that the devices of an LPS share, with the changes of the schedule."""
        rates = self._links.shared.device_lps if self._links.shared is not None else SharedRates()
        link = self._changed(LinkTimes(down_rate=rates.down_rate, up_rate=rates.up_rate), self._about("shared"))
        return SharedCapacity(
            down=None if rates.down_rate is None else link.rate(DOWN),
            up=None if rates.up_rate is None else link.rate(UP),
            is_broadcast=rates.broadcast,
        )

    def all_parts(self) -> Iterable[tuple[str, LinkTimes]]:
        """Yield pairs of a link's name and the link's settings. Each link has one pair for its first settings, and one
        pair for its settings after each change of the schedule.
        """
        common, own = self.of_devices()
        named = {"device-lps": common, **{f"device-lps of device {index}": link for index, link in own.items()}}
        numbers = {number for entry in self._about("lps-gps") for number in _change(entry).lps or ()}
        named |= {"lps-gps": self.of_lps(-1), **{f"lps-gps of lps-{number}": self.of_lps(number) for number in numbers}}
        for where, link in named.items():
            yield from ((where, part) for _, part in link.parts)

    def _changed(self, link: LinkTimes, entries: Sequence[ScheduleEntry]) -> Link:
        """Return a link with the changes that `entries` of the schedule make. The entries are in the order of time."""
        parts = [(0, link)]
        for entry in entries:
            if entry.set_ is not None:
                parts.append((entry.at, entry.set_.resolved(parts[-1][1], self._links.traces)))
        cuts = tuple((entry.at, entry.at + entry.cut.for_) for entry in entries if entry.cut is not None)
        return Link(tuple(parts), cuts)

    def _about(self, link: str) -> list[ScheduleEntry]:
        return [entry for entry in self._entries if _change(entry).link == link]


def _change(entry: ScheduleEntry) -> SetLink | CutLink:
    found = entry.set_ or entry.cut
    if found is None:
        raise TypeError("the entry of the schedule has neither set nor cut")
    return found


def _is_for(named: Sequence[int] | None, number: int) -> bool:
    return named is None or number in named


def drawn_latency(latency_ns: int, jitter_ns: int, address: Sequence[int]) -> int:
    """Return the latency of a transfer: the mean latency plus a random deviation, uniform between `-jitter_ns` and
    `jitter_ns`. The deviation depends on `address`: seed, tier, round, child and direction.
    """
    if not jitter_ns:
        return latency_ns
    draw = np.random.default_rng([address[0], JITTER, *address[1:]]).integers(-jitter_ns, jitter_ns, endpoint=True)
    return latency_ns + int(draw)


@dataclass
class Line:
    """Represent one direction of a link. The link carries one transfer after the other."""

    rate: AnyRate
    free_ns: int = 0

    def carry(self, now_ns: int, bits: int) -> int:
        """Add a transfer that may start at `now_ns`. Return the time at which the last bit of the transfer leaves."""
        self.free_ns = end_of(max(now_ns, self.free_ns), bits, self.rate)
        return self.free_ns


@dataclass(frozen=True, kw_only=True)
class TierLinks:
    """Hold the links between a parent and its children, and the seed and the numbers from which random latencies are
    drawn.
    """

    name: str
    seed: int
    tier: int  # number of the tier in the addresses of draws
    asked_tier: int  # the same in the addresses of draws for questions in rounds
    index_of: Callable[[str], int | None]  # index of a child by its id; None if there is no such child
    link_of: Callable[[int], Link]  # link of a child by its index; its times count from the start of training
    shared: SharedCapacity

    @property
    def is_shared(self) -> bool:
        """True if the children share a link in at least one direction."""
        return self.shared.down is not None or self.shared.up is not None

    def number_of(self, child_id: str) -> int:
        """Return the index of a child. Raises UnknownChildError if the run has no such child."""
        index = self.index_of(child_id)
        if index is None:
            raise UnknownChildError(f"this run has no child {quoted(child_id)}")
        return index

    def latency_ns(self, number: int, index: int, way: int, start_ns: int, *, is_answer: bool = False) -> int:
        """Return the latency of a transfer in the round `number` to or from the child `index`. It depends on the link's
        settings at `start_ns`, when the transfer starts. `is_answer` says that the transfer answers a question in the
        round.
        """
        link = self.link_of(index).at(start_ns)
        tier = self.asked_tier if is_answer else self.tier
        return drawn_latency(link.latency, link.jitter, [self.seed, tier, number, index, way])

    def piece_bytes(self, index: int | None, way: int) -> int:
        """Return the size, in bytes, of the pieces in which a payload is sent in the direction `way` (UP or DOWN).

        A piece takes at most 10 ms on the link of the child `index`. On a shared link it takes at most 2.5 ms or, if
        the shared link broadcasts models, at most 10 ms downwards. However, a piece has at least 1 KiB. If `index` is
        None, only the shared link limits the size. Use this for the broadcast, which is not for one child.
        """
        own = fastest(self.link_of(index).rate(way)) if index is not None else None
        shared_ns = PIECE_NS if self.shared.is_broadcast and way == DOWN else SHARED_PIECE_NS
        rates = ((own, PIECE_NS), (fastest(self.shared.rate(way)), shared_ns))
        limits = [rate * length for rate, length in rates if rate]
        if not limits:
            return CHUNK_BYTES
        wanted = min(limits) // (8 * 10**9)
        return max(LEAST_PIECE_BYTES, min(CHUNK_BYTES, wanted)) & ~7  # whole elements in every encoding

    def slowest_s(self, index: int, payload_bytes: int, children: int) -> float:
        """Return the longest time, in seconds, that a child can need to receive one payload and to send one payload.
        `children` is the number of children that use the shared link.
        """
        link, bits, took_ns = self.link_of(index), 8 * (payload_bytes + HEADER_BYTES), 0
        for way in (DOWN, UP):
            together_ns = longest_ns(bits * max(1, children), self.shared.rate(way))
            took_ns += max(longest_ns(bits, link.rate(way)), together_ns)
        return (took_ns + 2 * link.longest_latency_ns) / 1e9


def device_links(experiment: Experiment, *, to_gps: bool = False) -> TierLinks:
    """Return the links of devices to their LPS. With `to_gps`, return the links of devices to the GPS before
    training.
    """
    links = ScheduledLinks(experiment.model_copy(update={"schedule": ()}) if to_gps else experiment)
    common, own = links.of_devices()

    @cache
    def link_of(index: int) -> Link:
        return own.get(index, common).drawn([experiment.seed, DEVICE_LINK, index])

    indexes: Mapping[str, int] = {name: index for index, name in enumerate(experiment.device_ids())}
    return TierLinks(
        name="device-gps" if to_gps else "device-lps",
        seed=experiment.seed,
        tier=BEFORE if to_gps else DEVICE_LINK,
        asked_tier=DEVICE_ASKED,
        index_of=indexes.get,
        link_of=link_of,
        shared=SharedCapacity() if to_gps else links.shared(),
    )


def lps_links(experiment: Experiment) -> TierLinks:
    """Return the links of LPSs to the GPS."""
    links = ScheduledLinks(experiment)

    @cache
    def link_of(number: int) -> Link:
        return links.of_lps(number).drawn([experiment.seed, LPS_LINK, number])

    return TierLinks(
        name="lps-gps",
        seed=experiment.seed,
        tier=LPS_LINK,
        asked_tier=LPS_ASKED,
        index_of=_lps_number,
        link_of=link_of,
        shared=SharedCapacity(),
    )


def upload_wait(experiment: Experiment, payload_bytes: int) -> UploadWait:
    """Return the limit on the time that a parent waits for the parts of an upload. It is longer than the child's own
    deadline for the upload, so that the child gives up first.

    If links delay transfers in real time, the limit includes the longest time that a transfer takes on the links.
    """
    wait = UploadWait(first_s=payload_timeout_s(max(payload_bytes, CHUNK_BYTES)) + LATER_S)
    if not experiment.is_paced:
        return wait
    devices = experiment.device_count
    slowest_s = max(
        links.slowest_s(number, payload_bytes, devices)
        for links in (device_links(experiment), lps_links(experiment))
        for number in range(devices)
    )
    return replace(wait, first_s=wait.first_s + slowest_s)


def _lps_number(name: str) -> int | None:
    found = LPS_NAME.fullmatch(name)
    return int(found[1]) if found else None
