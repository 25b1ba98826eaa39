"""Partitions: which examples each device owns (`owned`). Each kind of partition has a module: `tasks`, `groups`,
`draws` and `found`. `set_aside` sets public examples apart, and examples for tests.
"""

from fedstrata.partitions.owned import DeviceData, PublicData, check_partition, device_data, example_counts, public_data

__all__ = ["DeviceData", "PublicData", "check_partition", "device_data", "example_counts", "public_data"]
