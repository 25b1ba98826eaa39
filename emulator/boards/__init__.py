"""Run an experiment with its devices on the boards of a fleet."""
