"""Compute the bytes that devices have sent and received: in the whole run, before they were grouped, and before the
main metric reached 95 % of its final value.

Bytes on the links device-gps and device-lps are counted, in both directions.
"""

from collections.abc import Iterator
from itertools import groupby
from statistics import fmean

from emulator.results.read_record import RunRecord

NEARLY = 0.95  # share of the final value; for a metric that falls, 1 / 0.95


def bytes_in_all(run: RunRecord) -> float | None:
    """Return all bytes that devices have sent and received, including the final measurement. If the record has no
    bytes, return None.
    """
    return run.summary.link("device-gps").total + run.summary.link("device-lps").total if run.summary.bytes else None


def bytes_of_training(run: RunRecord) -> float | None:
    """Return the bytes that devices have sent and received until the end of the last LPS round. Afterwards all devices
    receive the final models to measure them. If the record has no bytes, return None.
    """
    return _bytes_until(run, run.summary.rounds) if run.summary.bytes else None


def bytes_until_grouped(run: RunRecord) -> float | None:
    """Return the bytes that devices had sent and received when they were in their final groups. If devices changed
    their groups in training, the bytes are counted to the end of the last global round with such a change. Otherwise
    they are counted to the beginning of the training.

    If devices were not grouped by their answers, return None.
    """
    moving = [plan.global_round for plan in run.summary.replanned if plan.moved]
    if moving:
        return _bytes_until(run, max(moving))
    return _before_training(run) if run.relevance is not None or _asked_and_grouped(run) else None


def _asked_and_grouped(run: RunRecord) -> bool:
    """Return whether devices answered questions before the training, and form more than one cluster."""
    asked = set(run.summary.bytes_by_kind.get("device-gps", {})) - {"control"}
    return bool(asked) and len(run.summary.clusters) > 1


def bytes_until_nearly_final(run: RunRecord) -> float | None:
    """Return the bytes that devices had sent and received when the main metric first reached 95 % of its final value,
    without the bytes of measurements between rounds. If all devices measured the metric in fewer than two global
    rounds, or not in the last, return None.
    """
    curve = dict(metric_by_round(run))
    if not curve or max(curve) != run.summary.rounds or (len(curve) == 1 < run.summary.rounds):
        return None
    final, metric = curve[max(curve)], run.headline
    return _bytes_until(run, next(n for n, value in curve.items() if metric.is_reached(value, final, NEARLY)))


def metric_by_round(run: RunRecord) -> Iterator[tuple[int, float]]:
    """Yield each global round with the mean of the main metric over LPSs. Each LPS is weighted by its number of devices
    in this round. Newcomers that have not joined yet are not counted. An LPS that took no part in a round counts with
    its newest model.
    """
    newest: dict[str, float] = {}
    homes = {device: lps for lps, devices in run.summary.by_lps.items() for device in devices}
    newcomers, joined_from = set(run.summary.newcomers), _newcomers_from(run)
    for number, rows in groupby(sorted(run.rounds, key=lambda row: row.lps_round), lambda row: row.global_round):
        last = {row.lps_id: row.metrics[run.headline.name] for row in rows}
        newest |= {lps: value for lps, value in last.items() if value is not None}
        if None not in last.values():
            away = newcomers if number < joined_from else set()
            moves = (move for move in reversed(run.summary.moves) if move.global_round > number)
            then = homes | {move.device: move.came_from for move in moves}  # the first later move decides
            weighted = [newest[lps] for device, lps in then.items() if lps in newest and device not in away]
            if weighted:  # empty if none of these LPSs has devices
                yield number, fmean(weighted)


def _newcomers_from(run: RunRecord) -> int:
    """Return the first global round with newcomers. If the experiment has no newcomers, return 0."""
    settings = run.experiment.get("newcomers")
    return int(settings["from_global_round"]) if settings else 0


def bytes_by_round(run: RunRecord) -> dict[int, float]:
    """Return, by global round, all bytes from the beginning of the run to the end of the round."""
    by_round: dict[int, float] = {}
    spent = _before_training(run)
    for row in sorted(run.rounds, key=lambda row: row.global_round):
        spent += row.bytes_up + row.bytes_down
        by_round[row.global_round] = spent
    return by_round


def _bytes_until(run: RunRecord, global_round: int) -> float:
    """Return the bytes before training and in all global rounds up to and including this one."""
    rounds = sum(row.bytes_up + row.bytes_down for row in run.rounds if row.global_round <= global_round)
    return _before_training(run) + rounds


def _before_training(run: RunRecord) -> float:
    """Return the bytes before training, without messages that a restarted process has repeated."""
    return run.summary.link("device-gps").total - (bytes_repeated(run) or 0)


def bytes_repeated(run: RunRecord) -> float | None:
    """Return the bytes before training that repeat earlier messages, because a process was restarted. If nothing was
    repeated, return None.
    """
    repeated = run.summary.repeated_bytes
    return None if repeated is None else repeated.total
