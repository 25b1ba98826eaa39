"""The optimiser of a server: how a round's mean update moves the model."""
