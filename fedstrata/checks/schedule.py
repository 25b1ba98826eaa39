"""What a schedule cannot mean, refused by name before anything starts."""

from fedstrata.clock.course import LinkCourses
from fedstrata.clock.presence import Homes, Presence
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import check_link


def check_schedule(experiment: Experiment) -> None:
    """Refuse entries of devices, LPSs or links that there are not, and homes without devices. Raises ValueError."""
    if not experiment.schedule:
        return
    for number, entry in enumerate(experiment.schedule):
        where = f"schedule.{number}"
        if max(entry.devices, default=0) >= experiment.device_count:
            least_most = f"the partition has 0 to {experiment.device_count - 1}"
            raise ValueError(f"{where}: there is no device {max(entry.devices)}; {least_most}")
        on_link = entry.set_ or entry.cut
        if on_link is not None and on_link.link == "shared" and experiment.links.shared is None:
            raise ValueError(f"{where}: nothing is shared; say links.shared.device-lps first")
        if entry.set_ is not None and entry.set_.link == "shared":
            _check_shared(experiment, entry.set_.said, where)
    for where, link in LinkCourses(experiment).all_parts():
        check_link(link, f"schedule: {where}")
    _check_lps(experiment)
    _check_moves(experiment)
    _check_leaves(experiment)


def _check_shared(experiment: Experiment, said: "dict[str, object]", where: str) -> None:
    shared = experiment.links.shared
    for key in said:
        if shared is None or getattr(shared.device_lps, key) is None:
            raise ValueError(f"{where}: the shared link has no {key} before; say links.shared.device-lps.{key} first")


def _check_lps(experiment: Experiment) -> None:
    """Refuse LPSs that there are not; where clusters tell how many there are, nobody knows yet."""
    from fedstrata.methods import make_method
    from fedstrata.streams.homes import lps_known

    known = lps_known(experiment, make_method(experiment))
    for number, entry in enumerate(experiment.schedule):
        if known and max(entry.lps, default=0) >= known:
            raise ValueError(
                f"schedule.{number}: there is no lps-{max(entry.lps)}; the run has lps-0 to lps-{known - 1}"
            )


def _check_moves(experiment: Experiment) -> None:
    """Refuse moves where devices hang on their cluster's LPS, or that leave an LPS without devices."""
    from fedstrata.streams.homes import home_of

    homes = Homes(experiment.schedule)
    if homes.times and experiment.topology is None:
        raise ValueError(
            "schedule: a move goes to another LPS, and without topology each cluster has its own; say topology, "
            "or leave the move out"
        )
    if any(at_ns == 0 for at_ns in homes.times):
        raise ValueError("schedule: a move at 0s is where devices begin; say it with topology.devices")
    before = {index: home_of(experiment, index) for index in range(experiment.device_count)} if homes.times else {}
    for at_ns in homes.times:
        now = {**before, **homes.at(at_ns)}
        empty = set(before.values()) - set(now.values())
        if empty:
            raise ValueError(f"schedule: lps-{min(empty)} would have no device from {at_ns / 1e9:g}s on; leave it one")
        before = now


def _check_leaves(experiment: Experiment) -> None:
    """Refuse a schedule by which nobody is left."""
    presence, last_ns = Presence(experiment.schedule), max(entry.at for entry in experiment.schedule)
    if not presence.there(range(experiment.device_count), last_ns):
        raise ValueError(f"schedule: from {last_ns / 1e9:g}s on all devices are gone for good; let one come back")
