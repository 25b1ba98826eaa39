"""Training of many devices at once, for dense networks: matrix products over all devices."""
