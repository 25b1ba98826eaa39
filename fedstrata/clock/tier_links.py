"""The links between a parent and its children, as the experiment has them: which is whose, and what follows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from fedstrata.clock.calendar import BEFORE, DEVICE_ASKED, DEVICE_LINK, DOWN, LPS_ASKED, LPS_LINK, UP
from fedstrata.clock.course import AnyLink, AnyShared, LinkCourse, LinkCourses
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import WAYS, SharedRates
from fedstrata.experiment.rates import AnyRate, fastest, longest_ns
from fedstrata.process.sleeping import payload_timeout_s
from fedstrata.rpc.uploads import LATER_S, UploadWait
from fedstrata.tensors import CHUNK_BYTES

PIECE_NS = 10_000_000  # of link time: what a payload that is not small is cut into
SHARED_PIECE_NS = 2_500_000  # of a link's that is shared, where the pieces of several come together
LEAST_PIECE_BYTES = 1 << 10
LPS_NAME = re.compile(r"lps-(\d{1,9})")
HEADER_BYTES = 4 << 10  # more than the headers of a message have


@dataclass(frozen=True, kw_only=True)
class TierLinks:
    """The links between a parent and its children: which is whose, and the address of their draws."""

    name: str
    seed: int
    tier: int  # in the address of draws,
    asked_tier: int  # and of those of questions in rounds
    index_of: Callable[[str], int | None]  # of a child; None for one that there is not
    link_of: Callable[[int], AnyLink]  # in the time of the run, from where training begins
    shared: AnyShared

    def capacity(self, way: int) -> AnyRate:
        """The rate of the link that all share."""
        return self.shared.down_rate if way == DOWN else self.shared.up_rate

    def piece_bytes(self, index: int | None, way: int) -> int:
        """How large the pieces of a payload are that is not small: at most ten milliseconds of a child's own link, or a
        quarter of that of a shared one; of a broadcast, whose pieces are no more for being several children's, ten."""
        own = fastest(self.link_of(index).course(WAYS[way])) if index is not None else None
        is_broadcast = self.shared.broadcast and way == DOWN
        shared_ns = PIECE_NS if is_broadcast else SHARED_PIECE_NS
        rates = ((own, PIECE_NS), (fastest(self.capacity(way)), shared_ns))
        limits = [rate * length for rate, length in rates if rate]
        if not limits:
            return CHUNK_BYTES
        wanted = min(limits) // (8 * 10**9)
        return max(LEAST_PIECE_BYTES, min(CHUNK_BYTES, wanted)) & ~7  # whole elements of any encoding

    def slowest_s(self, index: int, payload_bytes: int, children: int) -> float:
        """The longest that a payload takes, down and up, where all children share what is shared."""
        link, bits, took_ns = self.link_of(index), 8 * (payload_bytes + HEADER_BYTES), 0
        for way in (DOWN, UP):
            together_ns = longest_ns(bits * max(1, children), self.capacity(way))
            took_ns += max(longest_ns(bits, link.course(WAYS[way])), together_ns)
        parts = [part for _, part in link.parts] if isinstance(link, LinkCourse) else [link]
        return (took_ns + 2 * max(part.latency + part.jitter for part in parts)) / 1e9


def device_links(experiment: Experiment, *, to_gps: bool = False) -> TierLinks:
    """The links of devices, to their LPS, or to the GPS before training."""
    courses = LinkCourses(experiment.model_copy(update={"schedule": ()}) if to_gps else experiment)
    common, own = courses.of_devices()

    @cache
    def link_of(index: int) -> AnyLink:
        return own.get(index, common).drawn([experiment.seed, DEVICE_LINK, index])

    indexes: Mapping[str, int] = {name: index for index, name in enumerate(experiment.device_ids())}
    return TierLinks(
        name="device-gps" if to_gps else "device-lps",
        seed=experiment.seed,
        tier=BEFORE if to_gps else DEVICE_LINK,
        asked_tier=DEVICE_ASKED,
        index_of=indexes.get,
        link_of=link_of,
        shared=SharedRates() if to_gps else courses.shared(),
    )


def lps_links(experiment: Experiment) -> TierLinks:
    """The links of LPSs, one for each cluster."""
    courses = LinkCourses(experiment)

    @cache
    def link_of(number: int) -> AnyLink:
        return courses.of_lps(number).drawn([experiment.seed, LPS_LINK, number])

    return TierLinks(
        name="lps-gps",
        seed=experiment.seed,
        tier=LPS_LINK,
        asked_tier=LPS_ASKED,
        index_of=_lps_number,
        link_of=link_of,
        shared=SharedRates(),
    )


def upload_wait(experiment: Experiment, payload_bytes: int) -> UploadWait:
    """How long a parent waits for what comes up: longer than its children do; they wait longer on the real clock, too,
    beneath which boards may have links as slow as the configured ones."""
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
