"""The optimiser of a server, which changes the model by the mean update of a round."""
