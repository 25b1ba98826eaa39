"""Do many runs with variants of one experiment, and write one table of their results."""
