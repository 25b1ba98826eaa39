"""Check values that can contradict other sections of the experiment, such as an index out of range or an LPS without
devices.
"""

from fedstrata.attacks import attacks_of
from fedstrata.clock.device_times import Homes, Presence
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment, SyntheticSettings
from fedstrata.experiment.links import check_link
from fedstrata.experiment.schedule import SetLink
from fedstrata.links.tier_links import ScheduledLinks
from fedstrata.methods import Method, Moment
from fedstrata.partitions.natural import NaturalPartition
from fedstrata.rules.registry import make_rule
from fedstrata.streams.homes import are_placed_by_index, home_of, homes_of, lps_count, lps_known


def check_values(experiment: Experiment, method: Method) -> None:
    """Check the values of all sections. Raise ExperimentError if a section names devices, LPSs, links or rounds that do
    not exist.
    """
    _check_questions(experiment, method)
    _check_drawn(experiment)
    _check_topology(experiment)
    _check_newcomers(experiment, method)
    _check_architectures(experiment)
    _check_attacks(experiment)
    _check_rules(experiment, method)
    if experiment.schedule:
        _check_entries(experiment)
        _check_lps(experiment, method)
        _check_moves(experiment)
        _check_leaves(experiment)


def _check_device(experiment: Experiment, index: int, where: str) -> None:
    last = experiment.device_count - 1
    if index > last:
        raise ExperimentError(f"{where}: there is no device {index}; the partition has devices 0 to {last}")


def _check_questions(experiment: Experiment, method: Method) -> None:
    later = sum(question.moment is not Moment.BEFORE for question in method.questions())
    if later > 1:
        name = experiment.method.name
        raise ExperimentError(
            f"method {name} asks {later} questions in a global round; ask one question with more arrays"
        )


def _check_drawn(experiment: Experiment) -> None:
    data, partition = experiment.data, experiment.partition
    if data.name != "synthetic" or not isinstance(partition, NaturalPartition) or partition.devices is None:
        return
    drawn = (data.synthetic or SyntheticSettings()).num_devices
    if partition.devices != drawn:
        raise ExperimentError(
            f"partition.devices is {partition.devices}, and data.synthetic.num_devices is {drawn}; make them equal"
        )


def _check_topology(experiment: Experiment) -> None:
    topology, count = experiment.topology, experiment.device_count
    if topology is None:
        return
    if topology.devices is not None:
        placed = sorted(index for devices in topology.devices for index in devices)
        if placed != list(range(count)):
            raise ExperimentError(
                f"topology.devices lists {len(placed)} devices; list each of the devices 0 to {count - 1} once"
            )
    if topology.lps > count:
        raise ExperimentError(f"topology.lps is {topology.lps}, more than the {count} devices; lower it")


def _check_newcomers(experiment: Experiment, method: Method) -> None:
    settings, count, rounds = experiment.newcomers, experiment.device_count, experiment.training.global_rounds
    if settings is None:
        return
    _check_device(experiment, max(settings.devices or (0,)), "newcomers.devices")
    if settings.from_global_round > rounds + 1:
        raise ExperimentError(
            f"newcomers.from_global_round is {settings.from_global_round}, and training.global_rounds is {rounds}; set "
            f"at most {rounds + 1}, with which newcomers only use the final models"
        )
    newcomers, clusters = experiment.newcomer_indexes, max(1, method.clusters_known)
    if not newcomers:
        raise ExperimentError(
            f"newcomers.share {settings.share:g} of {count} devices selects no device (one device of each group is "
            "never a newcomer); raise newcomers.share, or list devices in newcomers.devices"
        )
    founders = _founders(experiment)
    if len(founders) < clusters:
        raise ExperimentError(
            f"newcomers: {len(founders)} devices are not newcomers, too few for {clusters} clusters; name fewer "
            "newcomers"
        )
    heard = set(method.relays()) - newcomers
    if any(question.relayed for question in method.questions()) and len(heard) < clusters:
        raise ExperimentError(
            f"newcomers: {len(heard)} landmarks are not newcomers, too few for {clusters} clusters; raise "
            "method.landmarks"
        )
    homes = homes_of(experiment, method, [founders]) if are_placed_by_index(experiment, method) else []
    if not all(homes):
        raise ExperimentError(
            f"newcomers: all devices of lps-{homes.index(())} are newcomers; leave one out of newcomers"
        )


def _check_attacks(experiment: Experiment) -> None:
    rounds, count = experiment.training.global_rounds, lps_count(experiment)
    for entry in attacks_of(experiment):
        settings, where = entry.attack.options, f"attacks.{entry.number}"
        _check_device(experiment, max(settings.devices or (0,)), f"{where}.devices")
        if max(settings.lps or (0,)) >= count:
            raise ExperimentError(f"{where}.lps: there is no LPS {max(settings.lps or (0,))}; topology.lps is {count}")
        if settings.lps and (entry.attack.changes_examples or not entry.attack.changes_updates):
            raise ExperimentError(f"{where}.lps: {settings.name} changes examples, and an LPS has none; name devices")
        if entry.attack.states_numbers and (settings.from_global_round > 1 or settings.until_global_round):
            raise ExperimentError(
                f"{where}: {settings.name} changes a number on which plans depend, so it goes on in all rounds; remove "
                "from_global_round and until_global_round"
            )
        if settings.share is not None and not entry.devices:
            raise ExperimentError(
                f"{where}.share {settings.share:g} of {experiment.device_count} devices selects no device; raise it, "
                "or list devices"
            )
        if settings.from_global_round > rounds:
            raise ExperimentError(
                f"{where}.from_global_round is {settings.from_global_round}, more than training.global_rounds, "
                f"{rounds}; lower it"
            )


def _founders(experiment: Experiment) -> list[int]:
    """Return the indexes of the devices that are not newcomers."""
    return [index for index in range(experiment.device_count) if index not in experiment.newcomer_indexes]


def _check_rules(experiment: Experiment, method: Method) -> None:
    ids = experiment.device_ids()
    make_rule(experiment, "lps").check([ids[index] for index in _founders(experiment)])
    if known := lps_known(experiment, method):
        make_rule(experiment, "gps").check([f"lps-{number}" for number in range(known)])


def _check_architectures(experiment: Experiment) -> None:
    rounds = experiment.training.global_rounds
    begun: set[tuple[int, int]] = set()
    for entry in experiment.architectures:
        _check_device(experiment, max(entry.devices), "architectures")
        first = entry.from_global_round
        if first > rounds:
            raise ExperimentError(
                f"architectures: from_global_round is {first}, more than training.global_rounds, {rounds}; lower "
                "from_global_round"
            )
        starts = {(device, first) for device in entry.devices}
        if twice := begun & starts:
            raise ExperimentError(
                f"architectures: device {min(twice)[0]} begins with two models in global round {first}; remove it from "
                "one entry"
            )
        begun |= starts


def _check_entries(experiment: Experiment) -> None:
    """Raise ExperimentError if the schedule names devices or links that do not exist, or gives a link contradictory
    values.
    """
    for number, entry in enumerate(experiment.schedule):
        where = f"schedule.{number}"
        _check_device(experiment, max(entry.devices, default=0), where)
        on_link = entry.set_ or entry.cut
        if on_link is not None and on_link.link == "shared" and experiment.links.shared is None:
            raise ExperimentError(f"{where}: there is no shared link; add links.shared.device-lps")
        if entry.set_ is not None and entry.set_.link == "shared":
            _check_shared(experiment, entry.set_, where)
    for where, link in ScheduledLinks(experiment).all_parts():
        check_link(link, f"schedule: {where}")


def _check_shared(experiment: Experiment, change: SetLink, where: str) -> None:
    shared = experiment.links.shared
    for key in change.said:
        if shared is None or getattr(shared.device_lps, key) is None:
            raise ExperimentError(f"{where}: the shared link has no {key}; add links.shared.device-lps.{key}")


def _check_lps(experiment: Experiment, method: Method) -> None:
    """Raise ExperimentError if the schedule names LPSs that do not exist. If the plan decides the number of LPSs,
    nothing can be checked.
    """
    known = lps_known(experiment, method)
    for number, entry in enumerate(experiment.schedule):
        if known and max(entry.lps, default=0) >= known:
            raise ExperimentError(
                f"schedule.{number}: there is no lps-{max(entry.lps)}; the run has lps-0 to lps-{known - 1}"
            )


def _check_moves(experiment: Experiment) -> None:
    """Raise ExperimentError for a move at time 0, which has no effect because training begins then. Also raise it for
    moves that leave an LPS without devices. Without a clock the schedule moves no devices, so there is no error.
    """
    homes = Homes(experiment)
    if any(at_ns == 0 for at_ns in homes.times):
        raise ExperimentError("schedule: a move at 0s has no effect; write in topology.devices where devices begin")
    before = {index: home_of(experiment, index) for index in range(experiment.device_count)} if homes.times else {}
    for at_ns in homes.times:
        now = {**before, **homes.at(at_ns)}
        empty = set(before.values()) - set(now.values())
        if empty:
            raise ExperimentError(
                f"schedule: lps-{min(empty)} would have no device after the move at {at_ns / 1e9:g}s; leave one device "
                "there"
            )
        before = now


def _check_leaves(experiment: Experiment) -> None:
    """Raise ExperimentError if no device is present after the last change of the schedule, because the run would then
    never end. Without a clock, devices never leave.
    """
    presence, last_ns = Presence(experiment), max(entry.at for entry in experiment.schedule)
    if not presence.there(range(experiment.device_count), last_ns):
        raise ExperimentError(f"schedule: after {last_ns / 1e9:g}s all devices have left for good; let one return")
