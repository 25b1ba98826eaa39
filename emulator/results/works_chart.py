"""Show how devices work in asynchronous rounds, with a bar for each work. A work lasts from the LPS's request for an
update to the arrival of the update. The drawing has as many global rounds as the longest work takes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from emulator.results.read_record import RunRecord
from emulator.results.waits_chart import MOST_LANES, Bar, check_round, laid
from fedstrata.record.timeline import TimelineRow


def updates_by_device(record: RunRecord) -> dict[str, int]:
    """Return the number of each device's updates that rounds have taken. Without asynchronous rounds the result is
    empty.
    """
    if not record.contributions:
        return {}
    counts = Counter(row.device for row in record.contributions)
    return {device: counts[device] for devices in record.summary.by_lps.values() for device in devices}


def picture_of_works(record: RunRecord, global_round: int | None = None) -> dict[str, Any] | None:
    """Return the data for the page's drawing of asynchronous rounds. If the run was not on the virtual clock, return
    None.

    The drawing begins with `global_round`, by default the first. Imagine a work that begins with the drawing, and
    takes as long as the longest work of the run. The drawing ends with the global round in which this work would end.

    Raises:
        DataError: the record has no such global round.
    """
    rounds = {row.global_round: row for row in record.timeline if row.tier == "gps" and row.global_round is not None}
    check_round(record, rounds, global_round)
    if not rounds:
        return None
    first = rounds[min(rounds) if global_round is None else global_round]
    longest_s = max(row.arrived_s - row.asked_s for row in record.contributions)
    last = max(number for number, row in rounds.items() if row.begins_s < first.begins_s + longest_s)
    seconds = rounds[last].ends_s - first.begins_s
    lanes = _lanes(record)
    bars = [*_rounds(rounds.values(), record.timeline), *_works(record)]
    shown = _within([bar for bar in bars if bar.lane in lanes], first.begins_s, seconds)
    return {
        "global_round": first.global_round,
        "until": last,
        "seconds": seconds,
        "lanes": [vars(bar) for bar in sorted(shown, key=lambda bar: lanes.index(bar.lane))],
        "devices": len({row.device for row in record.contributions}),
    }


def _lanes(record: RunRecord) -> list[str]:
    """Return the lanes from top to bottom: the GPS, and each LPS followed by its devices. The devices of an LPS are
    ordered by the mean length of their works, the shortest first. If there are too many devices for the drawing,
    devices at equal distances in this order are shown.
    """
    lasted: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in record.summary.by_lps}
    for row in record.contributions:
        lasted[row.lps_id][row.device].append(row.arrived_s - row.asked_s)
    most = max(1, (MOST_LANES - 1 - len(lasted)) // len(lasted))
    found = ["GPS"]
    for lps, devices in lasted.items():
        names = sorted(devices, key=lambda name: (fmean(devices[name]), name))
        shown = min(most, len(names))
        found += [lps, *(names[(number + 1) * len(names) // shown - 1] for number in range(shown))]
    return found


def _rounds(global_rounds: Iterable[TimelineRow], timeline: Sequence[TimelineRow]) -> list[Bar]:
    """Return the bars of global rounds, and of the rounds of each LPS."""
    found = [
        Bar(lane="GPS", tier="gps", part="waiting", begins_s=row.begins_s, ends_s=row.ends_s) for row in global_rounds
    ]
    for row in timeline:
        if row.tier == "lps" and row.lps_id is not None:
            times = {"begins_s": row.begins_s, "ends_s": row.ends_s}
            found.append(Bar(lane=row.lps_id, tier="lps", part="compute", lps_round=row.lps_round, **times))
    return found


def _works(record: RunRecord) -> list[Bar]:
    """Return the bars of all works, in their parts: receiving the model, computing, and sending the update."""
    parts = {(row.lps_round, row.child): row for row in record.waits if row.tier == "lps"}
    return [
        bar
        for row in record.contributions
        for bar in laid(row.device, "device", row.asked_s, replace(parts[row.lps_round, row.device], waiting_s=0.0))
    ]


def _within(bars: Iterable[Bar], begins_s: float, seconds: float) -> list[Bar]:
    """Return the bars that lie at least partly in the `seconds` seconds from `begins_s` on, cut to this time. The
    times of the returned bars are counted from `begins_s`.
    """
    return [
        replace(bar, begins_s=max(0.0, bar.begins_s - begins_s), ends_s=min(seconds, bar.ends_s - begins_s))
        for bar in bars
        if begins_s < bar.ends_s and bar.begins_s < begins_s + seconds
    ]
