"""Streams: which tensors are averaged over which devices, and which model each device has."""
