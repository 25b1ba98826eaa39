"""The place in which the GPS runs: local processes, or pods, which it scales and labels."""
