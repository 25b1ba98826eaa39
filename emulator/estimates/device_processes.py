"""Divide the devices of a run among processes of one machine."""

import os
from contextlib import suppress
from pathlib import Path

from fedstrata.experiment import Experiment
from fedstrata.processors import processor_of


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that this process may use. Both the machine and the container's CPU limit
    restrict it.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroups version 2 and 1
        with suppress(OSError, ValueError):  # the other version, or no limit
            quota, period = (int(word) for name in names for word in (cgroup / name).read_text().split())
            if quota > 0:
                return max(1, min(cores, quota // period))
    return cores


def process_count(experiment: Experiment, asked: int | None) -> int:
    """Return the number of device processes of a run. `asked` is the number that the user wants, or None."""
    return asked or processor_of(experiment).processes or usable_cores()


def processes_beside(experiment: Experiment, runs: int) -> int:
    """Return the number of device processes per run, if `runs` runs share this machine."""
    return processor_of(experiment).processes or max(1, usable_cores() // runs)


def share_arguments(experiment: Experiment, processes: int) -> tuple[str, ...]:
    """Return the command-line options for each of `processes` device processes. If the processes share a processor with
    its own memory, the options limit the memory of each process.
    """
    if processes == 1 or not processor_of(experiment).keeps_data:
        return ()
    return ("--processor-share", repr(1 / processes))


def device_ranges(devices: int, processes: int) -> list[range]:
    """Return contiguous ranges of device indexes, at most one per process. Their lengths differ by at most one.

    >>> device_ranges(5, 2)
    [range(0, 3), range(3, 5)]
    """
    parts = min(processes, devices)
    shorter, longer = divmod(devices, parts)
    lengths = [shorter + 1] * longer + [shorter] * (parts - longer)
    starts = [sum(lengths[:index]) for index in range(parts)]
    return [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
