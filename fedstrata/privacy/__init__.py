"""Differential privacy of updates: it computes how much noise is needed, adds the noise, and reports it in the
record.
"""
