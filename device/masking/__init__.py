"""Secure aggregation at a device: masks, and proofs that keys belong to devices."""
