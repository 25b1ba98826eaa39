"""Runs with their devices on the boards of a fleet."""
