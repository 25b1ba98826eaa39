"""Say what an LPS round costs on this machine: seconds of training, memory and bytes."""

import resource
from dataclasses import dataclass

from emulator.console.units import counted, human_bytes, human_seconds
from emulator.estimates.check import asked_devices, model_size, round_bytes
from emulator.estimates.check_times import trained_in
from fedstrata.datasets import Dataset, dataset_info
from fedstrata.experiment import Experiment
from fedstrata.partitions import example_counts

RESIDENT_UNIT = 1024  # bytes in a unit of ru_maxrss on Linux


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """Hold what an LPS round of the run costs on this machine."""

    device_s: float  # seconds in which the median device trains
    examples: int  # examples of the median device
    asked: int  # devices that all LPSs ask in an LPS round
    lps_rounds: int  # of the run
    cores: int  # cores of this machine that a run uses
    training_s: float  # seconds in which one core trains all asked devices
    memory_bytes: int  # largest memory of this process, which is like a device's process
    bytes_up: int  # payload bytes that devices send in an LPS round
    bytes_down: int  # payload bytes that devices receive in an LPS round

    @property
    def round_s(self) -> float:
        """Seconds of training in an LPS round, if its devices share the cores evenly."""
        return self.training_s / min(self.cores, self.asked)

    @property
    def of_device(self) -> str:
        """A line about the time and memory that a device needs for an LPS round."""
        return (
            f"a device with {counted(self.examples, 'example')} trains an LPS round in {human_seconds(self.device_s)} "
            f"on this machine; the process took {human_bytes(self.memory_bytes)}"
        )

    @property
    def of_run(self) -> str:
        """Lines about the cost of an LPS round and of the run. For asynchronous rounds, this cost is an upper limit."""
        lps_round, both = human_seconds(self.round_s), self.bytes_up + self.bytes_down
        of_run = human_seconds(self.lps_rounds * self.round_s)
        return (
            f"an LPS round trains {counted(self.asked, 'device')}, one after another on each of "
            f"{counted(self.cores, 'core')}: about {lps_round}, and {human_bytes(both)} between devices and LPSs\n"
            f"the run has {counted(self.lps_rounds, 'LPS round')}: about {of_run} of training, and "
            f"{human_bytes(self.lps_rounds * both)}. Starts, questions, measurements and messages take more time. "
            "Dense models that a process trains together take less"
        )


def round_cost(experiment: Experiment, dataset: Dataset, *, per_example_s: float, cores: int) -> RoundCost:
    """Return what an LPS round costs on this many cores, if training an example takes this many seconds. Call this
    function in a process that has already trained, because it also measures the memory of this process.
    """
    counts = example_counts(experiment, dataset)
    asked, training = asked_devices(experiment), experiment.training
    trained = trained_in(experiment, counts, training.lps_rounds - 1)  # the first LPS round can differ from all others
    median = sorted(range(len(counts)), key=counts.__getitem__)[len(counts) // 2]
    sent = round_bytes(experiment, model_size(experiment, dataset_info(experiment.data)))
    return RoundCost(
        device_s=per_example_s * trained[median],
        examples=counts[median],
        asked=asked,
        lps_rounds=training.lps_rounds,
        cores=cores,
        training_s=per_example_s * sum(trained) * asked / len(counts),
        memory_bytes=RESIDENT_UNIT * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        bytes_up=sent.device_lps_up,
        bytes_down=sent.device_lps_down,
    )
