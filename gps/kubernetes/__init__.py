"""Where the GPS runs: as a local process, or in a pod, from which it scales and labels other pods."""
