"""The child's side of a round: fetch a model, send an update."""
