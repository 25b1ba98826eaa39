"""Estimate a run before it starts: bytes, memory and time."""
