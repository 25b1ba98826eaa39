"""The place that the GPS runs in: local processes, or pods that it scales and labels."""
