"""The section `place` of a search file: the planner decides which device is at which LPS."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from emulator.planner.costs import costs_of_round
from emulator.planner.group_costs import GroupCosts
from emulator.planner.placement import Key, Placement, Rooms, improved, modelled
from emulator.planner.resources import Resource
from emulator.sweeps.file import Sweep, sweep_of
from emulator.sweeps.tune_section import Overrides
from fedstrata.datasets import load_dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import check_index, check_once
from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import Settings, TopologySettings
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.methods import make_method
from fedstrata.methods.cohort import cohort_size
from fedstrata.streams.homes import asks_in_training

PARTS = 40_000  # devices' parts of rounds that the clock calculates, before no more changes are tried
WORTH = 0.01  # share of the cost that a placement must save, so that devices are not placed in turn

Room = Annotated[int, Field(ge=1)]


class Reach(Settings):
    """Define at which LPSs some devices may be."""

    devices: DeviceList
    lps: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)  # nearest first


class PlaceSettings(Settings):
    """Define which placements of devices at LPSs are possible."""

    capacity: Room | tuple[Room, ...]  # most devices at each LPS
    reach: tuple[Reach, ...] = ()  # other devices may be at any LPS, and their LPS in index order is the nearest

    @field_validator("reach")
    @classmethod
    def _once_each(cls, value: tuple[Reach, ...]) -> tuple[Reach, ...]:
        check_once(entry.devices for entry in value)
        return value

    def rooms(self, experiment: Experiment) -> Rooms:
        """Return the rooms at an experiment's LPSs. Raises ExperimentError if they do not fit the experiment."""
        lps, devices = _placeable(experiment).lps, experiment.device_count
        capacities = self.capacity if isinstance(self.capacity, tuple) else (self.capacity,) * lps
        if len(capacities) != lps:
            raise ExperimentError(f"place.capacity has {len(capacities)} values for {lps} LPSs; give one for each LPS")
        if sum(capacities) < devices:
            raise ExperimentError(f"place.capacity has room for {sum(capacities)} of {devices} devices; raise it")
        try:
            check_index("place.reach", [index for entry in self.reach for index in entry.devices], devices)
        except ValueError as error:
            raise ExperimentError(str(error)) from None
        near = [tuple((first + step) % lps for step in range(lps)) for first in range(lps)]
        allowed = [near[index % lps] for index in range(devices)]
        for entry in self.reach:
            if max(entry.lps) >= lps:
                raise ExperimentError(f"place.reach: there is no LPS {max(entry.lps)}; there are LPSs 0 to {lps - 1}")
            for index in entry.devices:
                allowed[index] = tuple(dict.fromkeys(entry.lps))
        return Rooms(capacities=capacities, allowed=allowed, least=_least(experiment))


def _placeable(experiment: Experiment) -> TopologySettings:
    """Return the topology. Raises ExperimentError if the planner cannot place devices in it."""
    topology, method = experiment.topology, experiment.method.name
    if topology is None:
        raise ExperimentError(
            "place has no effect without topology, because each cluster has its own LPS; add topology.lps"
        )
    if asks_in_training(make_method(experiment)) is not None:
        raise ExperimentError(
            f"place does not know how long LPSs wait for each other in rounds of {method}; remove place"
        )
    if experiment.training.rounds.asynchronous is not None:
        raise ExperimentError("place does not know when asynchronous rounds end; remove training.rounds")
    if experiment.newcomers is not None:
        raise ExperimentError("place does not know that devices join later; remove newcomers")
    return topology


def _least(experiment: Experiment) -> int:
    """Return the number of devices of which a round asks as many as a sum needs."""
    share, least = experiment.training.participation, experiment.least_in_sum
    return next(count for count in range(1, experiment.device_count + 1) if cohort_size(count, share) >= least)


def at(experiment: Experiment, placement: Placement) -> Experiment:
    """Return the experiment with its devices placed."""
    topology = TopologySettings(lps=len(placement), devices=placement)
    return experiment.model_copy(update={"topology": topology})


def placed(experiment: Experiment, settings: PlaceSettings, aim: Resource) -> Experiment:
    """Return the experiment with the placement that costs least in an LPS round. If another saves less than `WORTH`,
    devices are placed in turn.

    The cost is energy if this is the aim. Otherwise it is the time of the slowest LPS, then of the second slowest.

    Raises:
        ExperimentError: no placement was found that is possible, or the experiment has one already.
    """
    if experiment.topology is not None and experiment.topology.devices is not None:
        raise ExperimentError("place decides topology.devices; remove one of them")
    rooms, costs = settings.rooms(experiment), GroupCosts(experiment)

    def judge(placement: Sequence[Sequence[int]]) -> Key:
        found = [costs.of(group) for group in placement]
        if aim is Resource.JOULES:
            return (sum(each.joules for each in found),)
        return tuple(sorted((each.seconds for each in found), reverse=True))

    model = modelled(rooms, costs.loads, costs.alone_s)
    numbered = rooms.numbered()
    known = (numbered, rooms.nearest(), *([model.placement] if model else ()))
    starts = sorted(filter(rooms.permits, known), key=judge)
    if not starts:
        raise ExperimentError(
            f"place: no placement was found that has room for every device, and at least {rooms.least} at every LPS; "
            "raise capacity, or add LPSs to reach"
        )
    changed = [improved(each, rooms, judge, lambda: costs.calculated < PARTS) for each in starts]
    best = min((*starts, *changed), key=judge)
    if rooms.permits(numbered) and judge(best)[0] >= (1 - WORTH) * judge(numbered)[0]:
        return experiment
    return at(experiment, tuple(tuple(sorted(group)) for group in best))


def with_places(sweep: Sweep, settings: PlaceSettings, aim: Resource, *, where: str) -> Sweep:
    """Return the candidates with their devices placed, as is best for the first seed. The sweep's file has the
    placements as `rows`.

    Raises:
        ExperimentError: a candidate cannot be placed. The message names the candidate, and `where` before it.
    """
    rows: dict[str, Overrides] = {}
    for run in sweep.runs[: len(sweep.places)]:
        try:
            topology = placed(run.experiment, settings, aim).topology
        except ExperimentError as error:
            raise ExperimentError(f"{where}: {', '.join(run.place.choices)}: {error}") from None
        if topology is not None and topology.devices is not None:
            rows[run.place.label] = {"topology.devices": [list(group) for group in topology.devices]}
    if not rows:
        return sweep
    document = {**read_yaml(sweep.text), "rows": rows}
    return sweep_of(document, name=sweep.name, where=where, beside=Path(where).parent)


def gains(experiment: Experiment, settings: PlaceSettings, aim: Resource) -> str:
    """Return what a global round of a placed experiment costs, beside simple placements."""
    rooms, dataset = settings.rooms(experiment), load_dataset(experiment.data, experiment.seed)
    resource = aim if aim is Resource.JOULES else Resource.SECONDS

    def said(placement: Placement) -> str:
        if not all(placement):
            return "impossible, because an LPS would have no device"
        text = resource.said(costs_of_round(at(experiment, placement), dataset)[resource])
        return text if rooms.permits(placement) else f"{text}, but place does not permit it"

    ours = resource.said(costs_of_round(experiment, dataset)[resource])
    return (
        f"{resource.label} of a global round as placed: {ours}; in turn: {said(rooms.numbered())}; each device "
        f"at its nearest LPS with room: {said(rooms.nearest())}"
    )
