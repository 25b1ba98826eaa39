"""Training of many devices at once, with dense networks as batched matrix products."""
