"""Training of many devices at once: dense networks as batched matrix products."""
