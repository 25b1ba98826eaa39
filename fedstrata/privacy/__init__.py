"""Differential privacy of updates. This subpackage computes how much noise is needed, adds the noise, and reports it in
the record.
"""
