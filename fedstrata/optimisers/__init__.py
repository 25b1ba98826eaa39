"""The optimiser of a server, which moves the model by a round's mean update."""
