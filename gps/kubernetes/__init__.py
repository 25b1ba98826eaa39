"""The system in which the GPS runs: one machine, or Kubernetes, in which the GPS scales and labels pods."""
