"""Compute how much devices gain over training alone, if some runs of the sweep train devices alone. The results are a
table, and a CSV text with the gain of each device.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

from emulator.results.fairness import Worth, worth
from emulator.results.over_seeds import Form
from emulator.results.read_record import RunRecord
from emulator.sweeps.file import Place, SweepRun
from emulator.sweeps.results import SweepResults
from fedstrata.methods import Reach, make_method

Table = tuple[list[str], list[list[str]]]  # (header, rows)
Pair = tuple[SweepRun, RunRecord, RunRecord]  # a run, its record, and the record of training alone


def table(results: SweepResults) -> Table | None:
    """Return a table of gains with a row per cell and setting. If no run has a matching run in which devices train
    alone, return None.
    """
    rows = _rows(results)
    unit = Form.of(results.of.metric).unit
    head = [f"Mean gain {unit}", f"Lowest gain {unit}", "Devices that lose %", "of devices"]
    return ([*results.head, *head], rows) if rows else None


def gains_csv(results: SweepResults) -> str | None:
    """Return the gain of each device in each run as CSV. If no run has a matching run in which devices train alone,
    return None.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*results.head, "seed", "device", "gain"])
    count = 0
    for run, record, alone in _pairs(results):
        where = [*run.place.words, run.seed]
        for name, gain in worth([(record, alone)]).gains.items():
            writer.writerow([*where, name.partition("/")[2], gain])
            count += 1
    return text.getvalue() if count else None


def _rows(results: SweepResults) -> list[list[str]]:
    pairs: dict[Place, list[tuple[RunRecord, RunRecord]]] = {}
    for run, record, alone in _pairs(results):
        pairs.setdefault(run.place, []).append((record, alone))
    found = ((place, worth(pairs[place])) for place in results.sweep.places if place in pairs)
    form = Form.of(results.of.metric)
    return [[*place.words, *_said(each, form)] for place, each in found if each.gains]


def _said(each: Worth, form: Form) -> list[str]:
    gains = list(each.gains.values())
    shown = [form.said(number, None, sign="+") for number in (fmean(gains), min(gains))]
    return [*shown, f"{100 * each.losing / len(gains):.1f}", f"{each.losing}/{len(gains)}"]


def _pairs(results: SweepResults) -> Iterator[Pair]:
    """Yield each run together with its partner: the run that trains devices alone in the same setting, on the same data
    and with the same seed. Runs without a partner are left out.
    """
    done = [
        (run, results.records[key]) for run in results.sweep.runs if (key := (run.place, run.seed)) in results.records
    ]
    alone, others = defaultdict[object, list[tuple[SweepRun, RunRecord]]](list), list[tuple[SweepRun, RunRecord]]()
    for each in done:
        (alone[each[0].place.setting, each[0].seed] if _is_alone(each[0]) else others).append(each)
    for run, record in others:
        for other, theirs in reversed(alone[run.place.setting, run.seed]):
            if _facts(other, theirs) == _facts(run, record):
                yield run, record, theirs
                break


def _is_alone(run: SweepRun) -> bool:
    method = make_method(run.experiment)
    return all(channel.reach is Reach.DEVICE for channel in method.channels(method.facts.model))


def _facts(run: SweepRun, record: RunRecord) -> tuple[object, ...]:
    """Return what a run and its partner have in common, besides the setting and the seed."""
    return run.experiment.data, run.experiment.partition, record.headline
