"""Streams: the tensors that are averaged over the same devices, and the model of each device."""
