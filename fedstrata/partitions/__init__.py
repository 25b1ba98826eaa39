"""Which examples each device owns (`owned`): by kind of partition `tasks`, `groups`, `draws`; what is `set_aside`."""

from fedstrata.partitions.owned import DeviceData, PublicData, check_partition, device_data, example_counts, public_data

__all__ = ["DeviceData", "PublicData", "check_partition", "device_data", "example_counts", "public_data"]
