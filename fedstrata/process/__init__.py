"""Functions that every process needs: start and stop, logs, metrics, HTTP, deadlines and pauses."""
