"""Partitions: which examples each device owns (`owned`). Each kind of partition has a module (`registry`). The module
`tests_of_devices` has the test sets, and `public_examples` chooses examples that no device owns.
"""

from fedstrata.partitions.assignment import Assignment
from fedstrata.partitions.base import Partition
from fedstrata.partitions.owned import (
    DeviceData,
    PublicData,
    check_partition,
    device_data,
    device_shifts,
    example_counts,
    held_out_counts,
    label_drift,
    public_data,
)
from fedstrata.partitions.shifts import Shift
from fedstrata.partitions.stock import kinds_of, tests_like

__all__ = [
    "Assignment",
    "DeviceData",
    "Partition",
    "PublicData",
    "Shift",
    "check_partition",
    "device_data",
    "device_shifts",
    "example_counts",
    "held_out_counts",
    "kinds_of",
    "label_drift",
    "public_data",
    "tests_like",
]
