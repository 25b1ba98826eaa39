"""What devices took in energy, where the experiment counts it: energy.csv, the summary's share, and so far."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedstrata.clock.energy import JOULE_FJ, NONE, PARTS, DeviceEnergy, Energy, counts_energy, summed
from fedstrata.experiment import Experiment
from fedstrata.v1 import rounds_pb2 as pb
from gps.record.csv_lines import csv_lines
from gps.record.timeline_record import RunTimes

ENERGY_COLUMNS = ("tier", "global_round", "lps_round", "lps_id", "device", "late", *(f"{part}_j" for part in PARTS))
SMALLEST_FJ = 10**6  # of energy.csv: a nanojoule, its last digit


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a device took in an LPS round, or before training."""

    row: pb.LpsRound | None
    device: int
    energy: Energy
    is_late: bool = False  # for an update that missed its round


def spent_by(
    experiment: Experiment,
    rows: Iterable[pb.LpsRound],
    times: RunTimes,
    carried_before: Iterable[pb.Carried] = (),
) -> list[Spent]:
    """Of the questions before training, then round by round; on the real clock of what was measured."""
    model = DeviceEnergy(experiment)
    found = [*_of_flows(model, None, times.before), *_of_carried(model, None, carried_before)]
    for row in rows:
        found += _of_row(model, row)
    return found


def _of_row(model: DeviceEnergy, row: pb.LpsRound) -> list[Spent]:
    return [*_of_flows(model, row, row.times), *_of_carried(model, row, row.times.carried)]


def _of_flows(model: DeviceEnergy, row: pb.LpsRound | None, times: pb.RoundTimes) -> Iterator[Spent]:
    for flow in times.flows:
        yield Spent(row=row, device=flow.child, energy=model.of(flow))
    for flow in times.late:
        yield Spent(row=row, device=flow.child, energy=model.of(flow), is_late=True)


def _of_carried(model: DeviceEnergy, row: pb.LpsRound | None, carried: Iterable[pb.Carried]) -> Iterator[Spent]:
    by_device: dict[int, Energy] = {}
    for each in carried:
        by_device[each.child] = by_device.get(each.child, NONE) + model.carried(each)
    for device, energy in sorted(by_device.items()):
        yield Spent(row=row, device=device, energy=energy)


def energy_csv(spent: Iterable[Spent], device_ids: Sequence[str]) -> Iterator[str]:
    """energy.csv: a line for each device before training and in each LPS round, joules by part."""
    return csv_lines(ENERGY_COLUMNS, (_cells(each, device_ids[each.device]) for each in spent))


def _cells(spent: Spent, device_id: str) -> list[object]:
    row = spent.row
    of = ["before", "", "", ""] if row is None else ["lps", row.global_round + 1, row.lps_round + 1, row.cluster_id]
    return [*of, device_id, int(spent.is_late), *(_as_joules(getattr(spent.energy, part)) for part in PARTS)]


def _as_joules(energy_fj: int) -> str:
    """In joules with nine digits, rounded."""
    rounded = (energy_fj + SMALLEST_FJ // 2) // SMALLEST_FJ
    return f"{rounded // 10**9}.{rounded % 10**9:09d}"


def energy_summary(spent: Sequence[Spent], device_ids: Sequence[str]) -> dict[str, Any]:
    """What the summary says: joules in all, by part, of updates that missed their round, and by device."""
    by_device = dict.fromkeys(device_ids, 0)
    for each in spent:
        by_device[device_ids[each.device]] += each.energy.total
    total = summed(each.energy for each in spent)
    return {
        "joules": total.total / JOULE_FJ,
        **total.joules(),
        "late": summed(each.energy for each in spent if each.is_late).total / JOULE_FJ,
        "by_device": {name: energy_fj / JOULE_FJ for name, energy_fj in by_device.items()},
    }


class EnergySoFar:
    """The energy of the LPS rounds that have been reported; a row that is told again counts once."""

    def __init__(self, experiment: Experiment, rows: Callable[[], Iterable[bytes]]) -> None:
        """`rows` gives those of an earlier life, LpsRound messages."""
        self.is_on = counts_energy(experiment)
        self.total = NONE
        self._model = DeviceEnergy(experiment)
        self._by_round: dict[tuple[str, int], Energy] = {}
        if self.is_on:
            self.note(pb.LpsRound.FromString(row) for row in rows())

    def note(self, rows: Iterable[pb.LpsRound]) -> None:
        """Count rows, in place of those of the same rounds."""
        if self.is_on:
            for row in rows:
                where = row.cluster_id, row.lps_round
                spent = summed(each.energy for each in _of_row(self._model, row))
                self.total += spent - self._by_round.get(where, NONE)
                self._by_round[where] = spent

    def summary(self) -> dict[str, Any]:
        """As the record's summary has it, of no device by name."""
        return {"joules": self.total.total / JOULE_FJ, **self.total.joules(), "late": 0.0, "by_device": {}}
