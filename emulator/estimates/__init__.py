"""Estimates for a run without running it: bytes, memory and time."""
