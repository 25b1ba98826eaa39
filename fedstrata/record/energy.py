"""The energy of devices in the record: energy.csv, and the key `energy` of summary.json."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic.dataclasses import dataclass as checked_dataclass

from fedstrata.clock.energy import JOULE_FJ, NONE, DeviceEnergy, Energy
from fedstrata.clock.timeline import PARTS
from fedstrata.experiment import Experiment
from fedstrata.record.links import with_update
from fedstrata.record.tables import BEFORE, Amount, OfRound, Table, of_lps_round
from fedstrata.record.timeline import RunTimes
from fedstrata.v1 import rounds_pb2 as pb

SMALLEST_FJ = 10**6  # a nanojoule, the last digit in energy.csv


@checked_dataclass(frozen=True, kw_only=True)
class EnergySummary:
    """Hold the energy of a run: the key `energy` of summary.json."""

    joules: Amount
    """Energy of all devices, in joules."""
    down: Amount
    """Energy for receiving, a part of `joules`."""
    compute: Amount
    """Energy for computing, a part of `joules`."""
    up: Amount
    """Energy for sending, a part of `joules`."""
    late: Amount
    """Energy for updates that missed their round, a part of `joules`."""
    by_device: dict[str, Amount]
    """Energy of each device, in joules."""


@checked_dataclass(frozen=True, kw_only=True)
class EnergyRow(OfRound):
    """Hold the energy of a device in an LPS round or before training."""

    device: str
    """Device id."""
    late: Literal["0", "1"]
    """1 if the update missed its round, else 0."""
    down_j: Amount
    """Joules for receiving, rounded to nanojoules."""
    compute_j: Amount
    """Joules for computing, rounded to nanojoules."""
    up_j: Amount
    """Joules for sending, rounded to nanojoules."""


ENERGY = Table(EnergyRow)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Hold the energy that a device used in an LPS round, or before training."""

    row: pb.LpsRound | None
    device: int
    energy: Energy
    is_late: bool = False  # whether the device's update missed its round


def spent_by(
    experiment: Experiment,
    rows: Iterable[pb.LpsRound],
    times: RunTimes,
    carried_before: Sequence[pb.Carried] = (),
) -> list[Spent]:
    """Return the energy that each device used, first for the questions before training, then in each LPS round. On the
    real clock, energy is calculated from measured durations.
    """
    model = DeviceEnergy(experiment)
    found = _spent(model, None, times.before, carried_before)
    for row in rows:
        found += _spent(model, row, row.times, row.times.carried)
    return found


def _spent(
    model: DeviceEnergy, row: pb.LpsRound | None, times: pb.RoundTimes, carried: Sequence[pb.Carried]
) -> list[Spent]:
    by_device: dict[int, Energy] = {}
    in_time = with_update(carried)
    for each in carried:
        by_device[each.child] = by_device.get(each.child, NONE) + model.carried(each)
    return [
        *(Spent(row=row, device=flow.child, energy=model.of(flow)) for flow in times.flows),
        *(Spent(row=row, device=flow.child, energy=model.of(flow), is_late=True) for flow in times.late),
        *(
            Spent(row=row, device=device, energy=energy, is_late=device not in in_time)
            for device, energy in sorted(by_device.items())
        ),
    ]


def energy_csv(spent: Iterable[Spent], device_ids: Sequence[str]) -> Iterator[str]:
    """Return the lines of energy.csv."""
    return ENERGY.lines(_cells(each, device_ids[each.device]) for each in spent)


def _cells(spent: Spent, device_id: str) -> tuple[object, ...]:
    of = BEFORE if spent.row is None else of_lps_round(spent.row)
    return *of, device_id, int(spent.is_late), *(_as_joules(getattr(spent.energy, part)) for part in PARTS)


def _as_joules(energy_fj: int) -> str:
    """Return femtojoules as a text in joules, rounded to nine decimal places."""
    rounded = (energy_fj + SMALLEST_FJ // 2) // SMALLEST_FJ
    return f"{rounded // 10**9}.{rounded % 10**9:09d}"


def energy_summary(spent: Sequence[Spent], device_ids: Sequence[str]) -> EnergySummary:
    """Return the energy of each device, and of all devices together."""
    by_device = dict.fromkeys(device_ids, 0)
    for each in spent:
        by_device[device_ids[each.device]] += each.energy.total
    total = sum((each.energy for each in spent), NONE)
    return EnergySummary(
        joules=total.total / JOULE_FJ,
        **total.joules(),
        late=sum(each.energy.total for each in spent if each.is_late) / JOULE_FJ,
        by_device={name: energy_fj / JOULE_FJ for name, energy_fj in by_device.items()},
    )
