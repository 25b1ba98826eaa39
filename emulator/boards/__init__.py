"""Run an experiment with its devices on the boards of a fleet: small computers that serve one run after another."""
