"""The examples that each device owns (`owned`), by kind of partition (`tasks`, `groups`, `draws`, `found`), and
`set_aside`.
"""

from fedstrata.partitions.owned import DeviceData, PublicData, check_partition, device_data, example_counts, public_data

__all__ = ["DeviceData", "PublicData", "check_partition", "device_data", "example_counts", "public_data"]
