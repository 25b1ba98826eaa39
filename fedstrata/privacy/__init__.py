"""Differential privacy of updates: budgets, noise on what leaves a device, and what the record says of it."""
