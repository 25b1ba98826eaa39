"""Partitions: which examples each device owns (`owned`). The modules `tasks`, `groups`, `draws` and `found` implement
the kinds of partition. The module `set_aside` chooses public examples, and a part of each device's examples for tests.
"""

from fedstrata.partitions.owned import (
    DeviceData,
    PublicData,
    check_partition,
    device_data,
    example_counts,
    held_out_counts,
    label_drift,
    public_data,
)

__all__ = [
    "DeviceData",
    "PublicData",
    "check_partition",
    "device_data",
    "example_counts",
    "held_out_counts",
    "label_drift",
    "public_data",
]
