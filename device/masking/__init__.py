"""Secure aggregation at a device: masks, and proofs of who owns the keys that they are made with."""
