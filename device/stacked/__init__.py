"""Training of many devices at once, if their models are dense networks. One matrix product computes for all devices."""
