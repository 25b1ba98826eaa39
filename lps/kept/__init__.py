"""A cluster with a local parameter server (LPS) of its own: its rounds, its state on disk, its takeover."""
