"""The main metric of a run after each global round, and the round in which it was best."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean

from emulator.results.read_record import RunRecord
from fedstrata.record.rounds import RoundRow


def measured_rounds(run: RunRecord) -> dict[int, float]:
    """Return the main metric by global round. Only rounds after which all devices measured the model are included. If
    clusters span LPSs, the metric is over the examples of all devices. Otherwise it is the mean over clusters. Records
    of earlier releases have no numbers of examples, so for them the result is empty.
    """
    rows = sorted(run.global_models, key=lambda row: row.global_round)
    by_round = {number: list(group) for number, group in groupby(rows, lambda row: row.global_round)}
    found = {number: _together(run, of_round) for number, of_round in by_round.items()}
    return {number: value for number, value in found.items() if value is not None}


def _together(run: RunRecord, rows: Sequence[RoundRow]) -> float | None:
    """Return the metric of all LPSs or clusters in a round. If one has no value, return None."""
    values = [row.metrics[run.headline.name] for row in rows]
    examples = [row.measured_examples for row in rows]
    known = [(value, count) for value, count in zip(values, examples, strict=True) if value is not None and count]
    if len(known) < len(rows):
        return None
    if run.summary.homes is None:
        return fmean(value for value, _ in known)
    return fmean((value for value, _ in known), weights=[count for _, count in known])


def best_round(run: RunRecord, rounds: Mapping[int, float]) -> int:
    """Return the global round with the best value, or the first of several equally good rounds. On a test set, this
    value is too optimistic, because the tests chose the round.
    """
    sign = 1 if run.headline.higher_is_better else -1
    return max(rounds, key=lambda number: sign * rounds[number])
