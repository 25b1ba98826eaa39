"""Print the part of `fedstrata check` for a run with a clock: each device's link and board, and the expected time of
rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from emulator.console.console_tables import plain_table
from emulator.console.energy_text import human_joules
from emulator.console.units import counted, human_seconds
from fedstrata.clock.device_times import Presence
from fedstrata.clock.energy import JOULE_FJ, DeviceEnergy, counts_energy
from fedstrata.clock.exchanged import Exchanged
from fedstrata.clock.timeline import DeviceTimeline, Driver, LpsTimeline, Sent
from fedstrata.datasets import Dataset
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.links import WAYS, LinkTimes
from fedstrata.experiment.quantities import DURATION, RATE, written_devices
from fedstrata.experiment.sections import TrainingSettings
from fedstrata.methods import Moment, make_method, trained_examples_of
from fedstrata.methods.cohort import cohort
from fedstrata.partitions import example_counts
from fedstrata.record.timeline import PARTS
from fedstrata.streams.homes import are_placed_by_index, asks_in_training, homes_of, spans_lps
from fedstrata.v1 import rounds_pb2 as pb

ROUNDS_MAX = 20  # LPS rounds whose random draws are used


@dataclass(frozen=True, kw_only=True)
class Payloads:
    """Hold the bytes that one child exchanges with its parent. A device exchanges them in an LPS round, and an LPS in a
    global round.
    """

    device_down: int
    device_up: int
    lps_down: int
    lps_up: int
    answer: int = 0  # bytes of a device's answer, if it is asked in global rounds


@dataclass(frozen=True, kw_only=True)
class ExpectedTimes:
    """Hold the expected times of an average LPS round, of an average global round, and of the whole training. The LPS
    round is a round of the LPS with the longest rounds.
    """

    lps_round: pb.RoundTimes
    global_round: pb.RoundTimes
    rounds: int  # the number of LPS rounds in the estimate
    total_ns: int
    device_fj: int = 0  # energy of a mean device in an LPS round, in femtojoules


def expected_times(experiment: Experiment, payloads: Payloads, dataset: Dataset) -> ExpectedTimes:
    """Return the expected times of rounds without the changes of the schedule. If the LPS of each device is not known
    before the run, devices are distributed evenly over the LPSs.
    """
    experiment = experiment.model_copy(update={"schedule": ()})
    training, ids = experiment.training, experiment.device_ids()
    moment = asks_in_training(make_method(experiment))
    rounds, homes = rounds_looked_at(training, moment), expected_homes(experiment)
    counts = example_counts(experiment, dataset)
    built: dict[tuple[Moment | None, tuple[int, ...]], list[Exchanged]] = {}
    drawn = []
    for number in range(rounds):
        asked = None if number % training.lps_rounds_per_global_round else moment
        key = asked, tuple(trained_in(experiment, counts, number))
        if key not in built:  # rounds with equal work share their transfers
            built[key] = exchanged_in(experiment, payloads, *key)
        cohorts = [cohort(home, training.participation, experiment.seed, number) for home in homes]
        drawn.append([{ids[index]: built[key][index] for index in each} for each in cohorts])
    looked_at = _rounds(experiment, payloads, drawn, is_asking=moment is not None)
    energy = DeviceEnergy(experiment)
    spent = [energy.of(flow).total for each in looked_at for times in each for flow in times.flows]
    means = [_mean(each) for each in zip(*looked_at, strict=True)]
    up = {
        f"lps-{number}": Exchanged(
            down_bytes=payloads.lps_down,
            up_bytes=payloads.lps_up,
            work=pb.Work(busy_ns=training.lps_rounds_per_global_round * mean.ends_ns),
        )
        for number, mean in enumerate(means)
    }
    globally = LpsTimeline(experiment).round(0, 0).times(up)
    return ExpectedTimes(
        lps_round=max(means, key=lambda mean: mean.ends_ns),
        global_round=globally,
        rounds=rounds,
        total_ns=training.global_rounds * globally.ends_ns,
        device_fj=sum(spent) // max(1, len(spent)),
    )


def check_deadline(experiment: Experiment, payloads: Payloads, dataset: Dataset) -> None:
    """Check that enough devices can meet the deadline in the first LPS round. The check assumes that no device shares
    its links with others.

    If the clusters are not known before the run, their quorums are not known either. Then it is enough if one device
    can meet the deadline.

    Raises:
        ExperimentError: too few devices can meet the deadline. The message has the time of the device that would
            complete the quorum.
    """
    wait, method, everybody = experiment.deadlines.lps, make_method(experiment), range(experiment.device_count)
    if wait.deadline_s is None:
        return
    uplinks, counts = LpsTimeline(experiment), example_counts(experiment, dataset)
    knows_homes = are_placed_by_index(experiment, method) or method.clusters_known == 1
    for number, home in enumerate(expected_homes(experiment) if knows_homes else [everybody]):
        is_sent = spans_lps(experiment, method)  # otherwise the LPS computes the first model itself
        begins_ns = uplinks.arrival_ns(f"lps-{number}", 0, 0, payloads.lps_down) if is_sent else 0
        founders = [index for index in home if index not in experiment.newcomer_indexes]
        there = Presence(experiment).there(founders, begins_ns)
        asked = cohort(list(there), experiment.training.participation if knows_homes else None, experiment.seed, 0)
        took = _alone(experiment, payloads, counts, {index: max(begins_ns, there[index]) for index in asked})
        quorum = wait.quorum(len(asked)) if knows_homes else 1
        _check_quorum(took, quorum, f"lps-{number}" if knows_homes else "all LPSs", wait.deadline_s)


def _alone(
    experiment: Experiment, payloads: Payloads, counts: Sequence[int], begins_ns: Mapping[int, int]
) -> list[tuple[int, str]]:
    """Return how long each device takes in an LPS round if no other device uses the links. The result is in ascending
    order.

    If devices are asked a question in the round, the time ends when a device's answer arrives. Otherwise it ends when
    the update arrives.
    """
    timeline, ids, moment = (
        DeviceTimeline(experiment),
        experiment.device_ids(),
        asks_in_training(make_method(experiment)),
    )
    sent, found = exchanged_in(experiment, payloads, moment, trained_in(experiment, counts, 0)), []
    for index, at_ns in begins_ns.items():
        name, each = ids[index], sent[index]
        timed = timeline.round(0, at_ns)
        part = timed.update_alone(name, each) if moment is None else timed.answer_alone(name, each)
        found.append((part.ended_ns - at_ns, name))
    return sorted(found)


def _check_quorum(fastest: Sequence[tuple[int, str]], needed: int, whose: str, deadline_s: float) -> None:
    """Check that the needed number of devices meets the deadline. Raises ExperimentError if it does not. `fastest` is
    in ascending order of times.
    """
    if not fastest or fastest[needed - 1][0] <= round(deadline_s * 1e9):
        return
    took_ns, name = fastest[needed - 1]
    in_time = sum(1 for each, _ in fastest if each <= round(deadline_s * 1e9))
    raise ExperimentError(
        f"deadlines.lps.deadline_s is {deadline_s:g}, but only {in_time} of {len(fastest)} devices of {whose} can meet "
        f"it in the first round, and {needed} are needed: {name} takes {took_ns / 1e9:.4g} s; raise the deadline"
    )


def rounds_looked_at(training: TrainingSettings, moment: Moment | None) -> int:
    """Return the number of LPS rounds of which the times are calculated.

    If devices answer a question in the first LPS round of each global round, this round takes longer than the others.
    Then the number is a multiple of the LPS rounds per global round. So the mean over the calculated rounds is not
    distorted.
    """
    each = training.lps_rounds_per_global_round if moment is not None else 1
    return min(max(ROUNDS_MAX // each, 1) * each, training.lps_rounds)


def _rounds(
    experiment: Experiment, payloads: Payloads, drawn: Sequence[Sequence[Sent]], *, is_asking: bool
) -> list[list[pb.RoundTimes]]:
    """Return the times of each LPS round at each LPS. An LPS round without a question to devices begins at time 0. In
    an LPS round with a question, time 0 is the beginning of the global round. This LPS round begins when the model has
    arrived at the LPS.
    """
    driver, rounds, found = Driver(experiment), experiment.training.lps_rounds_per_global_round, []
    for number, by_lps in enumerate(drawn):
        sent, (global_round, place) = {f"lps-{lps}": [each] for lps, each in enumerate(by_lps)}, divmod(number, rounds)
        asks = is_asking and not place
        begins = {
            name: driver.uplinks.arrival_ns(name, global_round, 0, payloads.lps_down) if asks else 0 for name in sent
        }
        times = driver.lps_rounds(global_round, number, begins, sent, is_asking=asks)
        found.append([each for (each,) in times.values()])
    return found


def trained_in(experiment: Experiment, counts: Sequence[int], lps_round: int) -> list[int]:
    """Return on how many examples, with repetitions, each device trains in an LPS round. `counts` has each device's
    number of examples. If the method cannot tell this before the run, assume that each device trains once, as the
    section `training` says.
    """
    method, training = make_method(experiment), experiment.training
    known = {count: trained_examples_of(method, count, lps_round) for count in set(counts)}
    once = {count: training.trained_examples(count) if found is None else found for count, found in known.items()}
    return [once[count] for count in counts]


def exchanged_in(
    experiment: Experiment, payloads: Payloads, moment: Moment | None, trained: Sequence[int]
) -> list[Exchanged]:
    """Return how many bytes each device exchanges with its LPS in a round.

    `moment` is the time in the round at which devices are asked a question. It is None for a round without a question.
    `trained` has the number of examples on which each device trains in the round.
    """
    method = make_method(experiment)
    streams = max(1, method.clusters_known) if spans_lps(experiment, method) else 1
    return [
        Exchanged(
            down_bytes=payloads.device_down,
            up_bytes=payloads.device_up,
            work=pb.Work(
                examples=examples,
                answer_bytes=payloads.answer if moment is not None else 0,
                answer_examples=examples if moment is Moment.TRAINED else 0,
            ),
            stream=index % streams,
        )
        for index, examples in enumerate(trained)
    ]


def expected_homes(experiment: Experiment) -> list[tuple[int, ...]]:
    """Return the devices of each LPS. In some runs, the LPS of a device depends on its cluster, and clusters are formed
    during the run. For such a run, the devices are distributed evenly, in the order of their indexes.
    """
    method, devices = make_method(experiment), range(experiment.device_count)
    clusters = max(1, method.clusters_known)
    dealt = [tuple(devices[number::clusters]) for number in range(min(clusters, len(devices)))]
    return homes_of(experiment, method, dealt)


def _mean(rounds: Sequence[pb.RoundTimes]) -> pb.RoundTimes:
    """Return the average of the times of several rounds, as one round that begins at time 0. All rounds must have the
    same number of children (devices of an LPS).
    """
    mean = pb.RoundTimes(children=rounds[0].children, slowest=rounds[0].slowest)
    mean.ends_ns = sum(times.ends_ns - times.begins_ns for times in rounds) // len(rounds)
    for name in (f"{part}_ns" for part in PARTS):
        setattr(mean, name, sum(getattr(times, name) for times in rounds) // len(rounds))
    return mean


def print_times(experiment: Experiment, payloads: Payloads, dataset: Dataset, console: Console) -> None:
    """Print the expected time of each part of a round."""
    expected = expected_times(experiment, payloads, dataset)
    table = plain_table("expected time", numbers=[*PARTS, "round"])
    for name, times in (
        ("LPS round, a mean device", expected.lps_round),
        ("global round, a mean LPS", expected.global_round),
    ):
        means = [getattr(times, f"{part}_ns") / max(1, times.children) for part in PARTS]
        table.add_row(name, *(human_seconds(each / 1e9) for each in (*means, times.ends_ns)))
    console.print(table)
    dealt = "" if experiment.topology is not None else ", with devices assigned to LPSs in turn"
    is_known = trained_examples_of(make_method(experiment), 1, 0) is not None
    once = "" if is_known else "one training per round, "
    based_on = f"payloads, {once}and the draws of {counted(expected.rounds, 'LPS round')}{dealt}"
    console.print(f"training: about {human_seconds(expected.total_ns / 1e9)}, from {based_on}", soft_wrap=True)
    if counts_energy(experiment):
        took = human_joules(expected.device_fj / JOULE_FJ)
        console.print(f"energy: about {took} per LPS round for a mean device", soft_wrap=True)


def print_links(experiment: Experiment, console: Console) -> None:
    """Print the links of devices and LPSs."""
    console.print(_link_table(experiment))


def _link_table(experiment: Experiment) -> Table:
    """Return a table of links. It has a row for each group of devices with the same link and board, and a row for the
    LPSs. If links are shared, it has a row for them, too.
    """
    table = plain_table("link", "of", numbers=["down", "up", "latency", "jitter", "loss", "profile"])
    common, own = experiment.links.common(), experiment.links.of_devices()
    factors = experiment.compute.factors() if experiment.compute is not None else {}
    alike: dict[tuple[LinkTimes, float], list[int]] = {}
    for index in range(experiment.device_count):
        alike.setdefault((own.get(index, common), factors.get(index, 1.0)), []).append(index)
    for (link, factor), indexes in alike.items():
        named = ", ".join(str(each) for each in written_devices(indexes))
        table.add_row("device-lps", Text(f"devices {named}"), *_link_cells(link), f"{factor:g} ×")
    table.add_row("lps-gps", "each LPS", *_link_cells(experiment.links.uplink()), "")
    shared = experiment.links.shared
    if shared is not None:
        rates = LinkTimes(down_rate=shared.device_lps.down_rate, up_rate=shared.device_lps.up_rate)
        table.add_row("device-lps", "all of an LPS, shared", *_link_cells(rates)[:2], "", "", "", "")
    return table


def _written(rate: int | None) -> str:
    return RATE.written(rate) if rate is not None else "unlimited"


def _link_cells(link: LinkTimes) -> list[str]:
    loss = f"{100 * link.loss:g} %" if link.loss else "none"
    shown = ["trace" if link.trace(way) is not None else _written(link.rate(way)) for way in WAYS]
    return [*shown, DURATION.written(link.latency), DURATION.written(link.jitter), loss]
