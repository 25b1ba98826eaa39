"""The virtual clock in the record: timeline.csv, and what of it is in the summary."""

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedstrata.v1 import rounds_pb2 as pb

PARTS = ("down", "compute", "up", "waiting")
TIMELINE_COLUMNS = (
    "tier", "global_round", "lps_round", "lps_id", "begins_s", "ends_s", "ready_s", *(f"{part}_s" for part in PARTS),
    "slowest",
)  # fmt: skip


def timeline_csv(rows: Iterable[pb.LpsRound], global_times: Mapping[int, pb.RoundTimes]) -> str:
    """timeline.csv: LPS rounds, then global rounds; rounds count from 1, parts are means over the children."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TIMELINE_COLUMNS)
    for row in rows:
        writer.writerow(["lps", row.global_round + 1, row.lps_round + 1, row.cluster_id, *_cells(row.times)])
    for global_round, times in sorted(global_times.items()):
        writer.writerow(["gps", global_round + 1, "", "", *_cells(times)])
    return text.getvalue()


def virtual_summary(rows: Sequence[pb.LpsRound], global_times: Mapping[int, pb.RoundTimes]) -> dict[str, Any]:
    """What the summary says: how long it took, the parts of it at each tier, and the SHA-256 of timeline.csv."""
    by_lps: dict[str, list[pb.RoundTimes]] = {}
    for row in rows:
        by_lps.setdefault(row.cluster_id, []).append(row.times)
    lps = [_parts(times) for times in by_lps.values()]
    last = [row.times.ready_ns for row in rows] + [times.ends_ns for times in global_times.values()]
    return {
        "seconds": max(last, default=0) / 1e9,
        "gps": _parts(global_times.values()),
        "lps": {part: round(sum(each[part] for each in lps) / len(lps), 9) for part in PARTS} if lps else _parts([]),
        "timeline_sha256": hashlib.sha256(timeline_csv(rows, global_times).encode()).hexdigest(),
    }


def _cells(times: pb.RoundTimes) -> list[str]:
    """The columns from begins_s on."""
    whole = [_seconds(times.begins_ns), _seconds(times.ends_ns), _seconds(times.ready_ns)]
    return [*whole, *(_seconds(mean) for mean in _means(times)), times.slowest]


def _means(times: pb.RoundTimes) -> list[int]:
    """Each part's mean over the children, in nanoseconds."""
    return [round(getattr(times, f"{part}_ns") / max(1, times.children)) for part in PARTS]


def _parts(rounds: Iterable[pb.RoundTimes]) -> dict[str, float]:
    """Seconds by part, summed over rounds one after the other."""
    totals = [sum(part) for part in zip(*(_means(times) for times in rounds), strict=True)] or [0] * len(PARTS)
    return {part: total / 1e9 for part, total in zip(PARTS, totals, strict=True)}


def _seconds(duration_ns: int) -> str:
    """Exactly: whole seconds and nine digits."""
    return f"{duration_ns // 10**9}.{duration_ns % 10**9:09d}"
