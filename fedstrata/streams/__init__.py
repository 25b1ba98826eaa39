"""Which tensors travel how far, between whom, and which model each device has."""
