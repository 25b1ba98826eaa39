"""The virtual clock in the record: timeline.csv, and what of it is in the summary."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstrata.clock.before import Asked
from fedstrata.v1 import rounds_pb2 as pb
from gps.record.csv_lines import csv_lines

PARTS = ("down", "compute", "up", "waiting")
TIMELINE_COLUMNS = (
    "tier", "global_round", "lps_round", "lps_id", "begins_s", "ends_s", "ready_s", *(f"{part}_s" for part in PARTS),
    "slowest",
)  # fmt: skip


FLOW_COLUMNS = (
    "tier", "global_round", "lps_round", "lps_id", "child", "down_bytes", "up_bytes", "examples", "stream",
    "answer_bytes", "answer_examples",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """What the GPS has worked out: the questions, from zero on, and the global rounds, from where training begins."""

    before: pb.RoundTimes = field(default_factory=pb.RoundTimes)
    global_rounds: Mapping[int, pb.RoundTimes] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)  # what `before` was worked out from, by question


def timeline_csv(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[str]:
    """timeline.csv: questions, LPS rounds, global rounds; rounds count from 1, parts are means over the children."""
    return csv_lines(TIMELINE_COLUMNS, _timeline(rows, times))


def _timeline(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[list[object]]:
    since_ns = times.before.ends_ns
    yield ["before", "", "", "", *_cells(times.before, 0)]
    for row in rows:
        yield ["lps", row.global_round + 1, row.lps_round + 1, row.cluster_id, *_cells(row.times, since_ns)]
    for global_round, closed in sorted(times.global_rounds.items()):
        yield ["gps", global_round + 1, "", "", *_cells(closed, since_ns)]


def flows_csv(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[str]:
    """flows.csv: what timeline.csv was worked out from; a question's name stands for an LPS, and after the last global
    round there is a row for the final model that went to each LPS."""
    return csv_lines(FLOW_COLUMNS, _flows(rows, times))


def _flows(rows: Iterable[pb.LpsRound], times: RunTimes) -> Iterator[list[object]]:
    for name, question in times.asked.items():
        for index, size in sorted(question.answer_bytes.items()):
            yield ["before", "", "", name, index, 0, size, question.examples[index], 0, 0, 0]
    last: dict[str, int] = {}
    for row in rows:
        last[row.cluster_id] = row.times.next_bytes
        yield from _flows_of(["lps", row.global_round + 1, row.lps_round + 1, row.cluster_id], row.times)
    for global_round, closed in sorted(times.global_rounds.items()):
        yield from _flows_of(["gps", global_round + 1, "", ""], closed)
    following = max(times.global_rounds, default=-1) + 2
    for cluster_id, size in last.items():
        yield ["gps", following, "", "", int(cluster_id.rpartition("-")[2]), size, 0, 0, 0, 0, 0]


def _flows_of(of: Sequence[object], times: pb.RoundTimes) -> Iterator[list[object]]:
    for flow in times.flows:
        said = (flow.down_bytes, flow.up_bytes, flow.examples, flow.stream, flow.answer_bytes, flow.answer_examples)
        yield [*of, flow.child, *said]


def virtual_summary(rows: Iterable[pb.LpsRound], times: RunTimes) -> dict[str, Any]:
    """What the summary says: how long it took, the parts of it at each tier, and the SHA-256 of timeline.csv."""
    by_lps: dict[str, list[int]] = {}
    last_ns = max((closed.ends_ns for closed in times.global_rounds.values()), default=0)
    for row in rows:
        sums = by_lps.get(row.cluster_id, [0] * len(PARTS))
        by_lps[row.cluster_id] = [a + b for a, b in zip(sums, _means(row.times), strict=True)]
        last_ns = max(last_ns, row.times.ready_ns)
    lps = [_named(sums) for sums in by_lps.values()]
    digest = hashlib.sha256()
    for line in timeline_csv(rows, times):
        digest.update(line.encode())
    return {
        "seconds": (times.before.ends_ns + last_ns) / 1e9,
        "before": _parts([times.before]),
        "gps": _parts(times.global_rounds.values()),
        "lps": {part: round(sum(each[part] for each in lps) / len(lps), 9) for part in PARTS} if lps else _parts([]),
        "timeline_sha256": digest.hexdigest(),
    }


def _cells(times: pb.RoundTimes, since_ns: int) -> list[str]:
    """The columns from begins_s on, of a round whose times count from another time on."""
    whole = [as_seconds(since_ns + at_ns) for at_ns in (times.begins_ns, times.ends_ns, times.ready_ns)]
    return [*whole, *(as_seconds(mean) for mean in _means(times)), times.slowest]


def _means(times: pb.RoundTimes) -> list[int]:
    """Each part's mean over the children, in nanoseconds."""
    return [round(getattr(times, f"{part}_ns") / max(1, times.children)) for part in PARTS]


def _parts(rounds: Iterable[pb.RoundTimes]) -> dict[str, float]:
    """Seconds by part, summed over rounds one after the other."""
    return _named([sum(part) for part in zip(*(_means(times) for times in rounds), strict=True)] or [0] * len(PARTS))


def _named(totals_ns: Iterable[int]) -> dict[str, float]:
    return {part: total_ns / 1e9 for part, total_ns in zip(PARTS, totals_ns, strict=True)}


def as_seconds(duration_ns: int) -> str:
    """Exactly: whole seconds and nine digits."""
    return f"{duration_ns // 10**9}.{duration_ns % 10**9:09d}"
