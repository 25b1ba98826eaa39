"""Predict the resources that a global round uses, without training. Read from a record the resources that a run has
used.
"""

from collections import defaultdict
from statistics import fmean

from emulator.estimates.asynchronous_times import Timeline, timeline_of
from emulator.estimates.check import asked_devices, model_size, payloads_of
from emulator.estimates.check_times import expected_homes, expected_times, rounds_looked_at, trained_in
from emulator.planner.resources import Amounts, Resource
from emulator.results.read_record import RunRecord
from fedstrata.clock.energy import JOULE_FJ, DeviceEnergy, counts_energy
from fedstrata.datasets import Dataset, dataset_info
from fedstrata.experiment import Experiment
from fedstrata.partitions import example_counts
from fedstrata.record.energy import ENERGY
from fedstrata.record.timeline import FLOWS
from fedstrata.v1 import rounds_pb2 as pb

NS = 1e9
TABLES = {
    Resource.SECONDS: "waits.csv",
    Resource.DEVICE_BYTES: "rounds.csv",
    Resource.LPS_GPS_BYTES: "flows.csv",
    Resource.JOULES: "energy.csv",
}  # the file of a record with what a run has used


def costs_of_round(experiment: Experiment, dataset: Dataset) -> Amounts:
    """Return how much of each resource an average global round uses. `dataset` has the experiment's data."""
    settings = experiment.training.rounds.asynchronous
    if settings is not None:
        return _of_timeline(experiment, timeline_of(experiment, settings, dataset))
    payloads = payloads_of(experiment, model_size(experiment, dataset_info(experiment.data)))
    expected, training = expected_times(experiment, payloads, dataset), experiment.training
    asked = asked_devices(experiment)
    trained = asked * training.lps_rounds_per_global_round  # devices in a global round
    found = {
        Resource.SECONDS: expected.total_ns / NS / training.global_rounds,
        Resource.DEVICE_BYTES: trained * (payloads.device_down + payloads.device_up) + asked * payloads.answer,
        Resource.LPS_GPS_BYTES: len(expected_homes(experiment)) * (payloads.lps_down + payloads.lps_up),
        Resource.JOULES: trained * expected.device_fj / JOULE_FJ,
    }
    return _counted(experiment, found)


def work_of_round(experiment: Experiment, dataset: Dataset) -> float:
    """Return on how many examples, with repetitions, an asked device trains in an average global round, at least 1.
    `dataset` has the experiment's data.
    """
    counts, training = example_counts(experiment, dataset), experiment.training
    rounds = rounds_looked_at(training, None)
    trained = [fmean(trained_in(experiment, counts, number)) for number in range(rounds)]
    return max(1.0, training.lps_rounds_per_global_round * fmean(trained))


def used_until(record: RunRecord, global_round: int) -> Amounts:
    """Return how much of each resource a finished run has used from the beginning of training until the end of a global
    round. Resources without a number in the record are left out. Raises DataError if a file of the record is malformed.
    """

    def is_until(number: int | None) -> bool:
        return number is not None and number <= global_round

    lasted: dict[int, float] = defaultdict(float)  # seconds by global round
    for wait in record.waits:
        if wait.tier == "gps" and is_until(wait.global_round):
            lasted[wait.global_round] = max(lasted[wait.global_round], wait.busy_s + wait.waiting_s)
    folder = record.folder
    flows = [
        row
        for row in FLOWS.read_if_there(folder / TABLES[Resource.LPS_GPS_BYTES])
        if row.tier == "gps" and is_until(row.global_round)
    ]
    spent = [row for row in ENERGY.read_if_there(folder / TABLES[Resource.JOULES]) if is_until(row.global_round)]
    found = {
        Resource.SECONDS: sum(lasted.values()),
        Resource.DEVICE_BYTES: sum(
            row.bytes_up + row.bytes_down for row in record.rounds if is_until(row.global_round)
        ),
        Resource.LPS_GPS_BYTES: sum(row.down_bytes + row.up_bytes for row in flows),
        Resource.JOULES: sum(row.down_j + row.compute_j + row.up_j for row in spent),
    }
    return {name: float(amount) for name, amount in found.items() if amount}


def _of_timeline(experiment: Experiment, timeline: Timeline) -> Amounts:
    """Return the mean over the global rounds of a whole timeline."""
    count, energy = experiment.training.global_rounds, DeviceEnergy(experiment)
    of_devices = [flow for rounds in timeline.lps_rounds.values() for times in rounds for flow in times.flows]
    of_lpss = [flow for times in timeline.global_rounds for flow in times.flows]
    found = {
        Resource.SECONDS: timeline.global_rounds[-1].ends_ns / NS,
        Resource.DEVICE_BYTES: float(_bytes(of_devices)),
        Resource.LPS_GPS_BYTES: float(_bytes(of_lpss)),
        Resource.JOULES: sum(energy.of(flow).total for flow in of_devices) / JOULE_FJ,
    }
    return _counted(experiment, {name: amount / count for name, amount in found.items()})


def _bytes(flows: list[pb.Flow]) -> int:
    return sum(flow.down_bytes + flow.up_bytes for flow in flows)


def _counted(experiment: Experiment, found: dict[Resource, float]) -> Amounts:
    """Return the amounts without energy, if the experiment does not count energy."""
    return {name: each for name, each in found.items() if name is not Resource.JOULES or counts_energy(experiment)}
