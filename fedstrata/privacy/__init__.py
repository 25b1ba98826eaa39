"""Differential privacy of updates: budgets, noise on what leaves a device, and its report in the record."""
