"""Show what devices and LPSs wait for in a run: one global round of waits.csv as bars, and the parts of all rounds by
tier.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from emulator.results.read_record import RunRecord
from fedstrata.errors import DataError
from fedstrata.record.timeline import PARTS
from fedstrata.record.waits import WaitRow

MOST_LANES = 60  # lanes in a picture; if there are more, those for which the others wait are shown


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Describe one bar in a lane of the drawing: a part of a round. `begins_s` and `ends_s` are seconds since the
    beginning of the global round.
    """

    lane: str
    tier: Literal["gps", "lps", "device"]
    part: str
    begins_s: float
    ends_s: float
    lps_round: int | None = None


def picture(record: RunRecord, waits: Sequence[WaitRow], global_round: int | None = None) -> dict[str, Any] | None:
    """Return the data for the page's drawing of a global round. By default this is the longest global round. If the run
    had no clock, return None.

    Raises:
        DataError: the record has no such global round.
    """
    lasted = {row.global_round: row.busy_s + row.waiting_s for row in waits if row.tier == "gps"}
    check_round(record, lasted, global_round)
    if not lasted:
        return None
    chosen = max(lasted, key=lambda number: lasted[number]) if global_round is None else global_round
    return {
        "global_round": chosen,
        "until": chosen,
        "seconds": lasted[chosen],
        "lanes": [vars(bar) for bar in bars_of(record, [row for row in waits if row.global_round == chosen])],
        "devices": len({row.child for row in waits if row.global_round == chosen and row.tier == "lps"}),
    }


def check_round(record: RunRecord, known: Iterable[int], global_round: int | None) -> None:
    """Raise DataError if a global round is given that the record does not have."""
    if global_round is not None and global_round not in (numbers := [*known]):
        raise DataError(
            f"{record.folder / 'waits.csv'} has no global round {global_round}; it has {_range(numbers)}. Only runs "
            "with a clock have any"
        )


def _range(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f"{found[0]} to {found[-1]}" if found else "none"


def bars_of(record: RunRecord, waits: Sequence[WaitRow]) -> list[Bar]:
    """Return the bars of one global round, ordered by lane. The lane of the GPS is the first. Each LPS has a lane,
    followed by the lanes of its devices. If there are many LPSs, only the LPSs with the longest busy times are drawn.
    """
    of_lps = {row.child: row for row in waits if row.tier == "gps"}
    whole_s = max((row.busy_s + row.waiting_s for row in of_lps.values()), default=0.0)
    bars = [Bar(lane="GPS", tier="gps", part="waiting", begins_s=0.0, ends_s=whole_s)]
    slowest = sorted(of_lps, key=lambda name: -of_lps[name].busy_s)[: MOST_LANES // 2]
    most_devices = max(1, (MOST_LANES - len(slowest)) // max(1, len(slowest)))
    for name in [name for name in of_lps if name in slowest]:
        rounds = _rounds_of(record, [row for row in waits if row.lps_id == name], of_lps[name])
        bars += _lps_bars(of_lps[name], rounds)
        bars += _device_bars(rounds, most_devices)
    return bars


@dataclass(frozen=True, kw_only=True)
class _Round:
    """Describe one LPS round of an LPS. `begins_s` and `ends_s` are seconds since the beginning of the global round."""

    number: int
    begins_s: float
    ends_s: float
    rows: Sequence[WaitRow]


def _rounds_of(record: RunRecord, rows: Sequence[WaitRow], of_lps: WaitRow) -> list[_Round]:
    """Return an LPS's rounds. The first round begins when the model has arrived at the LPS. Each other round begins
    when the previous round ends. A round lasts as long as timeline.csv says or, without this file, rounds.csv.
    """
    took: dict[int | None, float] = {row.lps_round: row.seconds for row in record.rounds if row.lps_id == of_lps.child}
    took |= {row.lps_round: row.ends_s - row.begins_s for row in record.timeline if row.lps_id == of_lps.child}
    rounds, now_s = [], of_lps.down_s
    for number in sorted({row.lps_round for row in rows if row.lps_round is not None}):
        of_round = [row for row in rows if row.lps_round == number]
        ends_s = now_s + took.get(number, max(row.busy_s for row in of_round))
        rounds.append(_Round(number=number, begins_s=now_s, ends_s=ends_s, rows=of_round))
        now_s = ends_s
    return rounds


def _lps_bars(of_lps: WaitRow, rounds: Sequence[_Round]) -> list[Bar]:
    """Return the bars of an LPS: receiving the model, its LPS rounds, sending the sum, and waiting for other LPSs."""
    name, bars = of_lps.child, laid(of_lps.child, "lps", 0.0, of_lps)
    inner = [
        Bar(lane=name, tier="lps", part="compute", begins_s=r.begins_s, ends_s=r.ends_s, lps_round=r.number)
        for r in rounds
    ]
    return [bar for bar in bars if bar.part != "compute"] + inner


def _device_bars(rounds: Sequence[_Round], most: int) -> list[Bar]:
    """Return the bars of an LPS's devices. If there are more than `most` devices, only the devices that are busy for
    the longest time are drawn.
    """
    busy: dict[str, float] = defaultdict(float)
    for row in (row for each in rounds for row in each.rows):
        busy[row.child] += row.busy_s
    shown = set(sorted(busy, key=lambda name: (-busy[name], name))[:most])
    found = [
        bar
        for each in rounds
        for row in each.rows
        if row.child in shown
        for bar in laid(row.child, "device", each.begins_s, row)
    ]
    return sorted(found, key=lambda bar: bar.lane)


def laid(lane: str, tier: Literal["lps", "device"], now_s: float, row: WaitRow) -> list[Bar]:
    """Return the bars for the parts of a row of waits.csv. The first bar begins at `now_s`. Each other bar begins when
    the previous bar ends.
    """
    bars = []
    for part, lasts_s in row.parts:
        ends_s = now_s + lasts_s
        if lasts_s:
            bars.append(
                Bar(lane=lane, tier=tier, part=part, begins_s=now_s, ends_s=ends_s, lps_round=row.lps_round),
            )
        now_s = ends_s
    return bars


def parts_by_tier(waits: Sequence[WaitRow]) -> dict[str, dict[str, float]]:
    """Return how many seconds each part of a round took, summed over all rounds. The seconds of global rounds are means
    over LPSs. The seconds of LPS rounds are means over devices, and then over LPSs.
    """
    return {tier: _parts([row for row in waits if row.tier == tier]) for tier in ("gps", "lps")}


def _parts(rows: Sequence[WaitRow]) -> dict[str, float]:
    by_round: dict[tuple[int, int | None, str | None], list[WaitRow]] = defaultdict(list)
    for row in rows:
        by_round[row.global_round, row.lps_round, row.lps_id].append(row)
    lpss = len({lps_id for _, _, lps_id in by_round})
    return {part: sum(_mean(each, part) for each in by_round.values()) / max(1, lpss) for part in PARTS}


def _mean(rows: Sequence[WaitRow], part: str) -> float:
    return float(sum(getattr(row, f"{part}_s") for row in rows)) / len(rows)
