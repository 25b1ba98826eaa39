"""The section `place` of a search file: the planner decides which device is at which LPS."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field, field_validator

from emulator.planner.costs import costs_of_round
from emulator.planner.group_costs import GroupCosts
from emulator.planner.placement import Key, Placement, Rooms, improved, modelled
from emulator.planner.resources import Resource
from emulator.sweeps.file import Sweep
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import check_index, check_once
from fedstrata.experiment.quantities import DeviceList
from fedstrata.experiment.sections import Settings, TopologySettings
from fedstrata.methods import make_method
from fedstrata.streams.homes import asks_in_training

PARTS = 40_000  # devices' parts of rounds that the clock calculates, before no more changes are tried
WORTH = 0.01  # share of the cost that a placement must save, so that devices are not placed in index order

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
        if why := _unplaceable(experiment):
            raise ExperimentError(f"place {why}")
        lps, devices = experiment.topology.lps if experiment.topology else 1, experiment.device_count
        capacities = self.capacity if isinstance(self.capacity, tuple) else (self.capacity,) * lps
        if len(capacities) != lps:
            raise ExperimentError(f"place.capacity has {len(capacities)} values for {lps} LPSs; give one for each LPS")
        if sum(capacities) < devices:
            raise ExperimentError(f"place.capacity has room for {sum(capacities)} of {devices} devices; raise it")
        try:
            check_index("place.reach", [index for entry in self.reach for index in entry.devices], devices)
        except ValueError as error:
            raise ExperimentError(str(error)) from None
        allowed: list[Sequence[int]] = [[(index + step) % lps for step in range(lps)] for index in range(devices)]
        for entry in self.reach:
            if max(entry.lps) >= lps:
                raise ExperimentError(f"place.reach: there is no LPS {max(entry.lps)}; there are LPSs 0 to {lps - 1}")
            for index in entry.devices:
                allowed[index] = tuple(dict.fromkeys(entry.lps))
        return Rooms(capacities=capacities, allowed=allowed)


def _unplaceable(experiment: Experiment) -> str:
    """Return why the planner cannot place devices. If it can, return an empty text."""
    topology, method = experiment.topology, make_method(experiment)
    if topology is None:
        return "has no effect without topology, because each cluster has its own LPS; add topology.lps"
    if topology.devices is not None:
        return "decides topology.devices; remove one of them"
    if asks_in_training(method) is not None:
        return f"does not know how long LPSs wait for each other in rounds of {experiment.method.name}; remove place"
    is_asynchronous = experiment.training.rounds.asynchronous is not None
    return "does not know when asynchronous rounds end; remove training.rounds" if is_asynchronous else ""


def at(experiment: Experiment, placement: Placement) -> Experiment:
    """Return the experiment with its devices placed."""
    topology = TopologySettings(lps=len(placement), devices=placement)
    return experiment.model_copy(update={"topology": topology})


def placed(experiment: Experiment, settings: PlaceSettings, aim: Resource) -> Experiment:
    """Return the experiment with the placement that costs least in an LPS round. If another saves less than `WORTH`,
    devices stay in index order.

    The cost is energy if this is the aim. Otherwise it is the time of the slowest LPS, then of the second slowest.

    Raises:
        ExperimentError: no placement was found that is possible.
    """
    rooms, costs = settings.rooms(experiment), GroupCosts(experiment)

    def judge(placement: Sequence[Sequence[int]]) -> Key:
        found = [costs.of(group) for group in placement]
        if aim is Resource.JOULES:
            return (sum(each.joules for each in found),)
        return tuple(sorted((each.seconds for each in found), reverse=True))

    model = modelled(rooms, costs.loads, costs.alone_s)
    if model is None:
        raise ExperimentError(
            "place: no placement was found that has room for every device, and a device for every LPS; raise capacity, "
            "or add LPSs to reach"
        )
    numbered = rooms.numbered()
    starts = sorted(filter(rooms.permits, (numbered, rooms.nearest(), model.placement)), key=judge)
    changed = [improved(each, rooms, judge, lambda: costs.calculated < PARTS) for each in starts]
    best = min((*starts, *changed), key=judge)
    if rooms.permits(numbered) and judge(best)[0] >= (1 - WORTH) * judge(numbered)[0]:
        return experiment
    return at(experiment, tuple(tuple(sorted(group)) for group in best))


def with_places(sweep: Sweep, settings: PlaceSettings, aim: Resource, *, where: str) -> Sweep:
    """Return the candidates with their devices placed, as is best for the first seed.

    Raises:
        ExperimentError: a candidate cannot be placed. The message names the candidate, and `where` before it.
    """
    chosen: dict[object, Experiment] = {}
    for run in sweep.runs:
        if run.place not in chosen:
            try:
                chosen[run.place] = placed(run.experiment, settings, aim)
            except ExperimentError as error:
                raise ExperimentError(f"{where}: {', '.join(run.place.choices)}: {error}") from None
    runs = [
        replace(run, experiment=run.experiment.model_copy(update={"topology": chosen[run.place].topology}))
        for run in sweep.runs
    ]
    return replace(sweep, runs=tuple(runs))


def gains(experiment: Experiment, settings: PlaceSettings, aim: Resource) -> str:
    """Return what a global round of a placed experiment costs, beside simple placements."""
    topology = experiment.topology or TopologySettings(lps=1)
    plain = experiment.model_copy(update={"topology": TopologySettings(lps=topology.lps)})
    rooms = settings.rooms(plain)
    resource = aim if aim is Resource.JOULES else Resource.SECONDS

    def said(placement: Placement) -> str:
        if not all(placement):
            return "impossible, because an LPS would have no device"
        text = resource.said(costs_of_round(at(plain, placement))[resource])
        return text if rooms.permits(placement) else f"{text}, but place does not permit it"

    ours = resource.said(costs_of_round(experiment)[resource])
    return (
        f"{resource.label} of a global round as placed: {ours}; in index order: {said(rooms.numbered())}; each device "
        f"at its nearest LPS with room: {said(rooms.nearest())}"
    )
