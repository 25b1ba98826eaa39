"""What `fedstrata check` says of the virtual clock: each device's link and board, and how long rounds should take."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from emulator.report.units import counted, human_joules, human_seconds
from emulator.timeline import PARTS
from fedstrata.cohort import cohort
from fedstrata.datasets import load_dataset
from fedstrata.energy import JOULE_FJ, DeviceEnergy, counts_energy
from fedstrata.experiment import Experiment
from fedstrata.homes import homes_of
from fedstrata.link_settings import WAYS, LinkTimes
from fedstrata.methods import make_method
from fedstrata.partitions import example_counts
from fedstrata.quantities import written_devices, written_duration, written_rate
from fedstrata.streams import spans_lps
from fedstrata.timeline import DeviceTimeline, Exchanged, LpsTimeline
from fedstrata.v1 import rounds_pb2 as pb

ROUNDS_MAX = 20  # LPS rounds whose draws are looked at


@dataclass(frozen=True, kw_only=True)
class Payloads:
    """Bytes of one child: of a device in an LPS round, and of an LPS in a global round."""

    device_down: int
    device_up: int
    lps_down: int
    lps_up: int


@dataclass(frozen=True, kw_only=True)
class ExpectedTimes:
    """Means over rounds: of the LPS with the longest LPS rounds, and of global rounds; and of the whole training."""

    lps_round: pb.RoundTimes
    global_round: pb.RoundTimes
    rounds: int  # LPS rounds that were looked at
    total_ns: int
    device_fj: int = 0  # what a mean device takes in an LPS round, in femtojoules


def expected_times(experiment: Experiment, payloads: Payloads) -> ExpectedTimes:
    """How long rounds should take, with devices dealt out to as many LPSs as are known before the run."""
    training = experiment.training
    rounds, timeline = min(ROUNDS_MAX, training.lps_rounds), DeviceTimeline(experiment)
    ids, sent = experiment.device_ids(), _sent(experiment, payloads)
    indexes = {device_id: index for index, device_id in enumerate(ids)}
    means, energy = [], DeviceEnergy(experiment)
    spent: list[int] = []
    for home in _homes(experiment):
        asked = [cohort(home, training.participation, experiment.seed, number) for number in range(rounds)]
        exchanged = [{ids[index]: sent[index] for index in drawn} for drawn in asked]
        looked_at = [timeline.round(number, 0, each, indexes) for number, each in enumerate(exchanged)]
        means.append(_mean(looked_at))
        spent += [energy.of(flow).total for times in looked_at for flow in times.flows]
    busy = [training.lps_rounds_per_global_round * mean.ends_ns for mean in means]
    up = {
        f"lps-{number}": Exchanged(
            down_bytes=payloads.lps_down, up_bytes=payloads.lps_up, work=pb.Work(busy_ns=busy_ns)
        )
        for number, busy_ns in enumerate(busy)
    }
    globally = LpsTimeline(experiment).round(0, 0, up)
    return ExpectedTimes(
        lps_round=max(means, key=lambda mean: mean.ends_ns),
        global_round=globally,
        rounds=rounds,
        total_ns=training.global_rounds * globally.ends_ns,
        device_fj=sum(spent) // max(1, len(spent)),
    )


def _sent(experiment: Experiment, payloads: Payloads) -> list[Exchanged]:
    """What each device exchanges with its LPS in a round, and what it trains on."""
    training, method = experiment.training, make_method(experiment)
    streams = max(1, method.clusters_known) if spans_lps(experiment, method) else 1
    return [
        Exchanged(
            down_bytes=payloads.device_down,
            up_bytes=payloads.device_up,
            work=pb.Work(examples=training.trained_examples(count)),
            stream=index % streams,
        )
        for index, count in enumerate(example_counts(experiment, load_dataset(experiment.data)))
    ]


def _homes(experiment: Experiment) -> list[tuple[int, ...]]:
    """The devices of each LPS as far as it is known: by the topology, or else dealt out in index order."""
    method, devices = make_method(experiment), range(experiment.device_count)
    clusters = max(1, method.clusters_known)
    dealt = [tuple(devices[number::clusters]) for number in range(min(clusters, len(devices)))]
    return homes_of(experiment, method, dealt)


def _mean(rounds: Sequence[pb.RoundTimes]) -> pb.RoundTimes:
    """The mean of rounds of the same children that all begin at zero."""
    mean = pb.RoundTimes(children=rounds[0].children, slowest=rounds[0].slowest)
    for name in ("ends_ns", *(f"{part}_ns" for part in PARTS)):
        setattr(mean, name, sum(getattr(times, name) for times in rounds) // len(rounds))
    return mean


def print_times(experiment: Experiment, payloads: Payloads, console: Console) -> None:
    """Print the links of devices and LPSs, and the expected time of rounds by part."""
    console.print(_link_table(experiment))
    expected = expected_times(experiment, payloads)
    table = Table("expected time", box=None, header_style="dim", pad_edge=False)
    for part in (*PARTS, "round"):
        table.add_column(part, justify="right")
    for name, times in (
        ("LPS round, a mean device", expected.lps_round),
        ("global round, a mean LPS", expected.global_round),
    ):
        means = [getattr(times, f"{part}_ns") / max(1, times.children) for part in PARTS]
        table.add_row(name, *(human_seconds(each / 1e9) for each in (*means, times.ends_ns)))
    console.print(table)
    dealt = "" if experiment.topology is not None else ", devices dealt out to LPSs in index order"
    draws = f"the draws of {counted(expected.rounds, 'LPS round')}{dealt}"
    console.print(
        f"training: about {human_seconds(expected.total_ns / 1e9)}, from payloads and {draws}", soft_wrap=True
    )
    if counts_energy(experiment):
        took = human_joules(expected.device_fj / JOULE_FJ)
        console.print(f"energy: about {took} a mean device and LPS round", soft_wrap=True)


def _link_table(experiment: Experiment) -> Table:
    """A row for all devices with one link and board, one for the LPSs, and one for what is shared."""
    table = Table("link", "of", box=None, header_style="dim", pad_edge=False)
    for column in ("down", "up", "latency", "jitter", "loss", "profile"):
        table.add_column(column, justify="right")
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
    return written_rate(rate) if rate is not None else "unlimited"


def _link_cells(link: LinkTimes) -> list[str]:
    loss = f"{100 * link.loss:g} %" if link.loss else "none"
    shown = ["trace" if link.trace(way) is not None else _written(link.rate(way)) for way in WAYS]
    return [*shown, written_duration(link.latency), written_duration(link.jitter), loss]
