"""The place of the GPS: a local process, or a pod, from which the GPS scales and labels other pods."""
