"""Differential privacy of updates: how much noise, the noise itself, and its report in the record."""
