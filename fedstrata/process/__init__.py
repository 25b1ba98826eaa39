"""The needs of every process: start and stop, logs, metrics, HTTP, deadlines and pauses."""
